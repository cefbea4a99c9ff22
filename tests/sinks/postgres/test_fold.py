"""What is left of each key, without a database."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tailrace.change import CHANGES
from tailrace.sinks.postgres.fold import Names, Rows, folded, whole

NAMES = Names(("id", "n", "note"), ("id",), ())
NOTE = ["note"]


def change(
    seq: int, op: str, image: dict[str, Any], unchanged: list[str] | None = None, **headers: str
) -> dict[str, Any]:
    key = json.dumps({"id": image["id"]})
    empty: dict[str, Any] = {field.name: None if field.nullable else _EMPTY[str(field.type)] for field in CHANGES}
    row = {"seq": seq, "op": op, "key": key, "after": None if op == "d" else json.dumps(image)}
    return {**empty, **row, "unchanged": unchanged, "headers": list(headers.items()) or None}


_EMPTY = {"int64": 0, "int32": 0, "string": "", "bool": False}


def fold(*changes: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Key → (deleted, n, note, whether the table has the note, under which key)."""
    rows = folded(pa.Table.from_pylist(list(changes), CHANGES).to_batches(), NAMES, NOTE)
    assert rows is not None
    return _by_key(rows)


def _by_key(rows: Rows) -> dict[str, tuple[Any, ...]]:
    origins = rows.origins[0].to_pylist() if rows.origins else [None] * len(rows.deleted)
    unsent = rows.unsent["note"].to_pylist() if rows.unsent else [False] * len(rows.deleted)
    found = zip(rows.deleted.to_pylist(), *(each.to_pylist() for each in rows.columns), unsent, origins, strict=True)
    return {key: (deleted, n, note, lacks, origin if lacks else None) for deleted, key, n, note, lacks, origin in found}


def moved(seq: int, old: int, image: dict[str, Any], unchanged: list[str] | None = None) -> list[dict[str, Any]]:
    gone = change(seq, "d", {"id": old}, new_key=json.dumps({"id": image["id"]}))
    return [gone, change(seq + 1, "c", image, unchanged, old_key=json.dumps({"id": old}))]


def test_changes_that_are_whole() -> None:
    rows = [change(0, "c", {"id": 1, "n": 1, "note": 'a "quoted" \\ text'}), change(1, "d", {"id": 2})]
    found = whole(pa.Table.from_pylist(rows, CHANGES).combine_chunks().to_batches()[0], NAMES)
    assert _by_key(found) == {
        "1": (False, "1", 'a "quoted" \\ text', False, None),
        "2": (True, None, None, False, None),
    }


def test_a_column_that_was_not_sent_is_in_the_change_before_or_in_the_table() -> None:
    assert fold(
        change(3, "u", {"id": 1, "n": 3}, NOTE),  # in any order
        change(1, "c", {"id": 1, "n": 1, "note": "one"}),
        change(2, "u", {"id": 1, "n": 2, "note": "two"}),
        change(4, "u", {"id": 2, "n": 4}, NOTE),
        change(5, "u", {"id": 3, "n": 5}, NOTE),
        change(6, "d", {"id": 3}),
        change(7, "c", {"id": 4, "n": 6, "note": None}),
        change(8, "u", {"id": 4, "n": 7}, NOTE),
    ) == {
        "1": (False, "3", "two", False, None),
        "2": (False, "4", None, True, None),
        "3": (True, None, None, False, None),
        "4": (False, "7", None, False, None),
    }


def test_a_row_that_got_another_key_takes_its_columns_along() -> None:
    assert fold(
        change(0, "u", {"id": 1, "n": 0, "note": "here"}),
        *moved(1, 1, {"id": 10, "n": 1}, NOTE),
        *moved(3, 2, {"id": 20, "n": 2}, NOTE),
        *moved(5, 20, {"id": 30, "n": 3}, NOTE),
        change(7, "u", {"id": 30, "n": 4}, NOTE),
        *moved(8, 10, {"id": 1, "n": 5}, NOTE),
    ) == {
        "1": (False, "5", "here", False, None),
        "10": (True, None, None, False, None),
        "2": (True, None, None, False, None),
        "20": (True, None, None, False, None),
        "30": (False, "4", None, True, "2"),
    }


def test_two_rows_that_change_places() -> None:
    found = fold(
        *moved(0, 1, {"id": 9, "n": 1}, NOTE),
        *moved(2, 2, {"id": 1, "n": 2}, NOTE),
        *moved(4, 9, {"id": 2, "n": 1}, NOTE),
    )
    assert found["1"] == (False, "2", None, True, "2")
    assert found["2"] == (False, "1", None, True, "1")
