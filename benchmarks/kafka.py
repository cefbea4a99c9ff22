"""`kafka`: records per second from the log into a broker on the same machine, at least once and exactly once.

A log is delivered by a query of its own, on two cores: first a part of it, so that Spark and its workers are up and
have their plans, then the rest, which is measured.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.lake import DELIVERY, write_log
from benchmarks.meter import Meter
from benchmarks.report import Bar, Measurement, best
from benchmarks.waiting import say, until
from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.sinks.kafka import KafkaSink
from tailrace.spark.query import Query, start_query
from tailrace.spark.session import open_session
from tailrace.testing.servers import KafkaBroker

RECORDS_PER_S = 150_000
RATIO = 0.8
WARM_UP = 400_000
PLAIN, EXACT = "kafka, at least once", "kafka, exactly once"


def kafka(folder: Path, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    path = folder / "kafka-log"
    say(f"kafka: writing a log of {WARM_UP + rows:,} changes")
    write_log(path, WARM_UP + rows, rows)
    spark = open_session(folder / "kafka-spark.log", master="local[2]", driver_memory="2g")
    found: list[Measurement] = []
    try:
        with KafkaBroker(heap="512m") as broker:
            for number in range(passes):
                for name in (PLAIN, EXACT) if number % 2 == 0 else (EXACT, PLAIN):
                    found.append(_measured(spark, broker, path, folder, rows, name, number))
                    say(f"{name}: {found[-1].rows_per_s:,.0f} records/s")
    finally:
        spark.stop()
    plain, exact = best(found, PLAIN).rows_per_s, best(found, EXACT).rows_per_s
    return found, [
        Bar(PLAIN, plain, "≥", RECORDS_PER_S, "records/s"),
        Bar("kafka, exactly once / at least once", exact / plain, "≥", RATIO),
    ]


def _measured(
    spark: SparkSession, broker: KafkaBroker, path: Path, folder: Path, rows: int, name: str, number: int
) -> Measurement:
    exact = name == EXACT
    topic = f"bench-{'exact' if exact else 'plain'}-{number}"
    sink = KafkaSink(id=topic, brokers=broker.bootstrap, topic=topic, exactly_once=exact)
    query = start_query(spark, path, sink, DELIVERY, provenance=PROVENANCE, state_dir=folder / f"state-{topic}")
    try:
        query.until(WARM_UP)
        _await(query, WARM_UP)
        with Meter({broker.pid: "broker"}) as meter:
            query.until(WARM_UP + rows)
            _await(query, WARM_UP + rows)
    finally:
        query.drain(60)
    return Measurement(name, rows, meter.usage())


def _await(query: Query, offset: int) -> None:
    def arrived() -> bool:
        error = query.error()
        if error is not None:
            raise error
        return query.progress().offset >= offset

    until(arrived, f"{offset:,} changes in the topic")
