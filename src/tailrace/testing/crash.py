"""The crash runner: a busy database, a pipeline that is killed at chosen moments, and a comparison by content.

The workload's rows carry a version that only grows, so that order can be checked per key and the final rows
compared exactly.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from tailrace.machine import java
from tailrace.testing.waiting import eventually

QUICK_SPARK = f'{{driver_memory: 1g, conf: {{spark.driver.extraJavaOptions: "{java.QUICK}"}}}}'
"""A platform's `spark` for runs that are short: the JVM compiles less and starts sooner."""
TABLES = ("accounts", "entries", "notes")
BULK_ROWS = 1_000
WHOM = ("tap", "driver", "tap", "both")
"""Who is killed how often; by chance alone, ten kills might spare the driver."""
EVERYBODY = ("workers", "driver", "tap", "both", "driver")
"""The same for sinks that must repeat nothing, whoever dies."""
GATE = 1_500
"""So many rows come between two kills, at most."""
BULK_SHARE = 0.01
DELETE_SHARE = 0.2
ROLLBACK_SHARE = 0.1
PACE_S = 0.02
_COLUMNS = "id bigint PRIMARY KEY, version bigint, amount numeric(12, 2), body text, tags text[], at timestamptz"


def seeds() -> list[int]:
    """Which stories to tell: `SEED=n` tells one again; `make soak SEEDS=n` has n new ones; else there is one."""
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])]
    first = random.SystemRandom().randrange(1 << 30)
    return list(range(first, first + int(os.environ.get("TAILRACE_SOAK_SEEDS") or "1")))


class CrashWorkload:
    """Single-row and 1,000-row transactions over three tables, from one seeded thread."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn, self._random = dsn, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)
        self.transactions = 0
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE SEQUENCE version")
            for table in TABLES:
                connection.execute(f"CREATE TABLE {table} ({_COLUMNS})")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the running transaction."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._stop.wait(PACE_S):
                self._transaction(connection)
                connection.commit()
                self.transactions += 1

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        table = self._random.choice(TABLES)
        if self._random.random() < BULK_SHARE:
            first = self._random.randrange(5_000)
            self._upsert(connection, table, range(first, first + BULK_ROWS))
            return
        key = self._random.randrange(2_000)
        if self._random.random() < DELETE_SHARE:
            connection.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
        else:
            self._upsert(connection, table, range(key, key + 1))

    def _upsert(self, connection: psycopg.Connection[Any], table: str, keys: range) -> None:
        connection.execute(
            f"INSERT INTO {table} "
            "SELECT g, nextval('version'), g / 7.0, md5(g::text), ARRAY['a', g::text], now() "
            "FROM generate_series(%s::bigint, %s::bigint) g "
            "ON CONFLICT (id) DO UPDATE SET version = nextval('version'), "
            "amount = EXCLUDED.amount + 1, at = now()",
            (keys.start, keys.stop - 1),
        )


def source_rows(dsn: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The tables as the mapper would spell them."""
    rows = {}
    with psycopg.connect(dsn) as connection:
        for table in TABLES:
            found = connection.execute(
                f"SELECT id, version, amount::text, body, tags, "
                f"to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM {table}"
            )
            for values in found:
                names = ("id", "version", "amount", "body", "tags", "at")
                rows[table, values[0]] = dict(zip(names, values, strict=True))
    return rows


