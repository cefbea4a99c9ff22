"""`latency` and `idle`: how soon a commit is in the topic, and what a pipeline without work costs."""

from __future__ import annotations

import re
import threading
import time
from statistics import quantiles

from confluent_kafka import Consumer, TopicPartition

from benchmarks.meter import Meter
from benchmarks.pipeline import TOPIC, Pipeline, open_consumer, topic_ends
from benchmarks.report import Bar, Measurement
from benchmarks.stage import Table
from benchmarks.waiting import say
from tailrace.errors import SetupError
from tailrace.testing.servers import KafkaBroker

TRANSACTIONS_PER_S = 200
ROWS = 5
P50_MS, P99_MS = 300.0, 800.0
IDLE_PERCENT = 3.0
SETTLE_S = 5.0
"""After work, a JVM compiles and collects for a while: that is not idling."""
STRAGGLERS_S = 30.0
PIPELINE_ROLES = ("tap", "driver", "spark jvm", "spark workers")

_COMMITTED = re.compile(rb'"source":\{[^{}]*"ts_us":(\d+)')


class Workload(threading.Thread):
    """Commits small transactions at a steady pace, on a connection of its own."""

    def __init__(self, table: Table, seconds: float) -> None:
        super().__init__(name="workload", daemon=True)
        self._table, self._seconds = table, seconds
        self.rows = 0

    def run(self) -> None:
        began = time.monotonic()
        for number in range(int(self._seconds * TRANSACTIONS_PER_S)):
            self._table.write(ROWS)
            self.rows += ROWS
            time.sleep(max(0.0, began + (number + 1) / TRANSACTIONS_PER_S - time.monotonic()))


def latency(pipeline: Pipeline, seconds: float, warm_up: float) -> tuple[list[Measurement], list[Bar]]:
    """Commit to consumer, for what was committed in `seconds` after `warm_up` seconds of the same."""
    say(f"latency: {TRANSACTIONS_PER_S} transactions/s of {ROWS} rows for {warm_up + seconds:g} s")
    consumer = consumer_at_the_end(pipeline.broker, TOPIC)
    workload = Workload(pipeline.table, warm_up + seconds)
    began = time.time()
    with Meter(pipeline.roles()) as meter:
        workload.start()
        seen = consume(consumer, workload)
    consumer.close()
    window = [arrived - at for at, arrived in seen if at >= (began + warm_up) * 1e6]
    cuts = quantiles((each / 1000 for each in window), n=100)
    p50, p99 = cuts[49], cuts[98]
    more = {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "max_ms": round(max(window) / 1000, 1)}
    return (
        [Measurement("latency", len(seen), meter.usage(), more)],
        [Bar("latency p50", p50, "≤", P50_MS, "ms"), Bar("latency p99", p99, "≤", P99_MS, "ms")],
    )


def idle(pipeline: Pipeline, seconds: float) -> tuple[list[Measurement], list[Bar]]:
    """CPU of all the pipeline's own processes while nothing changes, in percent of one core."""
    say(f"idle: {seconds:g} s")
    time.sleep(min(SETTLE_S, seconds))
    with Meter(pipeline.roles()) as meter:
        time.sleep(seconds)
    usage = meter.usage()
    percent = 100 * sum(usage.cpu_s.get(role, 0.0) for role in PIPELINE_ROLES) / usage.wall_s
    return [Measurement("idle", 0, usage)], [Bar("idle CPU", percent, "≤", IDLE_PERCENT, "% of a core")]


def consumer_at_the_end(broker: KafkaBroker, topic: str) -> Consumer:
    """Sees what comes to the topic from now on."""
    consumer = open_consumer(broker)
    consumer.assign([TopicPartition(topic, partition, end) for partition, end in topic_ends(consumer, topic)])
    consumer.poll(1.0)
    return consumer


def consume(consumer: Consumer, workload: Workload) -> list[tuple[int, int]]:
    """(commit, arrival) in microseconds of one clock, for every row of the workload."""
    seen: list[tuple[int, int]] = []
    heard = time.monotonic()
    while workload.is_alive() or len(seen) < workload.rows:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            heard = time.monotonic()
            seen.append((_committed_us(message.value()), time.time_ns() // 1000))
        elif time.monotonic() > heard + STRAGGLERS_S:
            text = f"{len(seen)} of {workload.rows} rows arrived"
            raise SetupError("benchmark.rows", text, hint="the log of the run says why; see --keep")
    return seen


def _committed_us(value: bytes | None) -> int:
    found = _COMMITTED.search(value or b"")
    if found is None:
        raise SetupError("benchmark.rows", f"a record without a commit time: {value!r}", hint="please report it")
    return int(found[1])
