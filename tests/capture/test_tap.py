"""The tap as a process: drained by SIGTERM, safe to kill at any instant, bound to its parent, honest in its status."""

from __future__ import annotations

import itertools
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.changelog import Subscribers, head
from tailrace.surfaces.cli import app
from tailrace.testing.servers import PostgresServer
from tailrace.testing.servers.process import free_port
from tailrace.testing.waiting import eventually
from tests.capture.running import Change, Database, TapProcess, folded, logged

Start = Callable[..., TapProcess]


@pytest.fixture
def shop(db: Database) -> Database:
    _make_tables(db)
    return db


def test_sigterm_drains(shop: Database, tap: Start) -> None:
    running = tap(shop)
    running.until("running")
    shop.run("INSERT INTO a SELECT n, 0 FROM generate_series(1, 100) n")
    assert len(running.changes()) == 100
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    status = running.status()
    assert (status["state"], status["rows"]) == ("stopped", 101)
    assert "error" not in status


def test_killed_again_and_again_it_loses_and_repeats_nothing(shop: Database, tap: Start) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")
    running = tap(shop)
    running.until("running")
    with Workload(shop, chance) as workload:
        for _ in range(3):
            goal = head(running.path) + chance.randint(1, 200)
            eventually(lambda running=running, goal=goal: head(running.path) >= goal, 60)  # type: ignore[misc]
            running.process.kill()
            running.wait()
            running = tap(shop)
    assert workload.transactions > 0
    _assert_captured(shop, running.changes())


def test_it_reconnects_when_the_server_comes_back(tap: Start) -> None:
    with PostgresServer(18) as server, Database(server) as db:
        _make_tables(db)
        running = tap(db)
        running.until("running")
        with Workload(db, random.Random(1)) as workload:
            for stop in (server.stop, server.kill):
                workload.until(workload.transactions + 20)
                stop()
                waiting = running.until("waiting")
                assert waiting["error"]["code"] in ("source.disconnected", "source.unreachable")
                server.start()
                running.until("running")
            workload.until(workload.transactions + 20)
        _assert_captured(db, running.changes())
        assert running.process.poll() is None


def test_it_says_that_it_waits_as_long_as_it_does(shop: Database, tap: Start) -> None:
    nobody = {"dsn": f"postgresql://localhost:{free_port()}/nobody"}
    first = (waiting := tap(shop, config=nobody, retry_initial_s=600.0, retry_max_s=600.0)).until("waiting")
    eventually(lambda: waiting.status()["at"] > first["at"] and waiting.status()["retry_in_s"] < first["retry_in_s"])


def test_it_ends_with_its_parent(shop: Database, tap: Start) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        running = tap(shop, parent=parent.pid)
        running.until("running")
        parent.kill()
    assert running.wait() != 0
    shop.run("INSERT INTO a VALUES (1, 0)")
    assert logged(running.path) == []


def test_it_does_not_start_for_a_parent_that_is_gone(shop: Database, tap: Start) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert tap(shop, parent=gone.pid).wait() == 1


def test_a_failure_is_its_last_status(shop: Database, tap: Start) -> None:
    failed = tap(shop, config={"tables": ["public.nothing"]})
    assert failed.wait() == 3
    status = failed.status()
    assert (status["state"], status["error"]["code"]) == ("failed", "source.table_missing")
    assert status["error"]["hint"]
    assert _events(failed) == ["source.started"], "and no trace of Python's"


def test_the_slot_keeps_what_sinks_have_not_delivered(shop: Database, tap: Start) -> None:
    running = tap(shop, awaited=[[["shop/files"], 1]])
    running.until("running")
    shop.run("INSERT INTO a SELECT n, 0 FROM generate_series(1, 100) n")
    before = confirmed(shop)
    assert len(running.changes()) == 100
    eventually(lambda: running.status()["settled"] > before)
    assert confirmed(shop) == before
    subscribers = Subscribers(running.path)
    subscribers.report("shop/files", head(running.path), required=True)
    eventually(lambda: confirmed(shop) > before)
    running.process.kill()
    running.wait()
    assert len(tap(shop, awaited=[[["shop/files"], 1]]).changes()) == 100


def confirmed(db: Database) -> str:
    [(lsn,)] = db.rows("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()")
    return str(lsn)


def test_it_waits_for_a_server_that_is_away_and_drains_meanwhile(shop: Database, tap: Start) -> None:
    away = psycopg.conninfo.make_conninfo(shop.dsn, port="1")
    waiting = tap(shop, config={"dsn": away})
    status = waiting.until("waiting")
    assert status["error"]["code"] == "source.unreachable"
    assert shop.server.password not in json.dumps(status)
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.wait() == 0


