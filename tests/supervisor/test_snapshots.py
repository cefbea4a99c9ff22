"""The thread that reads snapshots, when it cannot get at the control store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.backoff import Backoff
from tailrace.contracts import Extent
from tailrace.control import Store
from tailrace.control.ledger import Ledger, Run, TableRequest
from tailrace.errors import SetupError
from tailrace.spark.snapshot import ReadHere
from tailrace.supervisor.snapshots import Snapshots, SnapshotThread
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database


class Counting(Ledger):
    """Counts how often its store was busy."""

    refused = 0

    def runs(self, source: str, state: str | None = None) -> list[Run]:
        try:
            return super().runs(source, state)
        except SetupError:
            self.refused += 1
            raise


def test_a_store_that_others_hold_is_waited_for(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the reading nor the look at how it goes ends."""
    patient = Ledger(Store(tmp_path / "control.db"))
    patient.runs("shop")
    monkeypatch.setattr("tailrace.control.store.BUSY_MS", 10)
    with Database(postgres) as db, closing(Store(tmp_path / "control.db")) as store:
        db.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items SELECT generate_series(1, 30)")
        source, ledger = db.source(), Counting(store)
        run = ledger.request(source.id, "asked", [TableRequest("public", "items")], log_id="log", since=0)
        snapshots = Snapshots(source, ledger, ReadHere(source, tmp_path / "staged"), Backoff(0.01, 0.05, 0.0))
        streams = [False]
        thread = SnapshotThread(snapshots, lambda: streams[0], lambda: ("log", {("public", "items")}), "shop")
        thread.begun = True
        told = thread.status()
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            streams[0] = True
            thread.start()
            assert (thread.status(), thread.busy) == (told, True)
            assert [each.table for each in told] == ["public.items"]
            eventually(lambda: ledger.refused > 4)
            assert (thread.is_alive(), thread.failure) == (True, None)
            other.execute("ROLLBACK")
        eventually(lambda: patient.count(run, "staged") == 2)
        thread.stop()
        thread.join()
        assert thread.failure is None


def test_a_table_that_vanishes_takes_no_other_of_its_name_along(postgres: PostgresServer, tmp_path: Path) -> None:
    with Database(postgres) as db, closing(Store(tmp_path / "control.db")) as store:
        for table in ("public.items", "other.items"):
            schema = table.partition(".")[0]
            db.run(f"CREATE SCHEMA IF NOT EXISTS {schema}", f"CREATE TABLE {table} (id int PRIMARY KEY)")
            db.run(f"INSERT INTO {table} SELECT generate_series(1, 5)")
        source, ledger = db.source(tables=["public.*", "other.*"]), Ledger(store)
        wanted = [TableRequest("public", "items"), TableRequest("other", "items")]
        run = ledger.request(source.id, "asked", wanted, log_id="log", since=0)
        snapshots = Snapshots(source, ledger, ReadHere(source, tmp_path / "staged"), Backoff(0.01, 0.05, 0.0))
        with closing(snapshots):
            snapshots.step(lambda: False)
            for requested in ledger.tables(run):
                ledger.plan(requested, [Extent()], complete=True)
            db.run("DROP TABLE public.items")

            def over() -> bool:
                snapshots.step()
                return ledger.count(run, "planned") == 0

            eventually(over, 30)
            assert [chunk.chunk.schema for chunk in ledger.staged(source.id)] == ["other"]
            states = {(each.schema, each.table): each.state for each in ledger.tables(run)}
            assert states["public", "items"] == "gone" and states["other", "items"] == "reading"
