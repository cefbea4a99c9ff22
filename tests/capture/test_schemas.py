"""Table versions through the tap: registered from the log, the same again after a crash, and shown."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.changelog import head
from tailrace.changelog.versions import index
from tailrace.control import Store
from tailrace.control.schemas import SchemaRegistry, SchemaVersion
from tailrace.surfaces.cli import app
from tailrace.testing.waiting import eventually
from tests.capture.running import Change, Database, TapProcess

Start = Callable[..., TapProcess]
Fresh = Callable[..., Database]


def _registered(folder: Path, source: str) -> tuple[SchemaVersion, ...]:
    with closing(Store(folder / "control.db")) as store:
        return SchemaRegistry(store).versions(source)


def _alter(db: Database, tap: TapProcess | None = None) -> None:
    """A column more, then another name; each seen by the tap before the next, where it runs."""
    for statement, row in (
        (None, "1, 'x'"),
        ("ALTER TABLE t ADD v int DEFAULT 5", "2, 'x', 2"),
        ("ALTER TABLE t RENAME a TO b", "3, 'x', 3"),
    ):
        db.run(*([statement] if statement else []), f"INSERT INTO t VALUES ({row})")
        if tap is not None:
            tap.changes()


def _brief(rows: list[Change]) -> list[Any]:
    return [(row["op"], row["after"], row["schema_id"], row["position"]) for row in rows if row["op"] == "c"]


@pytest.mark.parametrize("major", [15, 18])
def test_versions_are_registered_with_their_place(database: Fresh, tap: Start, tmp_path: Path, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    running = tap(db)
    running.until("running")
    _alter(db, running)
    rows = running.changes()
    eventually(lambda: len(_registered(tmp_path, db.name)) == 3)
    found = _registered(tmp_path, db.name)
    changes = [row for row in rows if row["op"] == "s"]
    assert [each.schema.id for each in found][1:] == [row["schema_id"] for row in changes]
    assert [each.position for each in found][1:] == [row["position"] for row in changes]
    assert [each.fingerprint for each in found][1:] == [json.loads(row["after"])["fingerprint"] for row in changes]
    with closing(Store(tmp_path / "control.db")) as store:
        registry = SchemaRegistry(store)
        for row in rows:
            valid = registry.valid_at(db.name, "public", "t", row["seq"])
            assert valid is not None
            assert valid.schema.id >= row["schema_id"], "a version begins in the line that has its first row"
        before = registry.versions(db.name)
    running.process.kill()
    running.wait()
    for leftover in tmp_path.glob("control.db*"):
        leftover.unlink()
    with closing(Store(tmp_path / "control.db")) as store:
        for _ in range(2):
            index(running.path, SchemaRegistry(store))
            assert SchemaRegistry(store).versions(db.name) == before


def test_replayed_across_an_alter_each_row_has_its_own_version(db: Database, tap: Start, tmp_path: Path) -> None:
    """A tap that is killed before it acknowledges reads the WAL again, while the catalog is already ahead of it."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    first = tap(db)
    first.until("running")
    db.run("INSERT INTO t VALUES (0, 'x')")
    first.changes()
    first.process.kill()
    first.wait()
    _alter(db)
    db.run("ALTER TABLE t DROP v")
    second = tap(db)
    eventually(lambda: head(second.path) > head(first.path) - 1)
    second.process.kill()
    second.wait()
    third = tap(db)
    rows = third.changes()
    created = [json.loads(row["after"]) for row in rows if row["op"] == "c"]
    assert created == [
        {"id": 0, "a": "x"},
        {"id": 1, "a": "x"},
        {"id": 2, "a": "x", "v": 2},
        {"id": 3, "b": "x", "v": 3},
    ]
    eventually(lambda: len(_registered(tmp_path, db.name)) == 4)
    versions = {each.schema.id: each.schema for each in _registered(tmp_path, db.name)}
    for row in rows:
        names = [column.name for column in versions[row["schema_id"]].columns]
        assert row["op"] == "s" or list(json.loads(row["after"])) == names
    assert len({(row["position"], row["tx_ordinal"]) for row in rows}) == len(rows)


def test_the_registry_forgets_a_log_that_was_removed(tmp_path: Path) -> None:
    from tailrace.schema import Column, TableSchema

    one = TableSchema(0, "db", "public", "t", (Column("id", "integer"),), ("id",))
    with closing(Store(tmp_path / "control.db")) as store:
        registry = SchemaRegistry(store)
        for log_id in ("first", "second"):
            registry.enter("shop", log_id, [SchemaVersion(one, one.fingerprint, "0/1", 0, 1)])
        assert (registry.known("shop", "first"), registry.known("shop", "second")) == (frozenset(), frozenset({0}))
        with closing(sqlite3.connect(tmp_path / "control.db")) as plain:
            assert plain.execute("SELECT count(*) FROM schema_versions").fetchone() == (1,)


# -- tailrace schemas --------------------------------------------------------------------------------------------


def _tailrace(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["schemas", *map(str, arguments)])


def _machine(*arguments: str | Path) -> Any:
    done = _tailrace(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_the_command_line(db: Database, tap: Start, tmp_path: Path) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE TABLE u (x int PRIMARY KEY)")
    running = tap(db, log_path=str(tmp_path / "data" / "logs" / db.name))
    running.path = tmp_path / "data" / "logs" / db.name
    running.until("running")
    db.run("INSERT INTO u VALUES (1)")
    _alter(db, running)
    running.changes()
    here = ("--data-dir", tmp_path / "data")

    listed = _tailrace("list", *here)
    assert listed.exit_code == 0, listed.stderr
    [first, second] = [line.split("  ") for line in listed.stdout.splitlines()]
    assert (first[:2], first[3]) == ([db.name, "public.t"], "3 columns, key id, 3 versions")
    assert second[3] == "1 columns, key x, 1 version"
    assert [table["table"] for table in _machine("list", db.name, *here)["tables"]] == ["public.t", "public.u"]

    shown = _machine("show", db.name, "t", *here)
    assert [column["name"] for column in shown["columns"]] == ["id", "b", "v"]
    assert shown["position"].count("/") == 1
    assert "  id  integer  int32  not null  key" in _tailrace("show", db.name, "public.t", *here).stdout

    versions = _machine("versions", db.name, "t", *here)["versions"]
    assert [[step["kind"] for step in each["changes"]] for each in versions] == [[], ["add"], ["rename"]]
    lines = _tailrace("versions", db.name, "t", *here).stdout.splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["first", "add v integer", "rename a to b"]

    assert _machine("diff", db.name, "t", *here)["changes"] == [{"kind": "rename", "from": "a", "to": "b"}]
    whole = _tailrace("diff", db.name, "t", "--from", str(versions[0]["version"]), *here).stdout.splitlines()
    assert whole[1:] == ["  rename a to b", "  add v integer"]

    for arguments in (("show", db.name, "none"), ("show", db.name, "t", "--version", "99"), ("list", "nobody")):
        assert _tailrace(*arguments, *here).exit_code == 1
