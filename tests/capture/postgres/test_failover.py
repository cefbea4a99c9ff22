"""A real standby is promoted: the capture goes on where the new server has everything, and stops where it has not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.postgres.timelines import switch_points
from tailrace.changelog import LogReader, LogWriter
from tailrace.errors import SourceError
from tailrace.testing.servers import PostgresServer, PostgresStandby
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Database, folded

MEANWHILE = 20


@dataclass
class Failover:
    """What is left after it: the promoted server, and per source its log, some at the old primary's last word."""

    old: PostgresServer
    new: PostgresStandby
    databases: Mapping[str, Database]
    folder: Path
    on_standby: BaseException
    while_promoted: BaseException

    def there(self, name: str) -> Database:
        return _same(self.databases[name], self.new)

    def log(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def failover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failover]:
    """`kept`: slot copied, all in time. `slotless`: its slot was never copied. `ahead`: captured what was never sent.
    `reader`: read from the standby all along."""
    folder = tmp_path_factory.mktemp("failover")
    with ExitStack() as opened:
        primary = opened.enter_context(PostgresServer(18))
        databases = {name: opened.enter_context(_Lasting(primary)) for name in ("kept", "slotless", "ahead")}
        for name, db in databases.items():
            db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
            with Capturing(db, folder / name) as run:
                db.run("INSERT INTO t SELECT g, 'first' FROM generate_series(1, 10) g")
                run.changes()
        _uncopied(databases["slotless"])
        _uncopied(databases["ahead"])
        standby = opened.enter_context(PostgresStandby(primary, settings={"sync_replication_slots": "on"}))
        _copy_slot(databases["kept"], standby, folder / "kept")
        reader = opened.enter_context(_Lasting(primary))
        reader.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION mine FOR TABLE t")
        databases["reader"] = reader
        eventually(standby.received)
        _make_slot(reader, standby)
        databases["kept"].run(f"INSERT INTO t SELECT g, 'meanwhile' FROM generate_series(101, {100 + MEANWHILE}) g")
        eventually(standby.received)
        on_standby = _failure(_same(databases["kept"], standby), folder / "kept")
        standby.stop()
        with Capturing(databases["ahead"], folder / "ahead") as run:
            databases["ahead"].run("INSERT INTO t VALUES (99, 'never sent')")
            run.changes()
        primary.kill()
        standby.start()
        with Capturing(_same(reader, standby), folder / "reader", publication="mine") as run:
            standby.promote()
            _same(reader, standby).run("INSERT INTO t VALUES (1, 'new timeline')")
            while_promoted = run.failure()
        yield Failover(primary, standby, databases, folder, on_standby, while_promoted)


def test_the_capture_goes_on_at_the_promoted_server(failover: Failover) -> None:
    db = failover.there("kept")
    db.run("UPDATE t SET v = 'after' WHERE id <= 10", "INSERT INTO t VALUES (1000, 'after')")
    with Capturing(db, failover.log("kept")) as run:
        db.run("DELETE FROM t WHERE id = 101")
        changes = run.changes()
        run.stop()
    rows = {f'{{"id":{key}}}': value for key, value in db.rows("SELECT id, v FROM t")}
    assert {key: row["v"] for (_, key), row in folded(changes).items()} == rows
    assert sum(row["op"] == "c" for row in changes) == len({row["key"] for row in changes if row["op"] == "c"})
    assert _resume(failover.log("kept"))["timeline"] == "2"


def test_a_former_primary_is_recognised(failover: Failover) -> None:
    """Whoever follows the promoted server must not go back: the two have parted."""
    with Capturing(failover.there("kept"), failover.log("kept")) as run:
        run.stop()
    failover.old.start()
    error = _failure(failover.databases["kept"], failover.log("kept"))
    failover.old.stop()
    assert error.code == "source.wrong_server"
    assert "timeline 1" in error.message


def test_a_slot_the_promoted_server_does_not_have(failover: Failover) -> None:
    error = _failure(failover.there("slotless"), failover.log("slotless"))
    assert error.code == "source.position_lost"
    assert "is gone" in error.message
    assert "tailrace snapshot PIPELINE.yaml --repair" in error.hint


def test_a_position_the_promoted_server_never_reached(failover: Failover) -> None:
    """Even with a slot: the log has changes that are no part of this server's history."""
    db = failover.there("ahead")
    db.run("CREATE TABLE filler (id int)", "INSERT INTO filler SELECT generate_series(1, 100000)")
    error = _failure(db, failover.log("ahead"))
    assert error.code == "source.position_lost"
    assert "was promoted at" in error.message
    assert "--repair" in error.hint


def test_a_standbys_copy_of_the_slot_is_waited_for(failover: Failover) -> None:
    assert isinstance(failover.on_standby, SourceError)
    assert failover.on_standby.code == "source.standby"


def test_a_standby_that_is_promoted_while_it_is_read(failover: Failover) -> None:
    """No position of the new timeline is ever written down as one of the old."""
    assert isinstance(failover.while_promoted, SourceError)
    assert failover.while_promoted.code == "source.disconnected"
    assert _resume(failover.log("reader"))["timeline"] == "1"
    with Capturing(failover.there("reader"), failover.log("reader"), publication="mine") as run:
        assert [row["key"] for row in run.changes()] == ['{"id":1}']
        run.stop()
    assert _resume(failover.log("reader"))["timeline"] == "2"


def test_the_history_of_a_timeline() -> None:
    text = "1\t0/A000098\tno recovery target specified\n\n# by hand\n2\t1/B0000A0\tbefore 2000-01-01\n"
    assert switch_points(text) == {1: 0xA000098, 2: 0x1_0B0000A0}


class _Lasting(Database):
    """A database that goes with its server, which may be dead by then."""

    def __exit__(self, *_: object) -> None:
        pass


def _same(db: Database, server: PostgresServer) -> Database:
    found = Database(server)
    found.name = db.name
    return found


def _uncopied(db: Database) -> None:
    """Make its slot one that standbys do not copy, as PostgreSQL before 17 has them."""
    with psycopg.connect(db.dsn, replication="database", autocommit=True) as connection:
        connection.execute(f"ALTER_REPLICATION_SLOT {db.source().slot_name} (FAILOVER false)")


def _copy_slot(db: Database, standby: PostgresStandby, log: Path) -> None:
    """Until the standby holds the slot: that takes the slot to move past the standby's start."""
    query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"

    def copied() -> bool:
        db.run("SELECT pg_log_standby_snapshot()")
        run.changes()
        return there.execute(query, [db.source().slot_name]).fetchall() == [(True,)]

    with Capturing(db, log) as run, _same(db, standby).connect() as there:
        eventually(copied)
        run.stop()


def _make_slot(db: Database, standby: PostgresStandby) -> None:
    """On the standby itself, which takes a word of the primary about its transactions."""
    create = f"SELECT pg_create_logical_replication_slot('{db.source().slot_name}', 'pgoutput')"
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(_same(db, standby).run, create)
        eventually(lambda: db.rows("SELECT pg_log_standby_snapshot()") and making.done())
        making.result()


def _failure(db: Database, log: Path) -> Any:
    with Capturing(db, log) as run:
        return run.failure()


def _resume(log: Path) -> Any:
    writer = LogWriter(log, LogReader(log).source)
    writer.close()
    return writer.state().resume
