"""The stream on real servers: every kind of change, resumed without gap or repeat, acknowledged only when durable."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.postgres import pace
from tailrace.capture.postgres import stream as stream_module
from tailrace.changelog import LogReader, LogWriter
from tailrace.contracts import Capture
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Change, Database, folded, logged, resume_position

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]


def _brief(row: Change) -> tuple[Any, ...]:
    return row["op"], row["table"], row["key"], row["before"], row["after"]


@pytest.mark.parametrize("major", [15, 16, 18])
def test_every_kind_of_change(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = capturing(db)
    db.run(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET v = 'c' WHERE id = 1",
        "UPDATE t SET id = 3 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "TRUNCATE t RESTART IDENTITY",
        """SELECT pg_logical_emit_message(true, 'note', '{"k": 1}')""",
        "SELECT pg_logical_emit_message(false, 'aside', 'hey')",
    )
    rows = run.changes()
    assert [_brief(row) for row in rows] == [
        ("c", "t", '{"id":1}', None, '{"id":1,"v":"a"}'),
        ("c", "t", '{"id":2}', None, '{"id":2,"v":"b"}'),
        ("u", "t", '{"id":1}', None, '{"id":1,"v":"c"}'),
        ("d", "t", '{"id":1}', '{"id":1}', None),
        ("c", "t", '{"id":3}', None, '{"id":3,"v":"c"}'),
        ("d", "t", '{"id":2}', '{"id":2}', None),
        ("t", "t", None, None, None),
        ("m", "note", None, None, '{"k": 1}'),
        ("m", "aside", None, None, '{"content": "hey"}'),
    ]
    assert dict(rows[3]["headers"]) == {"new_key": '{"id":3}'}
    assert dict(rows[4]["headers"]) == {"old_key": '{"id":1}'}
    assert dict(rows[6]["headers"]) == {"cascade": "false", "restart_identity": "true"}
    assert {row["database"] for row in rows} == {db.name}
    assert {row["schema"] for row in rows[:7]} == {"public"}
    assert [(row["tx_ordinal"], row["tx_last"]) for row in rows[:5]] == [
        (0, False),
        (1, True),
        (0, True),
        (0, False),
        (1, True),
    ]
    assert len({row["position"] for row in rows}) == 7


@pytest.mark.parametrize("major", [15, 16, 18])
def test_replica_identities(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run(
        "CREATE TABLE wide (a int, b text, big text, PRIMARY KEY (b, a))",
        "ALTER TABLE wide REPLICA IDENTITY FULL",
        "CREATE TABLE bag (x int, y text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE coded (id int PRIMARY KEY, code text NOT NULL UNIQUE, v int)",
        "ALTER TABLE coded REPLICA IDENTITY USING INDEX coded_code_key",
        "CREATE TABLE pair (a int, b text, v int, PRIMARY KEY (a, b))",
    )
    run = capturing(db)
    db.run(
        "INSERT INTO wide VALUES (1, 'x', repeat('0123456789abcdef', 5))",
        "UPDATE wide SET a = 2",
        "INSERT INTO bag VALUES (1, 'x')",
        "UPDATE bag SET y = NULL",
        "DELETE FROM bag",
        "INSERT INTO coded VALUES (1, 'one', 1)",
        "UPDATE coded SET v = 2",
        "UPDATE coded SET code = 'uno'",
        "INSERT INTO pair VALUES (1, 'p', 0)",
        "DELETE FROM pair",
    )
    big = "0123456789abcdef" * 5
    assert [_brief(row) for row in run.changes()] == [
        ("c", "wide", '{"a":1,"b":"x"}', None, f'{{"a":1,"b":"x","big":"{big}"}}'),
        ("d", "wide", '{"a":1,"b":"x"}', f'{{"a":1,"b":"x","big":"{big}"}}', None),
        ("c", "wide", '{"a":2,"b":"x"}', None, f'{{"a":2,"b":"x","big":"{big}"}}'),
        ("c", "bag", None, None, '{"x":1,"y":"x"}'),
        ("u", "bag", None, '{"x":1,"y":"x"}', '{"x":1,"y":null}'),
        ("d", "bag", None, '{"x":1,"y":null}', None),
        ("c", "coded", '{"code":"one"}', None, '{"id":1,"code":"one","v":1}'),
        ("u", "coded", '{"code":"one"}', None, '{"id":1,"code":"one","v":2}'),
        ("d", "coded", '{"code":"one"}', '{"code":"one"}', None),
        ("c", "coded", '{"code":"uno"}', None, '{"id":1,"code":"uno","v":2}'),
        ("c", "pair", '{"a":1,"b":"p"}', None, '{"a":1,"b":"p","v":0}'),
        ("d", "pair", '{"a":1,"b":"p"}', '{"a":1,"b":"p"}', None),
    ]


@pytest.mark.parametrize("major", [15, 18])
def test_tables_without_an_identity_stay_usable(database: Fresh, capturing: Start, major: int) -> None:
    """Publishing their updates would make the user's own UPDATE fail."""
    db = database(major)
    db.run(
        "CREATE TABLE bare (x int)",
        "CREATE TABLE mute (id int PRIMARY KEY)",
        "ALTER TABLE mute REPLICA IDENTITY NOTHING",
        "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE keyed (id int PRIMARY KEY)",
    )
    run = capturing(db)
    for table, column in (("bare", "x"), ("mute", "id"), ("late", "id"), ("keyed", "id")):
        db.run(f"INSERT INTO {table} VALUES (1)", f"UPDATE {table} SET {column} = 2", f"DELETE FROM {table}")
    ops = [(row["table"], row["op"]) for row in run.changes()]
    assert [op for op in ops if op[0] != "keyed"] == [("bare", "c"), ("mute", "c"), ("late", "c")]
    assert [op for table, op in ops if table == "keyed"] == ["c", "d", "c", "d"]
    assert [warning.split()[0] for warning in run.stream.warnings] == ["public.bare", "public.late", "public.mute"]


