"""`fanout`: the rate at which Kafka gets changes while the other two servers of a fan-out are away, as a share of its
rate while they are there.

`fan_out.yaml` is run as a user runs it. In each pass the same number of rows is written while the tap's walsender is
held, and measured from its release until Kafka has them all: once with Redis and NATS, once while both are stopped, in
an order that alternates. All three have everything before the next begins, and none may have anything twice.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats
from confluent_kafka import Consumer
from redis import Redis

from benchmarks.meter import Meter
from benchmarks.pipeline import DRAIN_S, create_topic, open_consumer, records
from benchmarks.report import Bar, Measurement
from benchmarks.stage import Stage
from benchmarks.waiting import say, until
from tailrace.errors import SetupError
from tailrace.testing.crash import Victim
from tailrace.testing.servers import KafkaBroker, NatsServer, RedisServer

RATIO = 0.9
SHARE = 10
"""A pass has this part of the rows of others: every change goes three ways, in batches of 500."""
DOCUMENT = Path(__file__).with_name("fan_out.yaml")
SLOT = "tailrace_orders"
STREAM, TOPIC, NATS_STREAM = "orders:cache", "orders.cdc", "ORDERS"
WARM_UP, ROWS_PER_TRANSACTION = 2_000, 50
THERE, AWAY = "kafka, the others there", "kafka, the others away"
POLL_S = 0.05
TABLES = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.orders (id bigint PRIMARY KEY, total bigint, status text, note text)",
    "CREATE TABLE shop.order_items (id bigint PRIMARY KEY, order_id bigint)",
)
INSERT = "INSERT INTO shop.orders SELECT n, n %% 2000, 'new', md5(n::text) FROM generate_series(%s::bigint, %s) n"


def fanout(stage: Stage, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    rows = max(1, rows // SHARE)
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaBroker())
        redis, bus = stack.enter_context(RedisServer()), stack.enter_context(NatsServer())
        run = stack.enter_context(_running(stage, kafka, redis, bus))
        found = [each for number in range(passes) for each in run.both(rows, away_first=bool(number % 2))]
    there, away = (sum(each.usage.wall_s for each in found if each.name == name) for name in (THERE, AWAY))
    return found, [Bar("kafka, the others away / there", there / away, "≥", RATIO)]


class FanOut:
    """The pipeline while it runs, and its servers."""

    def __init__(self, stage: Stage, kafka: KafkaBroker, redis: RedisServer, bus: NatsServer) -> None:
        self._stage, self._kafka, self._redis, self._nats = stage, kafka, redis, bus
        self._topic: Consumer = open_consumer(kafka)
        self._written = 0
        data = stage.folder / "data-fanout"
        platform = stage.folder / "fanout-platform.yaml"
        platform.write_text(f"data_dir: {data}\n")
        self._run = Victim([self._document()], platform, data, "orders")

    def start(self) -> None:
        """Until all three have got a few batches."""
        self._run.start()
        until(lambda: self._alive() and self._run.tap_pid() is not None, "the pipeline's tap streams")
        self._write(WARM_UP)
        self._all_there()

    def stop(self) -> None:
        self._topic.close()
        try:
            self._run.terminate(DRAIN_S)
        except subprocess.TimeoutExpired:
            self._run.kill("both")

    def both(self, rows: int, *, away_first: bool) -> list[Measurement]:
        pair = [self._pass(rows, away=away) for away in (away_first, not away_first)]
        say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} rows/s" for each in pair))
        return pair

    def _document(self) -> Path:
        """The document, with addresses for its variables."""
        text, file = DOCUMENT.read_text(), self._stage.folder / DOCUMENT.name
        values = {"DSN": self._stage.dsn, "KAFKA_BROKERS": self._kafka.bootstrap, "REDIS_URI": self._redis.uri}
        for name, value in {**values, "NATS_URL": self._nats.url}.items():
            text = text.replace(f"${{{name}}}", json.dumps(value))
        file.write_text(text)
        return file

    def _pass(self, rows: int, *, away: bool) -> Measurement:
        with self._stage.held(SLOT) as sender:
            self._write(rows)
            if away:
                self._redis.stop()
                self._nats.stop()
            with Meter(self._roles()) as meter:
                sender.release()
                until(lambda: self._alive() and self._in_kafka() >= self._written, "Kafka has all rows", every=POLL_S)
        self._redis.start()
        self._nats.start()
        self._all_there()
        return Measurement(AWAY if away else THERE, rows, meter.usage())

    def _write(self, rows: int) -> None:
        end = self._written + rows
        while self._written < end:
            last = min(self._written + ROWS_PER_TRANSACTION, end)
            self._stage.connection.execute(INSERT, (self._written + 1, last), prepare=True)
            self._written = last

    def _all_there(self) -> None:
        """Wait for the slowest, and count: nobody has anything twice."""

        def counts() -> tuple[int, int, int]:
            with Redis(port=self._redis.port) as client:
                return self._in_kafka(), int(client.xlen(STREAM)), asyncio.run(_messages(self._nats))

        until(lambda: self._alive() and min(counts()) >= self._written, "all three have all rows", every=1.0)
        if set(found := counts()) != {self._written}:
            raise SetupError("benchmark.rows", f"{self._written} rows became {found}", hint="please report it")

    def _in_kafka(self) -> int:
        return records(self._topic, TOPIC)

    def _alive(self) -> bool:
        process = self._run.process
        assert process is not None
        if process.poll() is None:
            return True
        raise SetupError("benchmark.pipeline", f"the pipeline ended:\n{self._run.output()}", hint="see its message")

    def _roles(self) -> dict[int, str]:
        process, tap = self._run.process, self._run.tap_pid()
        assert process is not None and tap is not None
        return self._stage.roles() | {process.pid: "driver", tap: "tap", self._kafka.pid: "broker"}


@contextmanager
def _running(stage: Stage, kafka: KafkaBroker, redis: RedisServer, bus: NatsServer) -> Iterator[FanOut]:
    for statement in TABLES:
        stage.connection.execute(statement.encode())
    create_topic(kafka, TOPIC)
    asyncio.run(_add_stream(bus))
    run = FanOut(stage, kafka, redis, bus)
    try:
        run.start()
        yield run
    finally:
        run.stop()


async def _add_stream(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name=NATS_STREAM, subjects=["orders.>"])
    await client.close()


async def _messages(server: NatsServer) -> int:
    client = await nats.connect(server.url)
    try:
        return int((await client.jetstream().stream_info(NATS_STREAM)).state.messages)
    finally:
        await client.close()