def fold(events: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """What a consumer has who applies events in the order it got them."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        if event["op"] == "s":
            continue
        image = event["after"] or event["before"]
        key = (event["source"]["table"], image["id"])
        if event["op"] == "d":
            rows.pop(key, None)
        else:
            rows[key] = event["after"]
    return rows


def check_order(events: Iterable[dict[str, Any]]) -> int:
    """Per key, versions grow among first deliveries; a repeat has the id and the content of the first. Returns
    the number of repeats."""
    first: dict[str, dict[str, Any]] = {}
    newest: dict[tuple[str, int], int] = {}
    repeats = 0
    for event in events:
        known = first.setdefault(event["event_id"], event)
        if known is not event:
            assert known == event, f"event {event['event_id']} was delivered with two contents"
            repeats += 1
            continue
        if event["op"] in "ds":
            continue
        key = (event["source"]["table"], event["after"]["id"])
        version = event["after"]["version"]
        assert newest.get(key, -1) < version, f"{key}: version {version} after {newest[key]}"
        newest[key] = version
    return repeats


def read_files(root: Path) -> Iterator[dict[str, Any]]:
    """The file sink's events by span, then in file order; `_span` is the batch that wrote it."""
    names = sorted(root.rglob("*.jsonl"), key=lambda path: path.name)
    for name in names:
        start, end = name.name.split("-")[:2]
        with open(name) as file:
            for line in file:
                yield json.loads(line) | {"_span": (int(start), int(end))}


def check_transactions(events: Iterable[dict[str, Any]]) -> None:
    """Law 8: all rows of a transaction are in one batch."""
    spans: dict[str, set[tuple[int, int]]] = {}
    for event in events:
        spans.setdefault(event["transaction"]["id"], set()).add(event["_span"])
    split = {xid: found for xid, found in spans.items() if len(found) > 1}
    assert not split, f"transactions in several batches: {split}"


@dataclass
class Victim:
    """A `tailrace run` in a child process, and where its tap is found."""

    files: list[Path]
    platform: Path
    data_dir: Path
    source: str
    process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = [sys.executable, "-m", "tailrace", "run", *map(str, self.files)]
        command += ["--platform-config", str(self.platform), "--json", *options]
        with open(self.data_dir.with_suffix(".out"), "ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def tap_pid(self) -> int | None:
        """The running tap's pid; None while there is none."""
        try:
            status = json.loads((self.data_dir / "taps" / f"{self.source}.json").read_text())
        except FileNotFoundError:
            return None
        return int(status["pid"]) if status["state"] == "running" else None

    def worker_pids(self) -> list[int]:
        """Python processes that run Spark's tasks: the children of the process that forks them."""
        import psutil

        assert self.process is not None
        found = psutil.Process(self.process.pid).children(recursive=True)
        daemons: set[int] = set()
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                daemons |= {each.pid} if "tailrace.spark.daemon" in each.cmdline() else set()
        return [each.pid for each in found if {each.pid, each.ppid()} <= daemons]

    def kill(self, who: str) -> None:
        """SIGKILL the `tap`, the `driver`, `both` or Spark's `workers`; a killed driver is waited for."""
        assert self.process is not None
        if who == "workers":
            for pid in self.worker_pids():
                _kill(pid)
        tap = self.tap_pid()
        if who in ("tap", "both") and tap is not None:
            _kill(tap)
        if who in ("driver", "both"):
            _kill(self.process.pid)
            self.process.wait()

    def finish(self, timeout: float) -> int:
        """Wait for the end of a run that ends by itself."""
        assert self.process is not None
        return self.process.wait(timeout)

    def terminate(self, timeout: float) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def terminate_everyone(self, timeout: float) -> int:
        """SIGTERM to every process of the run at once, as a service manager does; twice to the first of them, as
        `timeout` does."""
        import psutil

        assert self.process is not None
        first = self.process.pid
        others = [each.pid for each in psutil.Process(first).children(recursive=True)]
        for pid in (*others, first, first):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return self.process.wait(timeout)

    def output(self) -> str:
        """The end of what it printed."""
        return self.data_dir.with_suffix(".out").read_text()[-3000:]


def _reached(progress: Iterator[int], gate: int) -> bool:
    return next(progress) >= gate


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_at_random(
    victim: Victim,
    progress: Iterator[int],
    kills: int,
    chance: random.Random,
    among: Sequence[str] = WHOM,
    within: int = GATE,
) -> list[str]:
    """Kill and restart `kills` times, each when `progress` (rows at the sinks) has grown by a random amount below
    `within`."""
    whom = [among[number % len(among)] for number in range(kills)]
    chance.shuffle(whom)
    for who in whom:
        gate = next(progress) + chance.randrange(1, within)
        eventually(partial(_reached, progress, gate), 120, what=victim.output)
        victim.kill(who)
        if who in ("driver", "both"):
            victim.start()
    return whom


NARROW = "CREATE TABLE {} (id int PRIMARY KEY, big text, v text)"
WIDE = 'CREATE TABLE {} (a text COLLATE "C", id int, big text, v text, PRIMARY KEY (a, id))'
BIG = 4000
"""Long enough to be stored out of line: updates of other columns leave it out."""


class Writers:
    """Random inserts, updates, partial updates, key changes, deletes and, seldom, truncates of two tables, from three
    threads. A table is there with rows before the first of them starts."""

    KEYS = 150
    WEIGHTS: ClassVar = {"insert": 30, "update": 30, "big": 10, "move": 10, "delete": 19, "truncate": 0.2}

    def __init__(self, dsn: str, seed: int, rows: int) -> None:
        self._dsn, self._seed = dsn, seed
        self.tables = (f"narrow_{seed}", f"wide_{seed}")
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(3)]
        self._fill(rows)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the running transactions."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _fill(self, rows: int) -> None:
        narrow, wide = self.tables
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for table, definition in ((narrow, NARROW), (wide, WIDE)):
                connection.execute(definition.format(table).encode())
                connection.execute(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL".encode())
            values = f"n, repeat('s', {BIG}), 'start' FROM generate_series(1, {rows}) n"
            connection.execute(f"INSERT INTO {narrow} SELECT {values}".encode())
            connection.execute(f"INSERT INTO {wide} SELECT 'k' || n % 7, {values}".encode())

    def _run(self, number: int) -> None:
        chance = random.Random(self._seed * 10 + number)
        with psycopg.connect(self._dsn) as connection:
            connection.execute("SET lock_timeout = '50ms'")
            connection.commit()
            while not self._stop.wait(2 * PACE_S):
                self._transaction(connection, chance)

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        failures = (psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected)
        try:
            for _ in range(chance.randrange(1, 4)):
                connection.execute(*self._statement(chance))
        except failures:
            connection.rollback()
        else:
            connection.rollback() if chance.random() < ROLLBACK_SHARE else connection.commit()

    def _statement(self, chance: random.Random) -> tuple[bytes, dict[str, Any]]:
        table = chance.choice(self.tables)
        key, text = ("'k' || %(n)s %% 7, ", "a = 'k' || %(n)s %% 7") if table.startswith("wide") else ("", "id = %(n)s")
        [action] = chance.choices(tuple(self.WEIGHTS), tuple(self.WEIGHTS.values()))
        statement = {
            "insert": f"INSERT INTO {table} VALUES ({key}%(n)s, %(big)s, %(v)s)",
            "update": f"UPDATE {table} SET v = %(v)s WHERE {text} AND id %% 5 = %(n)s %% 5",
            "big": f"UPDATE {table} SET big = %(big)s WHERE id = %(n)s",
            "move": f"UPDATE {table} SET id = id + {self.KEYS} WHERE id = %(n)s",
            "delete": f"DELETE FROM {table} WHERE id = %(n)s",
            "truncate": f"TRUNCATE {table}",
        }[action]
        values = {"n": chance.randrange(self.KEYS), "big": chance.choice("abc") * BIG, "v": f"v{chance.random()}"}
        return statement.encode(), values
