"""What is planned and read for snapshots, and what becomes of a table that cannot be: at the room's own door, with a
real database, without a tap and without Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.backoff import Backoff
from tailrace.contracts import Admitted, Extent
from tailrace.control import Store
from tailrace.control.ledger import Run, SnapshotLedger, TableRequest
from tailrace.errors import SetupError, SourceError
from tailrace.spark.snapshot import Outcome, Read, ReadHere, Task
from tailrace.supervisor.snapshots import Snapshots, SnapshotThread
from tailrace.supervisor.snapshots.requests import REQUESTED
from tailrace.supervisor.verify.repair import REASON
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database


class Counting(SnapshotLedger):
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
    patient = SnapshotLedger(Store(tmp_path / "control.db"))
    patient.runs("shop")
    monkeypatch.setattr("tailrace.control.sqlite.BUSY_MS", 10)
    with Database(postgres) as db, closing(Store(tmp_path / "control.db")) as store:
        db.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items SELECT generate_series(1, 30)")
        source, ledger = db.source(), Counting(store)
        run = ledger.request(source.id, "asked", [TableRequest("public", "items")], log_id="log", since=0)
        snapshots = Snapshots(source, ledger, ReadHere(source, tmp_path / "staged"), Backoff(0.01, 0.05, 0.0))
        streams = [False]
        thread = SnapshotThread(snapshots, lambda: streams[0], lambda: ("log", {("public", "items")}), "shop")
        thread.begun = True
        told = thread.status()
        with closing(sqlite3.connect(store.where, isolation_level=None)) as other:
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
        source, ledger = db.source(tables=["public.*", "other.*"]), SnapshotLedger(store)
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


# -- a table that cannot be read -----------------------------------------------------------------------------


class Desk:
    """Snapshots of `public.*` for the log "log", and who stands in for the tap."""

    def __init__(self, db: Database, store: Store, folder: Path, read: Callable[[Read], Read], **settings: Any) -> None:
        self.source, self.ledger = db.source(**{"snapshot": {"mode": "initial"}, **settings}), SnapshotLedger(store)
        reader = read(ReadHere(self.source, folder / "staged"))
        self.snapshots = Snapshots(self.source, self.ledger, reader, Backoff(0.01, 0.05, 0.0))

    def begin(self) -> None:
        self.snapshots.begin("log", set())

    def admit(self) -> None:
        """As the tap does, once the log has them."""
        for staged in self.ledger.staged(self.source.id):
            self.ledger.enter(self.source.id, "log", 1, Admitted(staged.chunk, staged.rows))

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Plan, read and admit until the condition holds; by default until every run is over and noticed."""

        def over() -> bool:
            busy = self.snapshots.busy
            self.snapshots.step()
            self.admit()
            return until() if until is not None else not busy

        eventually(over, 30)

    def told(self) -> dict[str, tuple[str, str]]:
        """Each table of the status: how far it is, and the code of its error."""
        return {each.table: (each.state, (each.error or {}).get("code", "")) for each in self.snapshots.status()}


Start = Callable[..., Desk]


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    with Database(postgres) as db:
        yield db


@pytest.fixture
def desk(db: Database, tmp_path: Path) -> Iterator[Start]:
    """`desk()`: a process that reads snapshots; the one before it has ended."""
    desks: list[Desk] = []
    with closing(Store(tmp_path / "control.db")) as store:

        def start(read: Callable[[Read], Read] = lambda read: read, **settings: Any) -> Desk:
            for each in desks:
                each.snapshots.close()
            desks.append(Desk(db, store, tmp_path, read, **settings))
            return desks[-1]

        yield start
        for each in desks:
            each.snapshots.close()


