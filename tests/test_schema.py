"""Table versions: equal content keeps its id, whatever the process; anything else gets the next one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from tailrace.schema import Column, SchemaBook, TableSchema, differences, table_name

ITEMS = TableSchema(-1, "shop", "public", "items", (Column("id", "bigint", False), Column("v", "text")), ("id",))
OTHERS = [
    replace(ITEMS, database="other"),
    replace(ITEMS, schema="other"),
    replace(ITEMS, table="other"),
    replace(ITEMS, columns=ITEMS.columns[::-1]),
    replace(ITEMS, columns=(Column("id", "bigint"), Column("v", "jsonb"))),
    replace(ITEMS, key=("id", "v")),
    replace(ITEMS, key=()),
]


def test_plain_data_and_back() -> None:
    assert TableSchema.from_dict(ITEMS.as_dict()) == ITEMS


def test_what_it_was_before_columns_had_kinds() -> None:
    """The fingerprint is the same, also of a column that cannot be null, and spellings tell the kinds."""
    columns = [{"name": "id", "type": "bigint", "nullable": True}, {"name": "v", "type": "text", "nullable": True}]
    content = json.dumps(["shop", "public", "items", columns, ["id"]], sort_keys=True)
    assert ITEMS.fingerprint == hashlib.sha256(content.encode()).hexdigest()
    found = TableSchema.from_dict({**ITEMS.as_dict(), "columns": columns})
    assert not found.follows(ITEMS)
    assert [str(each.kind) for each in found.columns] == ["int64", "text"]


def test_different_tables_have_different_names() -> None:
    names = [table_name(*parts) for parts in (("a", "b"), ("a.b", "c"), ("a", "b.c"), ('"a', 'b"'), ("a", '"b.c"'))]
    assert names[:3] == ["a.b", '"a.b".c', 'a."b.c"']
    assert len(set(names)) == len(names)


def test_the_fingerprint_is_of_everything_but_the_id() -> None:
    assert replace(ITEMS, id=5).fingerprint == ITEMS.fingerprint
    assert len({ITEMS.fingerprint, *(other.fingerprint for other in OTHERS)}) == len(OTHERS) + 1


def test_equal_content_keeps_its_id() -> None:
    book = SchemaBook()
    assert book.enter(ITEMS).id == 0
    assert book.enter(replace(ITEMS, id=77)).id == 0


@pytest.mark.parametrize("other", OTHERS)
def test_another_version_gets_the_next_id(other: TableSchema) -> None:
    book = SchemaBook()
    book.enter(ITEMS)
    assert book.enter(other).id == 1


def test_a_book_continues_where_the_log_stopped() -> None:
    first = SchemaBook()
    known = (first.enter(ITEMS), first.enter(OTHERS[0]))
    again = SchemaBook(known)
    assert again.enter(OTHERS[0]).id == 1
    assert again.enter(OTHERS[1]).id == 2


def _table(*columns: tuple[str, str, int], key: tuple[str, ...] = ("id",), relation: int = 1) -> TableSchema:
    listed = tuple(Column(name, kind, number=number) for name, kind, number in columns)
    return TableSchema(0, "shop", "public", "items", listed, key, relation)


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (_table(("id", "int", 1)), _table(("id", "int", 1), ("v", "text", 2)), ["add v"]),
        (_table(("id", "int", 1), ("v", "text", 2)), _table(("id", "int", 1)), ["drop v"]),
        (_table(("id", "int", 1), ("a", "text", 2)), _table(("id", "int", 1), ("b", "text", 2)), ["rename a b"]),
        (_table(("id", "int", 1), ("a", "text", 0)), _table(("id", "int", 1), ("b", "text", 2)), ["drop a", "add b"]),
        (_table(("id", "int", 1), ("a", "text", 2)), _table(("id", "int", 1), ("a", "text", 3)), ["drop a", "add a"]),
        (_table(("id", "int", 1), ("a", "text", 0)), _table(("id", "int", 1), ("a", "int", 3)), ["retype a text int"]),
        (_table(("id", "int", 1)), _table(("nr", "int", 1), key=("nr",)), ["rename id nr"]),
        (_table(("id", "int", 1)), _table(("id", "int", 1), key=()), ["key id "]),
        (_table(("id", "int", 1)), _table(("id", "int", 5), relation=2), ["recreate"]),
        (_table(("id", "int", 1)), _table(key=()), ["drop_table"]),
        (_table(key=()), _table(("id", "int", 1), relation=2), ["create"]),
    ],
)
def test_differences(before: TableSchema, after: TableSchema, steps: list[str]) -> None:
    found = differences(before, after)
    for step in found:
        if step["kind"] == "add":
            del step["type"]
    spoken = [" ".join("".join(value) for value in step.values()) for step in found]
    assert spoken == steps


def test_a_version_that_comes_back_and_a_table_made_anew_get_ids_of_their_own() -> None:
    book = SchemaBook()
    one, two = _table(("id", "int", 1)), _table(("id", "bigint", 1))
    assert [book.enter(each).id for each in (one, two, one, one)] == [0, 1, 2, 2]
    assert book.enter(replace(one, relation=2)).id == 3
    assert book.enter(replace(one, relation=0)).id == 3, "one that says nothing of it is no other table"
    again = SchemaBook(book.versions[::-1])
    assert again.newest("public", "items") == book.newest("public", "items")
    assert again.enter(one).id == 4
