"""A required sink is away while its source is written to: memory stays as it was, the log fills up to its bound, then
the source's slot keeps the rest, and the status shows both. Afterwards the sink has everything, once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
import pytest

from tailrace.machine import java
from tailrace.testing.servers import PostgresServer, RedisServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.sinks.redis_contents import client_of, events_of
from tests.whole import System

MIB = 1 << 20
BOUND, SEGMENT = 6 * MIB, 1 * MIB
HELD = 48 * MIB
"""What is written beyond the log, at least: far more than a tap may grow by that reads none of it."""
TAP_GROWTH, GROWTH = 16 * MIB, 1.15
"""The tap's, and the share of all. A heap that is there from the start (`-Xms`) does not grow."""
HEAP = f'{{driver_memory: 512m, conf: {{spark.driver.extraJavaOptions: "{java.QUICK} -Xms512m -XX:+AlwaysPreTouch"}}}}'
SINK = """{{type: redis, config: {{id: cache, uri: "URI", stream: rows, required: true,
    retry: {{initial_wait_seconds: 0.2, max_wait_seconds: 1}}}}}}"""
ROWS = 50
"""Rows of a transaction, of 1,500 bytes each."""
INSERT = f"INSERT INTO t (body) SELECT repeat(md5(random()::text), 47) FROM generate_series(1, {ROWS})"
PAUSE_S, SOAK_PAUSE_S = 0.02, 0.75
SCALE = float(os.environ.get("TAILRACE_SOAK_SCALE", "1"))
HOUR_S = 3600.0 * SCALE


class Memory(NamedTuple):
    """In bytes, of the tap and of all processes of a run; a page that several share counts once."""

    tap: int
    whole: int


class Load:
    """Rows from a thread, a transaction every `pause_s` seconds, while it is entered."""

    def __init__(self, dsn: str, pause_s: float) -> None:
        self._dsn, self._pause_s = dsn, pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.wait(self._pause_s):
                connection.execute(INSERT.encode())


class Outage(System):
    """The pipeline, and what it shows and takes."""

    def __init__(self, db: Database, folder: Path, redis: RedisServer) -> None:
        super().__init__(db, folder, SINK.replace("URI", redis.uri), mode="never")
        self.redis = redis
        log = f"log: {{segment_bytes: {SEGMENT}, retention: {{max_bytes: {BOUND}}}}}"
        self.platform.write_text(
            f"{{data_dir: {folder}/data, {log}, tap: {{memory_bytes: 4MiB}}, spark: {HEAP}, retry: {{max: 1s}}}}"
        )

    def status(self) -> dict[str, Any]:
        lines = self.victim.data_dir.with_suffix(".out").read_text().splitlines()
        told = [line for line in lines if line.startswith('{"started"') and line.endswith("}")]
        return json.loads(told[-1]) if told else {"taps": [{}], "sinks": [{}]}

    def tap(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["taps"][0]
        return found

    def states(self) -> tuple[str, str]:
        """The tap's and the sink's."""
        status = self.status()
        return status["taps"][0]["state"], status["sinks"][0]["state"]

    def log_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.folder / "data" / "logs").rglob("*.seg"))

    def memory(self) -> Memory:
        assert self.victim.process is not None
        first, tap = psutil.Process(self.victim.process.pid), self.victim.tap_pid() or self.tap()["pid"]
        found = Counter[int]()
        for each in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[each.pid] = each.memory_full_info().pss
        return Memory(found[tap], found.total())

    def in_redis(self) -> int:
        with client_of(self.redis) as client:
            return int(client.xlen("rows"))

    def written(self) -> int:
        return int(self.db.value("SELECT count(*) FROM t"))


@pytest.fixture
def outage(postgres: PostgresServer, tmp_path: Path) -> Iterator[Outage]:
    with Database(postgres) as db, RedisServer() as redis:
        db.run("CREATE TABLE t (id bigserial PRIMARY KEY, body text)", "ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
        made = Outage(db, tmp_path, redis)
        yield made
        if made.victim.process is not None and made.victim.process.poll() is None:
            made.victim.kill("both")


@pytest.mark.timeout(240)
def test_log_and_slot_hold_what_waits_and_memory_is_flat(outage: Outage) -> None:
    tell(outage, PAUSE_S, 100, time.monotonic())


@pytest.mark.soak
def test_an_hour(outage: Outage) -> None:
    tell(outage, SOAK_PAUSE_S, HOUR_S + 1200, time.monotonic() + HOUR_S)


def tell(outage: Outage, pause_s: float, patience_s: float, end: float) -> None:
    """Until `end` at least, and until the slot holds enough."""
    outage.start()
    outage.db.run(INSERT)
    eventually(lambda: outage.in_redis() == ROWS, 60, every=0.1, what=outage.victim.output)
    with Load(outage.db.dsn, pause_s):
        eventually(lambda: outage.in_redis() > 20 * ROWS, 60, every=0.1, what=outage.victim.output)
        before = outage.memory()
        outage.redis.stop()
        eventually(lambda: outage.states() == ("blocked", "waiting"), 100, every=0.2, what=outage.victim.output)
        memory, log = watch(outage, end, patience_s)
        check_shown(outage)
    assert memory.tap < before.tap + TAP_GROWTH and memory.whole < GROWTH * before.whole, (before, memory)
    assert BOUND < log < BOUND + 2 * SEGMENT
    outage.redis.start()
    written = outage.written()
    eventually(lambda: outage.in_redis() >= written, patience_s, every=0.5, what=outage.victim.output)
    eventually(lambda: outage.tap()["state"] == "running", 60, every=0.2, what=outage.victim.output)
    assert outage.victim.terminate(60) == 0, outage.victim.output()
    assert delivered(outage) == outage.db.rows("SELECT id, md5(body) FROM t ORDER BY id")


def watch(outage: Outage, end: float, patience_s: float) -> tuple[Memory, int]:
    """The most memory and the longest log that there were until then."""
    memory: list[Memory] = []
    log: list[int] = []

    def over() -> bool:
        memory.append(outage.memory())
        log.append(outage.log_bytes())
        return time.monotonic() > end and (outage.tap()["held_bytes"] or 0) > HELD

    eventually(over, patience_s, every=0.5, what=outage.victim.output)
    taps, wholes = zip(*memory, strict=True)
    return Memory(max(taps), max(wholes)), max(log)


def check_shown(outage: Outage) -> None:
    """Who holds the log, that the slot holds the rest, and that the sink waits."""
    status = outage.status()
    [tap], [sink] = status["taps"], status["sinks"]
    assert sink["error"]["code"] == "sink.unavailable"
    [holder] = tap["holders"]
    assert holder["name"] == "system/cache"
    assert holder["rows"] >= sink["lag_rows"] > 0, "a sink reports its place to the log seldom: it may be further"
    assert BOUND / 2 < holder["bytes"] <= outage.log_bytes()
    assert [warning for warning in tap["warnings"] if "the log is full" in warning and "log forget" in warning]
    assert outage.db.slot_position() == tap["durable_lsn"] and tap["held_bytes"] > HELD


def delivered(outage: Outage) -> list[tuple[int, str]]:
    rows = [event["after"] for event in events_of(outage.redis, "rows")]
    return sorted((row["id"], hashlib.md5(row["body"].encode()).hexdigest()) for row in rows)
