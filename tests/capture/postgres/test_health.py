"""The slot's health: seen on every version, warned about in time, and a clear stop when it is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tailrace.capture.postgres import health
from tailrace.capture.postgres.catalog import PostgresCatalog, Table
from tailrace.capture.postgres.health import SlotGuard, SlotHealth
from tailrace.capture.postgres.slot_watch import HEARTBEAT, HEARTBEAT_BYTES
from tailrace.config.values import MIB
from tailrace.errors import SetupError, SourceError
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Database, TapProcess

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]
Run = Callable[..., TapProcess]

BUDGET = 48 * MIB
SWITCHES = 12


@pytest.fixture(scope="module")
def small() -> Iterator[PostgresServer]:
    """A server that keeps little WAL for slots, and makes no checkpoint by itself, which would end the state between
    endangered and lost."""
    settings = {"max_slot_wal_keep_size": "48MB", "min_wal_size": "32MB", "max_wal_size": "1GB"}
    with PostgresServer(18, settings=settings) as server:
        yield server


@pytest.fixture
def tight(small: PostgresServer) -> Iterator[Database]:
    with Database(small) as db:
        db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE noise (id int)")
        yield db


@pytest.fixture
def catalog(tight: Database) -> Iterator[PostgresCatalog]:
    with closing(PostgresCatalog(tight.dsn)) as opened:
        yield opened


@pytest.mark.parametrize("major", [15, 16, 18])
def test_a_look_at_a_slot(database: Fresh, major: int) -> None:
    db = database(major)
    db.run(f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')")
    with closing(PostgresCatalog(db.dsn)) as catalog:
        found = health.look(catalog, db.name)
        assert found is not None
        assert (found.wal_status, found.safe_wal_size, found.budget, found.reason) == ("reserved", None, None, "")
        assert found.wal_lsn > found.held_bytes > 0
        assert health.check(db.name, found) == []
        assert health.look(catalog, "no_such_slot") is None


def test_a_slot_that_fills_its_budget(tight: Database, catalog: PostgresCatalog) -> None:
    """Warnings come before the loss, and the time to it is told."""
    tight.run(f"SELECT pg_create_logical_replication_slot('{tight.name}', 'pgoutput')")
    guard = SlotGuard(catalog, tight.name)
    first = guard.read(100.0, 0, 0.0)
    assert (first.findings, first.time_to_loss_s) == ((), None)
    for _ in range(3):
        _fill(tight)
    second = guard.read(110.0, 0, 0.0)
    assert [one.code for one in second.findings] == ["source.slot_filling"]
    assert first.safe_wal_size is not None
    assert second.safe_wal_size is not None
    left = 10 * second.safe_wal_size / (first.safe_wal_size - second.safe_wal_size)
    assert second.time_to_loss_s == pytest.approx(left, abs=0.1)
    while (found := health.look(catalog, tight.name)) and found.wal_status != "unreserved":
        _fill(tight)
    assert [one.code for one in guard.read(120.0, 0, 0.0).findings] == ["source.slot_endangered"]
    tight.run("CHECKPOINT")
    with pytest.raises(SourceError, match="lost its WAL") as lost:
        guard.read(130.0, 0, 0.0)
    assert lost.value.code == "source.position_lost"
    assert "tailrace snapshot PIPELINE.yaml --repair" in lost.value.hint


def test_the_lag_in_seconds_is_bound_by_looks_and_commits(tight: Database, catalog: PostgresCatalog) -> None:
    tight.run(f"SELECT pg_create_logical_replication_slot('{tight.name}', 'pgoutput')")
    guard = SlotGuard(catalog, tight.name)
    assert guard.read(100.0, 0, 0.0).lag_s is None
    seen = guard.wal_lsn
    tight.run("INSERT INTO t VALUES (1)")
    behind = guard.read(110.0, seen, 0.0)
    assert behind.lag_s == 10.0
    assert behind.lag_bytes > 0
    assert guard.read(120.0, seen, 118.0).lag_s == 2.0
    caught_up = guard.read(130.0, 1 << 62, 0.0)
    assert (caught_up.lag_bytes, caught_up.lag_s) == (0, 0.0)


@pytest.mark.parametrize(("status", "reason"), [("lost", ""), ("reserved", "rows_removed"), ("lost", "idle_timeout")])
def test_what_counts_as_lost(status: str, reason: str) -> None:
    with pytest.raises(SourceError):
        health.check("s", SlotHealth(status, 1, 0, None, None, reason))


def test_a_slot_that_loses_its_wal_stops_the_tap(tight: Database, tap: Run) -> None:
    running = tap(tight)
    running.until("running")
    running.process.send_signal(signal.SIGSTOP)
    query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    for _ in range(SWITCHES):
        _fill(tight)
        tight.run("CHECKPOINT")
        if tight.value(query, tight.source().slot_name) == "lost":
            break
    running.process.send_signal(signal.SIGCONT)
    _assert_lost(running)


def test_a_slot_that_is_dropped_under_the_tap(tight: Database, tap: Run) -> None:
    running = tap(tight)
    running.until("running")
    tight.drop_slots()
    _assert_lost(running)


def test_the_status_tells_lag_and_budget(tight: Database, tap: Run) -> None:
    running = tap(tight)
    tight.run("INSERT INTO t VALUES (1)")
    status = eventually(lambda: found if (found := running.status()).get("wal_status") else None)
    assert status is not None
    assert status["wal_status"] == "reserved"
    assert 0 < status["safe_wal_size"] <= BUDGET + 32 * MIB
    assert status.keys() >= {"lag_bytes", "lag_s", "held_bytes", "time_to_loss_s"}


@pytest.mark.parametrize(("mib", "codes"), [(1, []), (14, ["source.wal_budget"]), (24, None)])
def test_the_room_for_a_snapshot(tight: Database, catalog: PostgresCatalog, mib: int, codes: list[str] | None) -> None:
    tight.run(
        "CREATE TABLE big (id int, filler text) PARTITION BY RANGE (id)",
        "CREATE TABLE big_1 PARTITION OF big FOR VALUES FROM (0) TO (1000000)",
        f"INSERT INTO big SELECT g, repeat('x', 1000) FROM generate_series(1, {mib * 910}) g",
    )
    tables = [Table("public", "t", True), Table("public", "big", False)]
    if codes is None:
        with pytest.raises(SetupError) as refused:
            health.preflight(catalog, "none_yet", tables)
        assert refused.value.code == "source.wal_budget"
        assert "max_slot_wal_keep_size" in refused.value.hint
    else:
        assert [one.code for one in health.preflight(catalog, "none_yet", tables)] == codes


def test_room_without_a_bound(db: Database) -> None:
    with closing(PostgresCatalog(db.dsn)) as catalog:
        assert health.preflight(catalog, "none_yet", []) == []


def test_an_idle_stream_emits_heartbeats_that_never_reach_the_log(db: Database, capturing: Start) -> None:
    """Where others write WAL; not where nobody does."""
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.run(f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')", "CREATE PUBLICATION p")
    run = capturing(db, heartbeat="100ms")
    assert run.stream.vitals.durable_lsn
    for expected in (1, 2):
        before = db.value("SELECT pg_current_wal_lsn()::text")
        db.run(f"SELECT pg_logical_emit_message(true, 'mark-noise', repeat('x', {HEARTBEAT_BYTES}))")
        eventually(lambda n=expected: _heartbeats(db) == n)  # type: ignore[misc]
        assert db.value("SELECT %s::pg_lsn < pg_current_wal_lsn()", before)
    assert run.changes() == []
    run.stop()


def test_heartbeats_can_be_off(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.run(f"SELECT pg_create_logical_replication_slot('{db.name}', 'pgoutput')", "CREATE PUBLICATION p")
    run = capturing(db, heartbeat="0s")
    db.run(f"SELECT pg_logical_emit_message(true, 'mark-noise', repeat('x', {HEARTBEAT_BYTES}))")
    run.changes()
    run.stop()
    assert _heartbeats(db) == 0


def test_a_heartbeat_alone_moves_the_position(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = capturing(db, heartbeat="0s")
    lsn = db.value("SELECT (pg_logical_emit_message(false, %s, '') - '0/0')::int8", HEARTBEAT)
    eventually(lambda: run.db.source().is_past(run.stream.settled(), f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"))
    assert run.changes() == []


def _fill(db: Database) -> None:
    """One segment of WAL more."""
    db.run("INSERT INTO noise VALUES (1)", "SELECT pg_switch_wal()")


def _assert_lost(running: TapProcess) -> None:
    assert running.wait() == 1
    error = running.until("failed")["error"]
    assert error["code"] == "source.position_lost"
    assert "tailrace snapshot PIPELINE.yaml --repair" in error["hint"]


def _heartbeats(db: Database) -> int:
    query: Any = (
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p', 'messages', 'true') WHERE position(%s::bytea IN data) > 0"
    )
    return int(db.value(query, db.name, HEARTBEAT.encode()))
