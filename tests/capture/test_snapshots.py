"""Snapshots from their request to their end: what is read, once, and what may happen to a run meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.contracts import Extent
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger
from tailrace.errors import ConfigError
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.capture.snapshotting import ITEMS, Snapshotting, contents, same, stage


def test_rows_from_before_the_stream_are_read(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)",
        "INSERT INTO items SELECT n, 'item ' || n, n * 1.5 FROM generate_series(1, 95) n",
    )
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        found = run.finish()
    assert sorted(row["key"] for row in found) == sorted(f'{{"id":{number}}}' for number in range(1, 96))
    assert {row["op"] for row in found} == {"r"}
    assert contents(found)["items", '{"id":7}'] == {"id": 7, "name": "item 7", "price": "10.5"}
    assert len({row["tx_id"] for row in found}) == 10
    assert [row["tx_last"] for row in found].count(True) == 10


def test_each_table_is_read_once(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        run.finish()
    with Snapshotting(db, tmp_path) as again:
        again.begin()
        found = again.finish()
    assert [row["op"] for row in found] == ["r"]


def test_always_reads_at_every_start(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path, snapshot={"mode": "always"}) as run:
        run.begin()
        run.finish()
    with Snapshotting(db, tmp_path, snapshot={"mode": "always"}) as again:
        again.begin()
        found = again.finish()
    assert [row["op"] for row in found] == ["r", "r"]


def test_no_data_takes_schemas_only(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path, snapshot={"mode": "no_data"}) as run:
        run.begin()
        assert run.finish() == []
        assert [schema.table for schema in run.capturing.log.book.versions if schema.schema] == ["items"]


def test_a_part_of_a_table(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v%' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.request("items", filter="id % 10 = 0 AND v LIKE 'v%'")
        found = run.finish()
        with pytest.raises(ConfigError, match="nosuch"):
            run.source.check_filter("public", "items", "nosuch = 1")
        with pytest.raises(ConfigError):
            run.source.check_filter("public", "items", "true); DROP TABLE items; --")
        run.source.check_filter("public", "items", "v LIKE '%'")
    assert [row["key"] for row in found] == ['{"id":10}', '{"id":20}', '{"id":30}']


def test_a_cancelled_snapshot_admits_nothing_more(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        [active] = run.ledger.runs(run.source.id, "active")
        assert run.ledger.cancel(active.id)
        assert not run.ledger.cancel(active.id)
        run.admitting = True
        assert run.finish() == []
        assert run.ledger.run(active.id).state == "cancelled"


def test_a_table_that_is_dropped_meanwhile(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        db.run("DROP TABLE other")
        assert same(run.finish(), db)


def test_a_table_that_is_dropped_before_it_is_read(db: Database, tmp_path: Path) -> None:
    """Its chunks are planned already; the run goes on without it."""
    db.run(ITEMS, "CREATE TABLE other (id int PRIMARY KEY)")
    db.run("INSERT INTO items VALUES (1, 'b', 'v')", "INSERT INTO other SELECT generate_series(1, 100)")
    with Snapshotting(db, tmp_path) as run:
        asked = run.request("items", "other")
        for table in run.ledger.tables(asked):
            run.ledger.plan(table, [Extent(high=("1",)), Extent(low=("1",))], complete=True)
        db.run("DROP TABLE other")
        found = run.finish()
        states = {table.table: table.state for table in run.ledger.tables(asked)}
    assert same(found, db)
    assert (run.ledger.run(asked).state, states) == ("done", {"items": "done", "other": "gone"})


def test_tables_the_stream_cannot_tell_are_read(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made later, with rows from before it was published, and one whose rows DDL rewrites."""
    monkeypatch.setattr("tailrace.capture.postgres.catalog_watch.LOOK_S", 0.1)
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', n::text FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        run.finish()
        db.run("ALTER TABLE items ALTER v TYPE int USING v::int * 2")
        db.run("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later SELECT generate_series(1, 15)")
        run.work(until=lambda: len(run.ledger.runs(run.source.id, "done")) == 3)
        found = run.finish()
    state = contents([row for row in found if row["op"] != "s"])
    assert [state["items", f'{{"id":{n}}}']["v"] for n in range(1, 31)] == [2 * n for n in range(1, 31)]
    assert sum(table == "later" for table, _ in state) == 15


def test_a_table_without_columns_is_read_when_it_has_some(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is left out, and all others are read."""
    monkeypatch.setattr("tailrace.capture.postgres.catalog_watch.LOOK_S", 0.1)
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')", "CREATE TABLE bare ()", "INSERT INTO bare DEFAULT VALUES")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        found = run.finish()
        assert [row["table"] for row in found] == ["items"]
        looks = run.capturing.stream.looks
        eventually(lambda: run.capturing.stream.looks > looks + 1)
        db.run("ALTER TABLE bare ADD id int NOT NULL DEFAULT 7, ADD PRIMARY KEY (id)")
        run.work(until=lambda: len(run.ledger.runs(run.source.id, "done")) == 2)
        found = run.finish()
    assert contents(found)["bare", '{"id":7}'] == {"id": 7}


def test_a_lost_file_is_read_again(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        for file in (tmp_path / "staged").glob("*.arrow"):
            file.unlink()
        run.admitting = True
        assert same(run.finish(), db)


def test_what_the_log_took_in_is_known_after_a_crash(db: Database, tmp_path: Path) -> None:
    """The chunk is in the log, and the process died before the ledger knew: it is not taken in twice."""
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 10) n")
    with Snapshotting(db, tmp_path, ledger=Forgetful) as run:
        run.begin()
        run.work(until=lambda: run.capturing.error is not None)
    assert isinstance(run.capturing.error, Forgetful.Death)
    with Snapshotting(db, tmp_path) as again:
        again.begin()
        found = again.finish()
    assert len(found) == 10
    assert [each.state for each in again.ledger.runs(again.source.id)] == ["done"]


class Forgetful(SnapshotLedger):
    """Dies when it should enter an admission."""

    class Death(Exception):
        pass

    def __init__(self, store: Store) -> None:
        super().__init__(store)

    def enter(self, source: str, log_id: str, offset: int, admitted: Any) -> None:
        if admitted is not None:
            raise self.Death
        super().enter(source, log_id, offset, admitted)
