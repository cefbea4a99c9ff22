"""Kill it at any instant; source and targets are equal by content afterwards (Laws 1, 3, 7 and 8)."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tailrace.changelog import head
from tailrace.testing import crash
from tailrace.testing.servers import KafkaBroker, PostgresServer
from tailrace.testing.waiting import eventually

KILLS = 10
TOPIC = "crash.events"
CHAIN = """
  processors:
    - {{type: filter, exclude: [{{fields: [{{path: body, op: regex, value: "^[01]"}}]}}]}}
    - {{type: transform, rename: [{{columns: {{body: digest}}}}]}}
    - type: javascript
      id: mirror
      inline: |
        const mirrored = row => row && {{...row, id: -row.id}};
        function processBatch(events) {{
          return events.flatMap(event => event.key.id % 10 !== 5 ? [event] : [event,
            {{...event, key: mirrored(event.key), before: mirrored(event.before), after: mirrored(event.after)}}]);
        }}
"""
"""Some rows are dropped, a column has another name, and some rows have a second one, with the negative id."""


@pytest.fixture
def place(tmp_path: Path, kafka: KafkaBroker) -> Iterator[tuple[PostgresServer, crash.Victim]]:
    with PostgresServer(18) as server:
        pipeline = tmp_path / "pipeline.yaml"
        pipeline.write_text(
            f"""
metadata: {{name: crash, tenant: acme}}
spec:
  source: {{type: postgres, config: {{id: crash, dsn: "{server.dsn()}", tables: [public.*]}}}}
  batch: {{max_events: 4000}}
{CHAIN.format()}
  sinks:
    - {{type: file, config: {{id: files, path: {tmp_path}/files, roll: {{every: 500ms}}}}}}
    - {{type: kafka, config: {{id: kafka, brokers: "{kafka.bootstrap}", topic: "{tmp_path.name}.{TOPIC}"}}}}
"""
        )
        platform = tmp_path / "platform.yaml"
        platform.write_text(
            f"{{data_dir: {tmp_path}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 100ms, max: 2s}}}}"
        )
        victim = crash.Victim([pipeline], platform, tmp_path / "data", "crash")
        yield server, victim
        if victim.process is not None and victim.process.poll() is None:
            victim.kill("both")


@pytest.mark.timeout(1200)
def test_ten_kills(place: tuple[PostgresServer, crash.Victim], kafka: KafkaBroker, tmp_path: Path) -> None:
    run_seed(crash.seeds()[0], KILLS, *place, kafka, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", crash.seeds())
def test_many_kills(seed: int, place: tuple[PostgresServer, crash.Victim], kafka: KafkaBroker, tmp_path: Path) -> None:
    run_seed(seed, 2 * KILLS, *place, kafka, tmp_path)


def run_seed(
    seed: int, kills: int, server: PostgresServer, victim: crash.Victim, kafka: KafkaBroker, tmp_path: Path
) -> None:
    print(f"crash seed {seed}")
    workload = crash.CrashWorkload(server.dsn(), seed)
    victim.start()
    eventually(victim.tap_pid, 60, what=victim.output)  # rows from before the slot are a snapshot's
    workload.start()
    killed = crash.kill_at_random(victim, delivered(tmp_path / "files"), kills, random.Random(seed))
    workload.stop()
    victim.kill("both")
    print(f"killed {killed}, {workload.transactions} transactions, log at {head(victim.data_dir / 'logs/crash')}")
    catch_up(victim)
    compare(server, tmp_path, kafka, victim)

    shutil.rmtree(victim.data_dir / "pipelines")
    before = sorted(path.name for path in (tmp_path / "files").rglob("*.jsonl"))
    catch_up(victim)
    compare(server, tmp_path, kafka, victim)
    assert sorted(path.name for path in (tmp_path / "files").rglob("*.jsonl")) == before, "the file sink repeated"


def delivered(root: Path) -> Iterator[int]:
    """The end of the newest committed file: progress that a kill cannot fake."""
    while True:
        ends = [int(path.name.split("-")[1]) for path in root.rglob("*.jsonl")]
        yield max(ends, default=0)


def catch_up(victim: crash.Victim) -> None:
    victim.start("--until-caught-up")
    assert victim.finish(120) == 0, victim.output()


def compare(server: PostgresServer, tmp_path: Path, kafka: KafkaBroker, victim: crash.Victim) -> None:
    truth = behind_chain(crash.source_rows(server.dsn()))
    assert len(truth) > 500

    files = list(crash.read_files(tmp_path / "files"))
    crash.check_transactions(files)
    events = [{name: value for name, value in event.items() if name != "_span"} for event in files]
    assert crash.check_order(events) == 0, "the file sink is exactly-once"
    assert crash.fold(events) == truth
    assert {event["synthetic"] for event in events if "synthetic" in event} == {"mirror"}

    records = read_topic(kafka, f"{tmp_path.name}.{TOPIC}")
    crash.check_order(records)
    assert crash.fold(records) == truth
    assert {event["event_id"] for event in records} == {event["event_id"] for event in events}


def behind_chain(rows: dict[tuple[str, int], dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """What the chain makes of the source's rows."""
    found = {}
    for (table, number), row in rows.items():
        if row["body"][0] not in "01":
            renamed = {"digest" if name == "body" else name: value for name, value in row.items()}
            found[table, number] = renamed
            if number % 10 == 5:
                found[table, -number] = {**renamed, "id": -number}
    return found


def read_topic(kafka: KafkaBroker, topic: str) -> list[dict[str, Any]]:
    """Every record, partition by partition: order per key is order in its partition."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "check", "auto.offset.reset": "earliest"})
    try:
        records = []
        for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            consumer.assign([TopicPartition(topic, partition, low)])
            while low < high:
                for message in consumer.consume(min(1000, high - low), timeout=10):
                    assert message.error() is None
                    records.append(json.loads(message.value() or b""))
                    low = (message.offset() or 0) + 1
        return records
    finally:
        consumer.close()
