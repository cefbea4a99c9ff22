"""What a range has of each table is what its rows say, whatever the range."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.changelog import LogReader, LogWriter, read_slice
from tailrace.contracts import Break, Content
from tailrace.schema import Column, TableSchema
from tailrace.testing.captures import Row, capture
from tests.changelog.looking import Change, changes

Write = Callable[..., LogWriter]
TABLES = [TableSchema(n, "shop", "public", f"t{n % 3}", (Column("id", "bigint"),), ("id",)) for n in range(5)]


@pytest.fixture
def log(path: Path, write: Write) -> Path:
    """Thirty captures of random changes."""
    chance = random.Random(5)
    writer = write(segment_bytes=9000)
    for number in range(30):
        transactions = [[_row(chance) for _ in range(chance.randrange(1, 12))] for _ in range(chance.randrange(1, 4))]
        writer.append(capture(*transactions, first_xid=number * 10 + 1))
    return path


def _row(chance: random.Random) -> Row:
    op = chance.choice("cccuuudrtsm")
    image = {"id": chance.randrange(100)}
    unchanged = chance.choice([None, None, [], ["note"], ["note", "b"]]) if op in "cu" else None
    headers = chance.choice([None, {"old_key": "1"}, {"origin": 'x"old_key":'}])
    return Row(op, image, None, image, unchanged, headers, table=chance.choice(TABLES))


def _expected(rows: list[Change]) -> list[Content]:
    found = []
    for number in dict.fromkeys(row["schema_id"] for row in sorted(rows, key=lambda row: row["seq"])):
        mine = sorted((row for row in rows if row["schema_id"] == number), key=lambda row: row["seq"])
        moved = [row for row in mine if row["headers"] and "old_key" in dict(row["headers"])]
        found.append(
            Content(
                number,
                len(mine),
                mine[0]["seq"],
                mine[-1]["seq"],
                max(row["ts_us"] for row in mine),
                frozenset(row["op"] for row in mine),
                tuple(sorted({name for row in mine for name in row["unchanged"] or ()})),
                bool(moved),
                any(row["unchanged"] for row in moved),
                tuple(Break(row["seq"], row["op"], row["after"]) for row in mine if row["op"] in "ts"),
            )
        )
    return found


def test_contents_are_what_the_rows_say(log: Path) -> None:
    reader, chance = LogReader(log), random.Random(6)
    for _ in range(40):
        start, end = sorted(chance.sample(range(reader.end + 1), 2))
        assert reader.contents(start, end) == _expected(changes(log, start, end))
    assert reader.contents(5, 5) == []


@pytest.mark.parametrize("tasks", [1, 3])
def test_one_version_is_read_alone(log: Path, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.changelog.reader.ONE_TASK_ROWS", 10)
    reader = LogReader(log)
    whole = changes(log)
    for schema in TABLES:
        for start, end in ((0, reader.end), (17, 90), (50, 51)):
            pieces = reader.slices(start, end, tasks, schema.id)
            rows = [row for piece in pieces for batch in read_slice(piece) for row in batch.to_pylist()]
            wanted = [row for row in whole[start:end] if row["schema_id"] == schema.id]
            assert sorted(rows, key=lambda row: row["seq"]) == wanted