def test_a_table_that_loses_its_key_leaves_the_publication_of_updates(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    capturing(db).stop()
    db.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
    run = capturing(db)
    db.run("INSERT INTO t VALUES (1)", "UPDATE t SET id = 2")
    assert [row["op"] for row in run.changes() if row["op"] != "s"] == ["c"]


@pytest.mark.parametrize("major", [15, 18])
def test_tables_made_while_the_tap_was_away(database: Fresh, capturing: Start, major: int) -> None:
    """The WAL written meanwhile is read with publications that must already have been there."""
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    capturing(db).stop()
    db.run("INSERT INTO t VALUES (1)", "CREATE TABLE bare (x int)", "CREATE TABLE keyed (id int PRIMARY KEY)")
    run = capturing(db)
    db.run("INSERT INTO bare VALUES (2)", "INSERT INTO keyed VALUES (3)")
    assert [(row["table"], row["after"]) for row in run.changes()] == [
        ("t", '{"id":1}'),
        ("bare", '{"x":2}'),
        ("keyed", '{"id":3}'),
    ]


def test_a_partitioned_table_is_one_table(db: Database, capturing: Start) -> None:
    db.run(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (10) TO (20)",
    )
    run = capturing(db)
    db.run("INSERT INTO p VALUES (1, 'a')", "UPDATE p SET id = 11", "DELETE FROM p")
    assert [(row["op"], row["table"], row["key"]) for row in run.changes()] == [
        ("c", "p", '{"id":1}'),
        ("d", "p", '{"id":1}'),
        ("c", "p", '{"id":11}'),
        ("d", "p", '{"id":11}'),
    ]


def test_the_origin_of_replicated_transactions(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = capturing(db)
    origin = f"from_{db.name}"
    try:
        db.run(
            f"SELECT pg_replication_origin_create('{origin}')",
            f"SELECT pg_replication_origin_session_setup('{origin}')",
            "INSERT INTO t VALUES (1)",
            "TRUNCATE t",
            "SELECT pg_replication_origin_session_reset()",
            "INSERT INTO t VALUES (2)",
        )
        rows = run.changes()
    finally:
        db.run(f"SELECT pg_replication_origin_drop('{origin}')")
    assert [dict(row["headers"] or []).get("origin") for row in rows] == [origin, origin, None]


def test_a_type_dropped_before_its_rows_were_read(db: Database, capturing: Start) -> None:
    db.run("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[])")
    capturing(db).stop()
    db.run("INSERT INTO t VALUES (1, 'ok', '{sad}')", "ALTER TABLE t DROP m, DROP ms", "DROP TYPE mood")
    [row] = [row for row in capturing(db).changes() if row["op"] != "s"]
    assert row["after"] == '{"id":1,"m":"ok","ms":"{sad}"}'


def test_a_table_dropped_before_its_rows_were_read(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE kept (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, v text)")
    db.run("ALTER TABLE t REPLICA IDENTITY FULL")
    capturing(db).stop()
    db.run("INSERT INTO t VALUES (1, 'x')", "DROP TABLE t")
    [row] = [row for row in capturing(db).changes() if row["op"] != "s"]
    assert (row["table"], row["after"]) == ("t", '{"id":1,"v":"x"}')


def test_a_large_transaction_spills_and_stays_whole(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = capturing(db, memory_bytes=1)
    db.run("INSERT INTO t VALUES (-1)")
    db.run("INSERT INTO t SELECT n, repeat(md5(n::text), 8) FROM generate_series(1, 20000) n")
    db.run("INSERT INTO t VALUES (0)")
    rows = run.changes()
    assert [json.loads(row["key"])["id"] for row in rows] == [-1, *range(1, 20001), 0]
    assert [row["tx_ordinal"] for row in rows] == [0, *range(20000), 0]
    assert [row["seq"] for row in rows if row["tx_last"]] == [0, 20000, 20001]
    assert len({row["tx_id"] for row in rows}) == 3
    assert max(len(line.frames) for line in LogReader(run.path).lines) > 3
    assert len(run.stream._rows.arena) == stream_module.MIN_ARENA_BYTES


def test_resumes_without_gap_or_repeat(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    for round_ in range(4):
        run = capturing(db)
        db.run(f"INSERT INTO t SELECT n, {round_} FROM generate_series({round_ * 100}, {round_ * 100 + 49}) n")
        run.stop()
        db.run(f"INSERT INTO t SELECT n, {round_} FROM generate_series({round_ * 100 + 50}, {round_ * 100 + 99}) n")
    rows = capturing(db).changes()
    assert [json.loads(row["key"])["id"] for row in rows] == list(range(400))
    assert len({(row["position"], row["tx_ordinal"]) for row in rows}) == 400


# -- Law 1 -------------------------------------------------------------------------------------------------------


class Gate(LogWriter):
    """A writer whose captures with rows wait at a gate before they become durable."""

    opened = threading.Event()
    waiting = threading.Event()

    def append(self, capture: Capture) -> int:
        if capture.frame is not None and capture.resume is not None:
            self.waiting.set()
            assert self.opened.wait(30)
        return super().append(capture)


def test_the_slot_moves_only_after_the_log_is_durable(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    Gate.opened.clear()
    Gate.waiting.clear()
    run = capturing(db, writer=Gate)
    before = db.slot_position()
    db.run("INSERT INTO t VALUES (1)")
    assert Gate.waiting.wait(30)
    run.stream.keep_alive()
    assert db.slot_position() == before <= resume_position(run.path)
    Gate.opened.set()
    run.changes()
    eventually(lambda: db.slot_position() > before)
    assert db.slot_position() <= resume_position(run.path)


def test_the_slot_is_never_ahead_of_the_log(db: Database, capturing: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "REPORT_S", 0.0)
    monkeypatch.setattr(pace, "IDLE_S", 0.0)
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA other", "CREATE TABLE other.noise (x int)")
    run = capturing(db)
    positions = set()
    with db.connect() as writer:
        for number in range(60):
            writer.execute("INSERT INTO t VALUES (%s)", [number])
            writer.execute("INSERT INTO other.noise VALUES (1)")
            confirmed = db.slot_position()
            assert confirmed <= resume_position(run.path)
            positions.add(confirmed)
    assert len(positions) > 3
    assert len(run.changes()) == 60


def test_idle_wal_is_let_go(db: Database, capturing: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAL of tables and databases nobody captures must not pile up behind the slot."""
    monkeypatch.setattr(pace, "IDLE_S", 0.1)
    monkeypatch.setattr(pace, "REPORT_S", 0.1)
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA other", "CREATE TABLE other.noise (x int)")
    run = capturing(db)
    db.run("INSERT INTO other.noise SELECT generate_series(1, 1000)")
    inside = db.value("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
    eventually(lambda: db.slot_position() >= inside)
    with psycopg.connect(db.server.dsn(), autocommit=True) as elsewhere:
        elsewhere.execute("SELECT pg_logical_emit_message(true, 'other database', repeat('x', 1000))")
        outside = db.value("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
    eventually(lambda: db.slot_position() >= outside)
    assert resume_position(run.path) >= db.slot_position()
    assert run.changes() == []


def test_the_server_is_answered_while_the_log_is_full(
    db: Database, capturing: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tap does when it is blocked, for longer than the server's patience."""
    monkeypatch.setattr(pace, "REPORT_S", 0.2)
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    blocked_until = [0.0]

    def pause() -> None:
        while time.monotonic() < blocked_until[0]:
            run.stream.keep_alive()
            threading.Event().wait(0.1)

    patience = f"{db.dsn}?options=-c%20wal_sender_timeout%3D2s"
    run = capturing(db, dsn=patience, pause=pause)
    query = "SELECT pid FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid WHERE database = %s"
    reader = db.value(query, db.name)
    blocked_until[0] = time.monotonic() + 5
    db.run("INSERT INTO t SELECT n, repeat('x', 2000) FROM generate_series(1, 5000) n")
    assert len(run.changes()) == 5000
    assert time.monotonic() >= blocked_until[0]
    assert db.value(query, db.name) == reader


def test_a_stop_during_a_flood_keeps_what_is_whole(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    capturing(db).stop()
    done = threading.Event()

    def flood() -> None:
        for number in range(100):
            db.run(f"INSERT INTO t SELECT n, 0 FROM generate_series({number * 3}, {number * 3 + 2}) n")
        done.set()

    threading.Thread(target=flood, daemon=True).start()
    while not done.is_set():
        capturing(db).stop()
    rows = capturing(db).changes()
    assert [json.loads(row["key"])["id"] for row in rows] == list(range(300))
    assert [row["tx_ordinal"] for row in rows] == [0, 1, 2] * 100


def test_reading_the_log_again_gives_the_table(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    run = capturing(db)
    with db.connect() as writer, closing(writer.cursor()) as cursor:
        for step in range(200):
            cursor.execute("INSERT INTO t VALUES (%s, 0) ON CONFLICT (id) DO UPDATE SET v = t.v + 1", [step * 7 % 40])
            if step % 5 == 0:
                cursor.execute("UPDATE t SET id = -id - 1 WHERE id = %s", [step % 40])
            if step % 11 == 0:
                cursor.execute("DELETE FROM t WHERE id < 0")
    state = {key: json.loads(key)["id"] for _, key in folded(run.changes())}
    assert sorted(state.values()) == sorted(number for (number,) in db.rows("SELECT id FROM t"))
    values = {row["id"]: row["v"] for row in folded(logged(Path(run.path))).values()}
    assert values == dict(db.rows("SELECT id, v FROM t"))
