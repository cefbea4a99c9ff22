"""Streams are exactly-once: kill the pipeline, and the server, at any instant; each event is there once (Law 4)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer, RedisServer
from tailrace.testing.waiting import eventually
from tests.sinks.redis_contents import client_of

KILLS = 5
STREAMS = [f"crash:{table}" for table in crash.TABLES]
PAGE = 5_000


def seeds() -> list[int]:
    return [int.from_bytes(os.urandom(4), "big") for _ in range(int(os.environ.get("TAILRACE_SOAK_SEEDS", "1")))]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[PostgresServer, RedisServer, crash.Victim]]:
    with PostgresServer(18) as server, RedisServer() as target:
        pipeline, platform = tmp_path / "pipeline.yaml", tmp_path / "platform.yaml"
        pipeline.write_text(
            f"""
metadata: {{name: crash, tenant: acme}}
spec:
  source: {{type: postgres, config: {{id: crash, dsn: "{server.dsn()}", tables: [public.*]}}}}
  batch: {{max_events: 4000}}
  sinks:
    - {{type: file, config: {{id: files, path: {tmp_path}/files, roll: {{every: 500ms}}}}}}
    - {{type: redis, config: {{id: redis, uri: "{target.uri}", stream: "crash:${{source.table}}"}}}}
"""
        )
        spark = f"spark: {crash.QUICK_SPARK}"
        platform.write_text(f"{{data_dir: {tmp_path}/data, {spark}, retry: {{initial: 100ms, max: 2s}}}}")
        victim = crash.Victim([pipeline], platform, tmp_path / "data", "crash")
        yield server, target, victim
        if victim.process is not None and victim.process.poll() is None:
            victim.kill("both")


@pytest.mark.timeout(600)
def test_five_kills(place: tuple[PostgresServer, RedisServer, crash.Victim], tmp_path: Path) -> None:
    run_seed(seeds()[0], KILLS, *place, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds())
def test_fifty_kills(seed: int, place: tuple[PostgresServer, RedisServer, crash.Victim], tmp_path: Path) -> None:
    run_seed(seed, 10 * KILLS, *place, tmp_path)


def run_seed(
    seed: int, kills: int, server: PostgresServer, target: RedisServer, victim: crash.Victim, tmp_path: Path
) -> None:
    print(f"crash seed {seed}")
    workload = crash.CrashWorkload(server.dsn(), seed)
    victim.start()
    eventually(victim.tap_pid, 60, what=victim.output)  # rows from before the slot are a snapshot's
    workload.start()
    crash.kill_at_random(victim, entries(target), kills, random.Random(seed))
    kill_in_full_flow(target, victim)
    workload.stop()
    victim.kill("both")
    catch_up(victim)
    compare(server, target, tmp_path)
    shutil.rmtree(victim.data_dir / "pipelines")
    catch_up(victim)
    compare(server, target, tmp_path)


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


def catch_up(victim: crash.Victim) -> None:
    victim.start("--until-caught-up")
    assert victim.finish(120) == 0, victim.output()


def compare(server: PostgresServer, target: RedisServer, tmp_path: Path) -> None:
    truth = crash.source_rows(server.dsn())
    assert len(truth) > 200
    wanted = Counter(event["event_id"] for event in crash.read_files(tmp_path / "files"))
    assert max(wanted.values()) == 1, "the file sink is exactly-once"

    events = [event for stream in STREAMS for event in read(target, stream)]
    assert Counter(event["event_id"] for event in events) == wanted
    assert crash.check_order(events) == 0
    assert crash.fold(events) == truth


def read(target: RedisServer, stream: str) -> Iterator[dict[str, Any]]:
    with client_of(target) as client:
        start = "-"
        while True:
            page: Any = client.xrange(stream, min=start, count=PAGE)
            for _, fields in page:
                event = json.loads(fields["df-event"])
                assert fields["event_id"] == event["event_id"]
                yield event
            if len(page) < PAGE:
                return
            start = f"({page[-1][0]}"
