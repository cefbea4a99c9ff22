"""`snapshot`: rows per second of a table into the log, as a share of psql's `COPY … TO STDOUT` into a file.

Twice the rows of a throughput pass. Spark's workers are warm, as they are in a pipeline that runs; nobody delivers.
"""

from __future__ import annotations

import os
import subprocess

from benchmarks.meter import Meter
from benchmarks.readers import running_tap
from benchmarks.report import Bar, Measurement, best
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until
from tailrace.backoff import Backoff
from tailrace.capture.postgres import PostgresSource
from tailrace.changelog import LogReader
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.errors import SetupError
from tailrace.spark.session import open_session
from tailrace.spark.snapshot import ReadHere, ReadInSpark
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.snapshots import TICK_S, Snapshots

TIMES = 2
RATIO = 0.3


def snapshot(stage: Stage, rows: int, passes: int) -> tuple[list[Measurement], list[Bar]]:
    table = Table(stage.dsn, "snapshot")
    say(f"snapshot: writing {TIMES * rows:,} rows")
    table.write(TIMES * rows, per_transaction=100_000)
    stage.connection.execute("VACUUM ANALYZE snapshot")
    stage.connection.execute("CHECKPOINT")
    found: list[Measurement] = []
    with _Road(stage, table) as road:
        road.measure("id <= 20000")  # workers that have read something
        for _ in range(passes):
            found += [_copy(stage, table), road.measure(None)]
            say(", ".join(f"{each.name}: {each.rows_per_s:,.0f} rows/s" for each in found[-2:]))
    table.close()
    ratio = best(found, "snapshot").rows_per_s / best(found, "psql COPY").rows_per_s
    return found, [Bar("snapshot / psql COPY", ratio, "≥", RATIO)]


def _copy(stage: Stage, table: Table) -> Measurement:
    output = stage.folder / "copy.out"
    command = [str(stage.postgres.bin("psql")), stage.dsn, "-c", f"COPY {table.name} TO STDOUT"]
    with output.open("wb") as file, Meter(stage.roles()) as meter:
        subprocess.run(command, stdout=file, check=True)
    output.unlink()
    return Measurement("psql COPY", table.written, meter.usage())


class _Road:
    """A tap, a Spark session, and the snapshots between them."""

    def __init__(self, stage: Stage, table: Table) -> None:
        self._stage, self._table = stage, table

    def __enter__(self) -> _Road:
        stage = self._stage
        self._running = running_tap(stage, "snapshot", self._table)
        self._tap = self._running.__enter__()
        source = self._tap.process.source
        assert isinstance(source, PostgresSource)
        self._source, self._layout = source, Layout(stage.folder / "snapshot")
        self._spark = open_session(stage.folder / "snapshot-spark.log")
        self._ledger = SnapshotLedger(Store(self._layout.store))
        read = ReadInSpark(self._spark, ReadHere(source, self._layout.staged(source.id)))
        self._snapshots = Snapshots(source, self._ledger, read, Backoff(1.0, 5.0, 0.0))
        return self

    def __exit__(self, *error: object) -> None:
        self._snapshots.close()
        self._spark.stop()
        self._running.__exit__(None, None, None)

    def measure(self, condition: str | None) -> Measurement:
        """From the request until the last row is durable in the log."""
        log = LogReader(self._layout.log(self._source.id))
        wanted = [TableRequest("public", self._table.name, condition)]
        with Meter(self._tap.roles() | {os.getpid(): "driver"}) as meter:
            run = self._ledger.request(self._source.id, "bench", wanted, log_id=log.log_id, since=0)
            until(lambda: self._over(run), "the snapshot is done", every=TICK_S, seconds=1800)
        rows = sum(table.rows_admitted for table in self._ledger.tables(run))
        if condition is None and rows != self._table.written:
            raise SetupError("benchmark.rows", f"{rows} of {self._table.written} rows", hint="please report it")
        return Measurement("snapshot", rows, meter.usage())

    def _over(self, run: str) -> bool:
        self._snapshots.step()
        if self._snapshots.failure is not None:
            raise self._snapshots.failure
        return self._ledger.run(run).state != "active"
