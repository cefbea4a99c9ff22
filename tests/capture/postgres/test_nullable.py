"""What the catalog says of columns beside their types is told with a version, and makes none: whether they can be null,
their defaults, the labels of their enums, their places in the primary key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.capture.staging import left_behind
from tailrace.changelog import LogReader
from tailrace.contracts import ChunkId, Extent
from tailrace.schema import TableSchema
from tailrace.testing.waiting import eventually
from tests.capture.postgres.ddl import Fresh, Start, started, steps
from tests.capture.running import Capturing, Database

TABLE = "CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL, b text)"


def _versions(run: Capturing) -> list[TableSchema]:
    run.changes()
    return [each for each in LogReader(run.path).schemas.values() if each.table == "t"]


def _required(version: TableSchema) -> list[str]:
    return [column.name for column in version.columns if not column.nullable]


def _read(db: Database, folder: Path) -> TableSchema:
    db.source().read_chunk(ChunkId("run", "public", "t", 0), Extent(), folder)
    [staged] = left_behind(folder)
    return staged.schema


@pytest.mark.parametrize("major", [15, 18])
def test_a_constraint_makes_no_version(
    database: Fresh, capturing: Start, rows_only: None, major: int, tmp_path: Path
) -> None:
    db = database(major)
    db.run(TABLE)
    run = started(capturing, db)
    db.run("INSERT INTO t VALUES (1, 'x')")
    [first] = _versions(run)
    assert _required(first) == ["id", "a"]
    db.run("ALTER TABLE t ALTER a DROP NOT NULL", "INSERT INTO t VALUES (2)")
    db.run("UPDATE t SET b = ''", "ALTER TABLE t ALTER b SET NOT NULL", "INSERT INTO t VALUES (3, 'x', 'y')")
    read = _read(db, tmp_path / "staged")
    assert (_required(read), read.follows(first)) == (["id", "b"], False)
    assert [_required(each) for each in _versions(run)] == [["id", "a"]]
    db.run("ALTER TABLE t ADD c int", "INSERT INTO t VALUES (4, 'x', 'y', 1)")
    assert [_required(each) for each in _versions(run)] == [["id", "a"], ["id", "b"]]
    [change] = [row for row in run.changes() if row["op"] == "s"]
    before, after = (json.loads(change[side])["columns"] for side in ("before", "after"))
    assert [each["nullable"] for each in before] == [False, False, True]
    assert [each["nullable"] for each in after] == [False, True, False, True]


def test_nor_does_a_look_at_the_catalog(db: Database, capturing: Start, look: None) -> None:
    db.run(TABLE)
    run = started(capturing, db)
    db.run("ALTER TABLE t ALTER a DROP NOT NULL, ALTER b SET NOT NULL")
    looks = run.stream.looks
    eventually(lambda: run.stream.looks > looks + 1)
    assert [_required(each) for each in _versions(run)] == [["id", "a"]]
    db.run("ALTER TABLE t ADD c int")
    rows = eventually(lambda: found if steps(found := run.changes()) else [])
    assert [step["kind"] for found in steps(rows) for step in found] == ["add"]
    assert [_required(each) for each in _versions(run)] == [["id", "a"], ["id", "b"]]


def test_a_constraint_that_rows_may_break(database: Fresh, tmp_path: Path) -> None:
    """Since 18 it may be there without a look at the rows."""
    db = database(18)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1)")
    db.run("ALTER TABLE t ADD CONSTRAINT whole NOT NULL a NOT VALID")
    assert _required(_read(db, tmp_path / "staged")) == ["id"]


def test_defaults_labels_and_the_primary_key_are_told(
    db: Database, capturing: Start, rows_only: None, tmp_path: Path
) -> None:
    db.run(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "ALTER TYPE mood ADD VALUE 'quote '' \", comma' BEFORE 'ok'",
        "CREATE TABLE t (b int, v mood DEFAULT 'ok', a int DEFAULT 7, moods mood[], "
        "twice int GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (a, b))",
    )
    run = started(capturing, db)
    db.run("INSERT INTO t (b) VALUES (1)", "ALTER TABLE t ALTER a SET DEFAULT 8", "INSERT INTO t (b) VALUES (2)")
    [streamed] = _versions(run)
    read = _read(db, tmp_path / "staged")
    labels = ("sad", "quote ' \", comma", "ok")
    for version, default in ((streamed, "7"), (read, "8")):
        found = {column.name: (column.default, column.labels, column.primary) for column in version.columns}
        assert (
            found.items()
            >= {
                "b": (None, (), 2),
                "v": ("'ok'::mood", labels, 0),
                "a": (default, (), 1),
                "moods": (None, labels, 0),
            }.items()
        )
        assert found.get("twice", (None, (), 0)) == (None, (), 0)
        again = TableSchema.from_dict(json.loads(json.dumps(version.as_dict())))
        assert repr(again) == repr(version)
