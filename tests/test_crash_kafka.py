"""Exactly-once Kafka under `kill -9`: readers of committed records see every event once, counted by its id.

Seeds are printed; `SEED=n pytest tests/test_crash_kafka.py` tells one story again."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tailrace.testing import crash
from tailrace.testing.servers import KafkaBroker, PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.events import check_events
from tests.sinks.topics import messages, topic
from tests.test_crash import catch_up

KILLS, SOAK_KILLS = 5, 50
WHOM = ("workers", "driver", "workers", "both", "driver")


@pytest.fixture
def name() -> str:
    return topic()


@pytest.fixture
def place(
    postgres: PostgresServer, tmp_path: Path, kafka: KafkaBroker, name: str
) -> Iterator[tuple[Database, crash.Victim]]:
    with Database(postgres) as db:
        (tmp_path / "pipeline.yaml").write_text(
            f"""
metadata: {{name: {name}}}
spec:
  source: {{type: postgres, config: {{id: crash, dsn: "{db.dsn}", tables: [public.*]}}}}
  batch: {{max_events: 2000, latency: 100ms}}
  sinks:
    - type: kafka
      config: {{id: kafka, brokers: "{kafka.bootstrap}", topic: {name}, exactly_once: true}}
"""
        )
        platform = tmp_path / "platform.yaml"
        platform.write_text(
            f"{{data_dir: {tmp_path}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 100ms, max: 1s}}}}"
        )
        victim = crash.Victim([tmp_path / "pipeline.yaml"], platform, tmp_path / "data", "crash")
        yield db, victim
        if victim.process is not None and victim.process.poll() is None:
            victim.kill("both")


@pytest.mark.timeout(600)
def test_five_kills(place: tuple[Database, crash.Victim], kafka: KafkaBroker, name: str) -> None:
    run_seed(crash.seeds()[0], KILLS, *place, kafka, name)


@pytest.mark.soak
@pytest.mark.parametrize("seed", crash.seeds())
def test_fifty_kills(seed: int, place: tuple[Database, crash.Victim], kafka: KafkaBroker, name: str) -> None:
    run_seed(seed, SOAK_KILLS, *place, kafka, name)


def run_seed(seed: int, kills: int, db: Database, victim: crash.Victim, kafka: KafkaBroker, name: str) -> None:
    print(f"crash seed {seed}")
    workload = crash.CrashWorkload(db.dsn, seed)
    victim.start()
    eventually(victim.tap_pid, 60, what=victim.output)  # rows from before the slot are a snapshot's
    workload.start()
    progress = committed(kafka, name)
    eventually(lambda: next(progress) > 0, 60, what=victim.output)
    killed = crash.kill_at_random(victim, progress, kills, random.Random(seed), WHOM)
    workload.stop()
    victim.kill("both")
    print(f"killed {killed}, {workload.transactions} transactions")
    catch_up(victim)
    compare(db, victim, kafka, name)

    shutil.rmtree(victim.data_dir / "pipelines")
    catch_up(victim)
    compare(db, victim, kafka, name)


def committed(kafka: KafkaBroker, name: str) -> Iterator[int]:
    """Where the topic ends for those who read what is committed: progress that a kill cannot fake."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "progress", "isolation.level": "read_committed"}
    )
    while True:
        found = consumer.list_topics(timeout=10).topics
        parts = found[name].partitions if name in found else ()
        yield sum(consumer.get_watermark_offsets(TopicPartition(name, part), timeout=10)[1] for part in parts)


def compare(db: Database, victim: crash.Victim, kafka: KafkaBroker, name: str) -> None:
    """Every change of the log is there, and none twice; the rows that they make are the source's."""
    read = sorted(messages(kafka, name), key=lambda message: (message.partition(), message.offset()))
    records: list[dict[str, Any]] = [json.loads(message.value() or b"") for message in read]
    assert check_events(victim.data_dir / "logs" / "crash", records) > 500
    assert crash.check_order(records) == 0
    assert crash.fold(records) == crash.source_rows(db.dsn)
