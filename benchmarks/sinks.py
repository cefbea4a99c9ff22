"""`sinks`: records per second from the log into servers on the same machine, beside a loop of each server's own client
that sends the same records.

A log is delivered by a query of its own, on two cores: first a part of it, so that Spark and its workers are up and
have their plans, then the rest, which is measured. The loop has the records of that rest in memory, rendered already,
and waits for the same acknowledgements.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.lake import DELIVERY, write_log
from benchmarks.meter import Meter
from benchmarks.report import Bar, Measurement
from benchmarks.targets import TARGETS, Record, Target
from benchmarks.waiting import say, until
from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.contracts import RecordSink
from tailrace.errors import SetupError
from tailrace.sinks.file import FileSink
from tailrace.spark.query import Query, start_query
from tailrace.spark.session import open_session

SHARE = 5
"""Of the rows of other passes, so many less."""
WARM_UP = 2
"""The first part of the log is this part of the rest."""


def sinks(folder: Path, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    rows = max(WARM_UP, rows // SHARE)
    path = folder / "sinks-log"
    say(f"sinks: writing a log of {rows + rows // WARM_UP:,} changes")
    write_log(path, rows + rows // WARM_UP, rows)
    spark = open_session(folder / "sinks-spark.log", master="local[2]", driver_memory="2g")
    try:
        bench = _Bench(spark, path, folder, rows)
        found = [each for make in TARGETS for each in bench.measured(make(), passes)]
    finally:
        spark.stop()
    return found, []


class _Bench:
    """The log, and what is done with it for each target."""

    def __init__(self, spark: SparkSession, log: Path, folder: Path, rows: int) -> None:
        self._spark, self._log, self._folder, self._rows = spark, log, folder, rows
        self._start = rows // WARM_UP
        self._records = self._rendered()

    def measured(self, target: Target, passes: int) -> list[Measurement]:
        found: list[Measurement] = []
        with target.server:
            for number in range(passes):
                sides = [self._ours, self._loop]
                for side in sides if number % 2 == 0 else reversed(sides):
                    found.append(side(target, number))
                    say(f"{found[-1].name}: {found[-1].rows_per_s:,.0f} records/s")
        return found

    def _ours(self, target: Target, number: int) -> Measurement:
        place = f"ours{number}"
        sink = target.sink(place)
        query = self._query(sink, place)
        try:
            self._deliver(query, self._start)
            with Meter({target.server.pid: "broker"}) as meter:
                self._deliver(query, self._start + self._rows)
        finally:
            query.drain(60)
        _refuse_difference(target, place, self._start + self._rows)
        return Measurement(target.name, self._rows, meter.usage())

    def _loop(self, target: Target, number: int) -> Measurement:
        place = f"loop{number}"
        with Meter({target.server.pid: "broker"}) as meter:
            target.loop(place, self._records)
        _refuse_difference(target, place, self._rows)
        return Measurement(f"{target.name}, client loop", self._rows, meter.usage())

    def _rendered(self) -> Sequence[Record]:
        """The records that are measured, as a sink gets them."""
        where = {"path": str(self._folder / "records"), "roll": {"every": "500ms"}}
        files = FileSink.from_document({"id": "records", **where})
        query = self._query(files, "records")
        try:
            self._deliver(query, self._start + self._rows)
        finally:
            query.drain(60)
        names = sorted((self._folder / "records").rglob("*.jsonl"), key=lambda path: path.name)
        return [Record.of(line) for name in names for line in name.read_text().splitlines()][self._start :]

    def _query(self, sink: RecordSink, place: str) -> Query:
        state = self._folder / f"state-{sink.id}-{place}"
        return start_query(self._spark, self._log, sink, DELIVERY, provenance=PROVENANCE, state_dir=state)

    def _deliver(self, query: Query, end: int) -> None:
        query.until(end)

        def arrived() -> bool:
            error = query.error()
            if error is not None:
                raise error
            return query.progress().offset >= end

        until(arrived, f"{end:,} changes delivered")


def _refuse_difference(target: Target, place: str, wanted: int) -> None:
    there = target.count(place)
    if there != wanted:
        raise SetupError("benchmark.rows", f"{target.name}: {wanted} records became {there}", hint="please report it")
