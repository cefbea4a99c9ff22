"""Streams are exactly-once: kill the pipeline, and the server, at any instant; each event is there once (Law 4).

Seeds are printed; `SEED=n pytest tests/sinks/test_redis_crash.py` tells one story again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer, RedisServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.events import check_events
from tests.sinks.redis_contents import client_of, events_of
from tests.test_crash import catch_up

KILLS, SOAK_KILLS = 5, 50
STREAMS = [f"crash:{table}" for table in crash.TABLES]


@pytest.fixture
def place(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[Database, RedisServer, crash.Victim]]:
    with Database(postgres) as db, RedisServer() as target:
        pipeline, platform = tmp_path / "pipeline.yaml", tmp_path / "platform.yaml"
        pipeline.write_text(
            f"""
metadata: {{name: crash, tenant: acme}}
spec:
  source: {{type: postgres, config: {{id: crash, dsn: "{db.dsn}", tables: [public.*]}}}}
  batch: {{max_events: 4000}}
  sinks:
    - {{type: redis, config: {{id: redis, uri: "{target.uri}", stream: "crash:${{source.table}}"}}}}
"""
        )
        spark = f"spark: {crash.QUICK_SPARK}"
        platform.write_text(f"{{data_dir: {tmp_path}/data, {spark}, retry: {{initial: 100ms, max: 2s}}}}")
        victim = crash.Victim([pipeline], platform, tmp_path / "data", "crash")
        yield db, target, victim
        if victim.process is not None and victim.process.poll() is None:
            victim.kill("both")


@pytest.mark.timeout(600)
def test_five_kills(place: tuple[Database, RedisServer, crash.Victim]) -> None:
    run_seed(crash.seeds()[0], KILLS, *place)


@pytest.mark.soak
@pytest.mark.parametrize("seed", crash.seeds())
def test_fifty_kills(seed: int, place: tuple[Database, RedisServer, crash.Victim]) -> None:
    run_seed(seed, SOAK_KILLS, *place)


def run_seed(seed: int, kills: int, db: Database, target: RedisServer, victim: crash.Victim) -> None:
    print(f"crash seed {seed}")
    workload = crash.CrashWorkload(db.dsn, seed)
    victim.start()
    eventually(victim.tap_pid, 60, what=victim.output)  # rows from before the slot are a snapshot's
    workload.start()
    killed = crash.kill_at_random(victim, entries(target), kills, random.Random(seed), crash.EVERYBODY)
    kill_in_full_flow(target, victim)
    workload.stop()
    victim.kill("both")
    print(f"killed {killed}, {workload.transactions} transactions")
    catch_up(victim)
    compare(db, target, victim)
    shutil.rmtree(victim.data_dir / "pipelines")
    catch_up(victim)
    compare(db, target, victim)


def entries(target: RedisServer) -> Generator[int, None, None]:
    """How many there are: progress that a kill cannot fake."""
    with client_of(target) as client:
        while True:
            yield sum(int(client.xlen(stream)) for stream in STREAMS)


def kill_in_full_flow(target: RedisServer, victim: crash.Victim) -> None:
    """Kill the server while it is written to."""
    progress = entries(target)
    before = next(progress)
    eventually(partial(_more_than, progress, before), 120, what=victim.output)
    progress.close()
    target.kill()
    target.start()


def _more_than(progress: Iterator[int], number: int) -> bool:
    return next(progress) > number


def compare(db: Database, target: RedisServer, victim: crash.Victim) -> None:
    events = [event for stream in STREAMS for event in events_of(target, stream)]
    assert check_events(victim.data_dir / "logs" / "crash", events) > 500
    assert crash.check_order(events) == 0
    assert crash.fold(events) == crash.source_rows(db.dsn)
