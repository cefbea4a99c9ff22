"""One source, a script, and three servers with records in three shapes: what one of them lacks for a while keeps no
other waiting, and in the end all have what the source has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.sinks.nats import NatsSink
from tailrace.testing import crash
from tailrace.testing.servers import KafkaBroker, NatsServer, PostgresServer, RedisServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.sinks.nats_streams import add_stream, values
from tests.sinks.redis_contents import entries
from tests.test_crash import read_topic

DOCUMENT = (Path(__file__).parent.parent / "benchmarks" / "fan_out.yaml").read_text()
UNHURRIED = DOCUMENT.replace("timeout_ms: 500", "timeout_ms: 5000")
"""A machine that runs other tests too may stop for half a second, and a script that takes longer stops its sink."""
ROWS = 300


class FanOut:
    """The pipeline, its database and its servers."""

    def __init__(self, db: Database, kafka: KafkaBroker, redis: RedisServer, nats: NatsServer, folder: Path) -> None:
        self.db, self.kafka, self.redis, self.nats = db, kafka, redis, nats
        document, platform = folder / "pipeline.yaml", folder / "platform.yaml"
        document.write_text(UNHURRIED)
        platform.write_text(
            f"{{data_dir: {folder}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 200ms, max: 1s}}}}"
        )
        self.victim = crash.Victim([document], platform, folder / "data", "orders")

    def write(self, first: int) -> None:
        """`ROWS` rows in each of three ways, in many transactions."""
        last = first + ROWS - 1
        for low in range(first, last + 1, 50):
            self.db.run(f"INSERT INTO shop.orders SELECT n, n * 10, 'new' FROM generate_series({low}, {low + 49}) n")
        self.db.run(f"UPDATE shop.orders SET status = 'paid' WHERE id BETWEEN {first} AND {last}")
        self.db.run(f"INSERT INTO shop.order_items SELECT n, n FROM generate_series({first}, {last}) n")
        self.db.run(f"DELETE FROM shop.orders WHERE id BETWEEN {first} AND {last} AND id % 10 = 0")

    def in_kafka(self) -> list[dict[str, Any]]:
        return [record["payload"] for record in read_topic(self.kafka, "orders.cdc")]

    def in_redis(self) -> list[dict[str, Any]]:
        return [json.loads(entry["df-event"]) for entry in entries(self.redis, "orders:cache")]

    def in_nats(self) -> list[dict[str, Any]]:
        sink = NatsSink.from_document({"id": "n", "url": self.nats.url, "subject": "orders.events", "stream": "ORDERS"})
        return [json.loads(value) for value in values(self.nats, sink)]

    def states(self) -> dict[str, str]:
        lines = self.victim.data_dir.with_suffix(".out").read_text().split("\n")
        told = [json.loads(line) for line in lines if line.startswith('{"started"')]
        return {sink["sink"]: sink["state"] for sink in told[-1]["sinks"]} if told else {}

    def source(self) -> dict[str, dict[int, dict[str, Any]]]:
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for table in ("orders", "order_items"):
            rows = [json.loads(row) for (row,) in self.db.rows(f"SELECT to_json(t)::text FROM shop.{table} t")]
            found[table] = {row["id"]: row for row in rows}
        return found


@pytest.fixture
def fan_out(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FanOut]:
    with Database(postgres) as db, RedisServer() as redis, NatsServer() as nats:
        db.run(
            "CREATE SCHEMA shop",
            "CREATE TABLE shop.orders (id bigint PRIMARY KEY, total bigint, status text)",
            "CREATE TABLE shop.order_items (id bigint PRIMARY KEY, order_id bigint)",
        )
        add_stream(nats, "ORDERS", ["orders.>"])
        for name, value in (("DSN", db.dsn), ("KAFKA_BROKERS", kafka.bootstrap)):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("REDIS_URI", redis.uri)
        monkeypatch.setenv("NATS_URL", nats.url)
        made = FanOut(db, kafka, redis, nats, tmp_path)
        yield made
        if made.victim.process is not None and made.victim.process.poll() is None:
            made.victim.kill("both")


@pytest.mark.timeout(240)
def test_two_servers_are_away_and_the_third_goes_on(fan_out: FanOut) -> None:
    run = fan_out.victim
    run.start()
    eventually(run.tap_pid, 90, what=run.output)
    fan_out.write(1)
    changes = 3 * ROWS + ROWS // 10
    eventually(lambda: len(fan_out.in_kafka()) == changes, 60, every=0.5, what=run.output)
    fan_out.redis.stop()
    fan_out.nats.stop()
    fan_out.write(ROWS + 1)
    eventually(lambda: len(fan_out.in_kafka()) == 2 * changes, 60, every=0.5, what=run.output)
    eventually(lambda: fan_out.states()["cache-redis"] == "waiting", 60, what=run.output)
    eventually(lambda: fan_out.states()["serverless-nats"] == "waiting", 60, what=run.output)
    assert fan_out.states()["warehouse-kafka"] == "running"
    fan_out.redis.start()
    fan_out.nats.start()
    eventually(lambda: len(fan_out.in_redis()) == 2 * changes, 60, every=0.5, what=run.output)
    eventually(lambda: len(fan_out.in_nats()) == 2 * changes, 60, every=0.5, what=run.output)
    assert run.terminate(60) == 0, run.output()

    kafka = {record["event_id"]: record for record in fan_out.in_kafka()}
    redis, nats = fan_out.in_redis(), fan_out.in_nats()
    assert len(kafka) == len(redis) == 2 * changes
    assert redis == [kafka[record["event_id"]] for record in redis]
    assert {event["id"]: event["data"] for event in nats} == {
        number: {name: record[name] for name in ("before", "after", "op")} for number, record in kafka.items()
    }
    in_shape = [{"source": {"table": event["subject"].partition(".")[2]}, **event["data"]} for event in nats]
    for found in (kafka.values(), redis, in_shape):
        assert folded(found) == fan_out.source()
    high = [record for record in redis if "priority:high" in record["tags"]]
    assert {record["event_id"] for record in high} == {
        record["event_id"] for record in redis if record["after"] and record["after"].get("total", 0) > 1000
    }


def folded(records: Iterable[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """What the tables have after all changes, in the order in which they stand."""
    tables: dict[str, dict[int, dict[str, Any]]] = {"orders": {}, "order_items": {}}
    for record in records:
        rows = tables[record["source"]["table"]]
        if record["op"] == "d":
            del rows[record["before"]["id"]]
        else:
            rows[record["after"]["id"]] = record["after"]
    return tables
