"""Table versions: equal content keeps its id, whatever the process; anything else gets the next one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.schema import Column, SchemaBook, TableSchema

ITEMS = TableSchema(-1, "shop", "public", "items", (Column("id", "bigint", False), Column("v", "text")), ("id",))
OTHERS = [
    replace(ITEMS, database="other"),
    replace(ITEMS, schema="other"),
    replace(ITEMS, table="other"),
    replace(ITEMS, columns=ITEMS.columns[::-1]),
    replace(ITEMS, columns=(Column("id", "bigint"), Column("v", "text"))),
    replace(ITEMS, key=("id", "v")),
    replace(ITEMS, key=()),
]


def test_plain_data_and_back() -> None:
    assert TableSchema.from_dict(ITEMS.as_dict()) == ITEMS


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
