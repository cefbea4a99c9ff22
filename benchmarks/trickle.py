"""`trickle`: what a steady 1,000 rows a second cost a pipeline into Kafka, beside Debezium in Kafka Connect.

The same workload as `latency`, into a fresh pipeline: its first minute counts from the first row it delivered, and the
window comes after `warm_up` seconds. The rival gets the same afterwards, into another topic of the same broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.latency import PIPELINE_ROLES, ROWS, TRANSACTIONS_PER_S, Workload, consume, consumer_at_the_end
from benchmarks.meter import Meter, Usage, family, proportional_mib
from benchmarks.pipeline import TOPIC, Pipeline, create_topic, open_consumer, records
from benchmarks.report import Bar, Measurement
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until
from tailrace.testing.servers import DebeziumConnect, KafkaBroker

RIVAL = "rival"
FIRST_S = 60.0
FIRST_CORES, CORES = 0.8, 0.4
P99_MS = 400.0
MEMORY_MIB = 1.3 * 1024
SAMPLE_S = 5.0
READY_S = 300.0


@dataclass(frozen=True)
class Side:
    """One that carries the table to a topic. `counted` are the roles of the processes that do."""

    name: str
    table: Table
    broker: KafkaBroker
    topic: str
    roles: Callable[[], dict[int, str]]
    counted: tuple[str, ...]

    def pids(self) -> list[int]:
        return [pid for pid, role in family(self.roles()) if role in self.counted]


@dataclass(frozen=True)
class Window:
    """A time that was watched; `memory_mib` is the largest sum of the processes' memory."""

    began_us: float
    ended_us: float
    usage: Usage
    memory_mib: float


def trickle(stage: Stage, seconds: float, warm_up: float) -> tuple[list[Measurement], list[Bar]]:
    """CPU, latency and memory under a steady trickle, ours and the rival's."""
    found: list[Measurement] = []
    with KafkaBroker() as broker:
        for opened in (_ours, _rival):
            with opened(stage, broker) as side:
                found += _measure(side, seconds, max(warm_up, FIRST_S))
    return found, _bars(found[0], found[1])


@contextmanager
def _ours(stage: Stage, broker: KafkaBroker) -> Iterator[Side]:
    table = Table(stage.dsn, "trickle")
    create_topic(broker, TOPIC)
    pipeline = Pipeline(stage, broker, table)
    try:
        pipeline.wait_for_stream()
        yield Side("trickle", table, broker, TOPIC, pipeline.roles, PIPELINE_ROLES)
    finally:
        pipeline.close()
        stage.forget(pipeline.slot)


@contextmanager
def _rival(stage: Stage, broker: KafkaBroker) -> Iterator[Side]:
    table = Table(stage.dsn, "trickle_rival")
    connect = DebeziumConnect(stage.dsn, broker, RIVAL, f"public.{table.name}")
    topic = f"{RIVAL}.public.{table.name}"
    create_topic(broker, topic)
    try:
        connect.start()
        connect.wait_for_stream()
        roles = lambda: stage.roles() | {connect.pid: "connect", broker.pid: "broker"}  # noqa: E731
        yield Side("debezium", table, broker, topic, roles, ("connect",))
    finally:
        connect.close()
        stage.forget(connect.slot)


def _measure(side: Side, seconds: float, warm_up: float) -> list[Measurement]:
    """The first minute, then the window."""
    _wait_for_first_row(side)
    say(f"{side.name}: {TRANSACTIONS_PER_S * ROWS} rows/s for {warm_up + seconds:g} s")
    consumer = consumer_at_the_end(side.broker, side.topic)
    workload = Workload(side.table, warm_up + seconds)
    with ThreadPoolExecutor(1) as pool:
        workload.start()
        arrivals = pool.submit(consume, consumer, workload)
        first = _watch(side, FIRST_S)
        time.sleep(warm_up - FIRST_S)
        window = _watch(side, seconds)
        arrived = arrivals.result()
    consumer.close()
    return [
        _told(side, f"{side.name}, first minute", first, arrived),
        _told(side, f"{side.name}, warm", window, arrived),
    ]


def _wait_for_first_row(side: Side) -> None:
    side.table.write(ROWS)
    consumer = open_consumer(side.broker)
    until(lambda: records(consumer, side.topic) >= ROWS, f"{side.name} delivers", seconds=READY_S)
    consumer.close()


def _watch(side: Side, seconds: float) -> Window:
    began, memory = time.time(), 0.0
    with Meter(side.roles()) as meter:
        while (left := began + seconds - time.time()) > 0:
            memory = max(memory, proportional_mib(side.pids()))
            time.sleep(min(SAMPLE_S, left))
    return Window(began * 1e6, time.time() * 1e6, meter.usage(), memory)


def _told(side: Side, name: str, window: Window, arrived: Sequence[tuple[int, int]]) -> Measurement:
    took = [(at - committed) / 1000 for committed, at in arrived if window.began_us <= committed < window.ended_us]
    cuts = quantiles(took, n=100)
    cores = sum(window.usage.cpu_s.get(role, 0.0) for role in side.counted) / window.usage.wall_s
    told = {"cores": cores, "p50_ms": cuts[49], "p99_ms": cuts[98], "pss_mib": window.memory_mib}
    return Measurement(name, len(took), window.usage, {key: round(value, 2) for key, value in told.items()})


def _bars(first: Measurement, warm: Measurement) -> list[Bar]:
    return [
        Bar("trickle, first minute", first.more["cores"], "≤", FIRST_CORES, "cores"),
        Bar("trickle, warm", warm.more["cores"], "≤", CORES, "cores"),
        Bar("trickle p99, warm", warm.more["p99_ms"], "≤", P99_MS, "ms"),
        Bar("trickle PSS", max(first.more["pss_mib"], warm.more["pss_mib"]), "≤", MEMORY_MIB, "MiB"),
    ]