@contextmanager
def hidden(db: Database, *tables: str) -> Iterator[dict[str, Any]]:
    """Row-level security hides these tables' rows from the role of the settings; others it may read."""
    for table in {"items", *tables}:
        db.run(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} SELECT generate_series(1, 5)")
    db.run(
        *(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY" for table in tables),
        "CREATE PUBLICATION shop FOR TABLES IN SCHEMA public",
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'r'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    )
    try:
        dsn = psycopg.conninfo.make_conninfo(db.dsn, user="reader", password="r")
        yield {"dsn": dsn, "publication": "shop"}
    finally:
        db.run("DROP OWNED BY reader", "DROP ROLE reader")


def test_a_table_that_cannot_be_read_fails_alone(db: Database, desk: Start) -> None:
    """The others are read, it stays in the status with its reason, and every start tries it again."""
    with hidden(db, "secret") as settings:
        first = desk(**settings)
        first.begin()
        first.work()
        [run] = first.ledger.runs(first.source.id)
        assert (run.state, (run.error or {})["where"]) == ("failed", "public.secret")
        assert {each.table: each.state for each in first.ledger.tables(run.id)} == {"items": "done", "secret": "failed"}
        for _ in range(2):
            again = desk(**settings)
            again.begin()
            again.work()
            assert again.told() == {"public.secret": ("failed", "source.privilege")}
            assert [(each.code, each.where) for each in again.snapshots.failures] == [
                ("source.privilege", "public.secret")
            ]
            assert again.snapshots.failure is None, "the other table goes on"
        unread = desk(**settings, snapshot={"mode": "never"})
        unread.begin()
        unread.work()
        assert (unread.told() != {}, unread.snapshots.failures) == (True, []), "nobody wants it read now"
        db.run("ALTER TABLE secret DISABLE ROW LEVEL SECURITY")
        last = desk(**settings)
        last.begin()
        last.work()
        assert (last.told(), last.snapshots.failures) == ({}, [])
        assert last.ledger.covered(last.source.id, "log") == {("public", "items"), ("public", "secret")}


def test_all_that_cannot_be_read_is_named(db: Database, desk: Start) -> None:
    """And where nothing is left to go on with, the source's pipelines end."""
    with hidden(db, "items", "a", "b") as settings:
        here = desk(**settings)
        here.begin()
        here.work()
        assert sorted(each.where for each in here.snapshots.failures) == ["public.a", "public.b", "public.items"]
        assert here.snapshots.failure is not None


@pytest.mark.parametrize("reason", [REQUESTED, REASON])
def test_what_somebody_asked_for_and_failed_is_shown_and_ends_nothing(db: Database, desk: Start, reason: str) -> None:
    with hidden(db, "secret") as settings:
        here = desk(**settings, snapshot={"mode": "never"})
        here.ledger.request(here.source.id, reason, [TableRequest("public", "secret")], log_id="log", since=0)
        here.work()
        assert here.told() == {"public.secret": ("failed", "source.privilege")}
        assert (here.snapshots.failures, here.snapshots.failure) == ([], None)


def test_what_the_stream_could_not_tell_is_tried_again(db: Database, desk: Start) -> None:
    """Whoever noticed it has forgotten it by then: a partition that was truncated, and its table could not be read."""
    with hidden(db, "secret") as settings:
        here = desk(**settings, snapshot={"mode": "never"})
        whole = [Extent(whole=True)]
        here.ledger.request_parts(here.source.id, "truncated", TableRequest("public", "secret"), whole, "log")
        here.work()
        assert here.told() == {"public.secret": ("failed", "source.privilege")}
        db.run("ALTER TABLE secret DISABLE ROW LEVEL SECURITY")
        again = desk(**settings, snapshot={"mode": "never"})
        again.begin()
        [run] = again.ledger.runs(again.source.id, "active")
        assert [extent for _, extent in again.ledger.chunks(run.id, "planned")] == whole
        again.work()
        assert (again.told(), again.snapshots.failures) == ({}, [])


def test_a_table_without_columns_is_left_out(db: Database, desk: Start) -> None:
    db.run("CREATE TABLE bare ()", "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    here = desk()
    here.begin()
    here.work()
    [run] = here.ledger.runs(here.source.id)
    assert {each.table: each.state for each in here.ledger.tables(run.id)} == {"bare": "gone", "items": "done"}
    assert (run.state, here.snapshots.failures) == ("done", [])


def test_a_defect_in_reading_fails_the_table_and_is_not_tried_for_ever(db: Database, desk: Start) -> None:
    db.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")

    class Broken:
        def read_chunk(self, chunk: Any, extent: Any, folder: Path) -> Any:
            if chunk.table == "a":
                raise KeyError("id")
            return db.source().read_chunk(chunk, extent, folder)

    here = desk(lambda read: ReadHere(Broken(), read.folder))
    here.begin()
    here.work()
    assert here.told() == {"public.a": ("failed", "snapshot.crashed")}
    assert "KeyError" in here.snapshots.failures[0].message


def test_what_a_table_waits_for_is_shown_until_it_goes_on(db: Database, desk: Start) -> None:
    db.run("CREATE TABLE items (id int PRIMARY KEY)")
    away = [True]

    def reading(read: Read) -> Read:
        def attempt(task: Task) -> list[Outcome]:
            return [SourceError("source.unreachable", "no route", hint="wait")] if away else read(task)

        return attempt

    here = desk(reading)
    here.begin()
    here.work(until=lambda: here.told() == {"public.items": ("reading", "source.unreachable")})
    away.clear()
    here.work()
    assert here.told() == {}
    assert here.snapshots.failures == []