def test_a_second_tap_on_a_log_is_refused(shop: Database, tap: Start) -> None:
    tap(shop).until("running")
    second = tap(shop, status="second.json")
    assert second.wait() == 1
    assert second.status()["error"]["code"] == "log.locked"


def test_a_lost_control_store_is_told(shop: Database, tap: Start) -> None:
    first = tap(shop)
    first.until("running")
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0
    for file in first.path.parent.glob("control.db*"):
        file.unlink()
    again = tap(shop)
    assert again.wait() == 3
    assert again.status()["error"]["code"] == "store.lost"


def test_a_log_that_is_no_folder_is_named(shop: Database, tap: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a folder")
    failed = tap(shop)
    assert failed.wait() == 1
    assert failed.status()["error"]["code"] == "log.io"
    assert _events(failed) == ["source.started"], "and no trace of Python's"


def test_at_the_bound_it_pauses_for_a_required_sink(shop: Database, tap: Start) -> None:
    """Nothing a required sink has not read is dropped: the tap waits, and says for whom."""
    first = tap(shop)
    first.until("running")
    shop.run("INSERT INTO a SELECT n, 0 FROM generate_series(1, 100) n")
    first.changes()
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    Subscribers(first.path).report("slow", 0, required=True)
    Subscribers(first.path).report("shop/old", 0, required=True)
    blocked = tap(shop, retention_bytes=1)
    status = blocked.until("blocked")
    assert status["blocked_by"] == ["shop/old", "slow"]
    assert [holder["rows"] for holder in status["holders"]] == [head(first.path)] * 2
    assert "the log is full" in status["warnings"][0] and "shop/old has not read" in status["warnings"][0]
    [command] = re.findall(r"`tailrace (.*)`", status["warnings"][0])
    assert CliRunner().invoke(app, [*shlex.split(command), "--yes"]).exit_code == 0
    eventually(lambda: blocked.status()["blocked_by"] == ["slow"])
    Subscribers(first.path).report("slow", head(first.path), required=True)
    blocked.until("running")
    shop.run("INSERT INTO a VALUES (0, 0)")
    eventually(lambda: '{"id":0}' in [row["key"] for row in logged(blocked.path)])


def test_the_log_outgrows_its_bound_by_little(shop: Database, tap: Start) -> None:
    """However fast it grows: each segment is a reason to look."""
    running = tap(shop, retention_bytes=2 << 20, memory_bytes=2 << 20)
    running.until("running")
    Subscribers(running.path).report("shop/slow", 0, required=True)
    noise = "(SELECT string_agg(md5(n::text || random()), '') FROM generate_series(1, 3000) n)"
    shop.run(*[f"SELECT pg_logical_emit_message(true, 'noise', {noise})"] * 100)
    running.until("blocked")
    assert sum(file.stat().st_size for file in running.path.rglob("*.seg")) < 4 << 20


class Workload:
    """Transactions of one to forty rows over three tables from a thread, until told to stop; survives restarts."""

    def __init__(self, db: Database, chance: random.Random) -> None:
        self._db, self._chance = db, chance
        self.transactions = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Workload:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def until(self, transactions: int) -> None:
        eventually(lambda: self.transactions >= transactions)

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._db.dsn) as connection:
                while not self._stop.is_set():
                    self._transaction(connection)
                    connection.commit()
                    self.transactions += 1

    def _transaction(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        for _ in range(self._chance.choice([1, 1, 1, 40])):
            table, key = self._chance.choice("abc"), self._chance.randint(1, 60)
            connection.execute(
                f"INSERT INTO {table} VALUES ({key}, 1) ON CONFLICT (id) DO UPDATE SET v = {table}.v + 1".encode()
            )
            if self._chance.random() < 0.2:
                connection.execute(f"DELETE FROM {self._chance.choice('abc')} WHERE id = {key}".encode())


def _make_tables(db: Database) -> None:
    db.run(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in "abc"))


def _assert_captured(db: Database, rows: list[Change]) -> None:
    """The log folded by key is the source; transactions are whole and none is there twice."""
    source = {
        (table, f'{{"id":{number}}}'): {"id": number, "v": value}
        for table in "abc"
        for number, value in db.rows(f"SELECT id, v FROM {table}")
    }
    assert folded(rows) == source
    transactions = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["tx_id"])]
    for members in transactions:
        assert [row["tx_ordinal"] for row in members] == list(range(len(members)))
        assert [row["tx_last"] for row in members] == [False] * (len(members) - 1) + [True]
    assert len({members[0]["tx_id"] for members in transactions}) == len(transactions)


def _events(tap: TapProcess) -> list[str]:
    """What it logged; whatever else is on its standard error is no JSON."""
    return [json.loads(line)["event"] for line in _stderr(tap).splitlines()]


def _stderr(tap: TapProcess) -> str:
    assert tap.process.stderr is not None
    return tap.process.stderr.read()
