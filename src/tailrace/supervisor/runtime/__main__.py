"""A runtime's process.

python -m tailrace.supervisor.runtime FD     (a socket that its server holds the other end of)
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from tailrace.errors import SparkError, TailraceError
from tailrace.machine import lifeline, signals
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run import pipeline_status
from tailrace.supervisor.run.carried import CarriedPipeline
from tailrace.supervisor.run.heads import LogEnd
from tailrace.supervisor.run.taps import is_streaming
from tailrace.supervisor.runtime import (
    REPORT_S,
    Assignment,
    CarriedStatus,
    Generation,
    Order,
    Report,
    Request,
    SnapshotReport,
)
from tailrace.supervisor.snapshots import SnapshotThread, start_snapshots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK_S = 0.1


class Runtime:
    """Brings what is carried in line with the last order, a step at a time."""

    def __init__(self, request: Request, spark: SparkSession) -> None:
        self._platform, self._spark = request.platform, spark
        self._layout = Layout.of(request.platform)
        self._carried: dict[str, tuple[Generation, CarriedPipeline]] = {}
        self._draining: set[str] = set()
        self._refused: dict[str, CarriedStatus] = {}
        self._ends: dict[str, LogEnd] = {}
        self._snapshots: dict[str, SnapshotThread] = {}
        self._leaving: list[SnapshotThread] = []
        self._followed = -1

    @property
    def is_idle(self) -> bool:
        return not self._carried and not self._snapshots and not self._leaving

    def step(self, order: Order) -> None:
        for name in list(self._carried):
            self._end_unless_wanted(name, order)
        for name, assignment in order.pipelines.items():
            if name not in self._carried and not self._was_refused(name, assignment):
                self._begin(name, assignment)
        self._refused = {name: told for name, told in self._refused.items() if name in order.pipelines}
        self._settle_snapshots(order)
        self._followed = order.number

    def report(self) -> Report:
        pipelines = {name: self._status(name) for name in self._carried} | self._refused
        snapshots = {source: _snapshot_report(thread) for source, thread in self._snapshots.items()}
        return Report(os.getpid(), self._followed, True, pipelines, snapshots)

    def _end_unless_wanted(self, name: str, order: Order) -> None:
        generation, carried = self._carried[name]
        wanted = order.pipelines.get(name)
        if wanted is not None and wanted.generation == generation:
            return
        if name not in self._draining:
            carried.drain()
            self._draining.add(name)
        if carried.ended:  # not before: a query that lives is never forgotten
            del self._carried[name]
            self._draining.discard(name)

    def _was_refused(self, name: str, assignment: Assignment) -> bool:
        known = self._refused.get(name)
        return known is not None and known.generation == assignment.generation

    def _begin(self, name: str, assignment: Assignment) -> None:
        try:
            carried = CarriedPipeline(self._spark, assignment.pipeline, self._platform)
        except TailraceError as error:
            self._refused[name] = CarriedStatus(assignment.generation, False, error=error.as_dict())
            return
        self._refused.pop(name, None)
        self._carried[name] = (assignment.generation, carried)
        carried.start()

    def _status(self, name: str) -> CarriedStatus:
        generation, carried = self._carried[name]
        sinks = carried.sinks(self._head)
        committed = pipeline_status(carried.pipeline, sinks)
        return CarriedStatus(generation, name in self._draining, sinks, carried.letter_status(), committed)

    def _head(self, source: str) -> int | None:
        end = self._ends.setdefault(source, LogEnd(self._layout.log(source)))
        try:
            return end.head()
        except TailraceError:
            return None  # the tap says what is wrong with its log

    def _settle_snapshots(self, order: Order) -> None:
        sources = {each.pipeline.source_id: each.pipeline.source for each in order.pipelines.values()}
        for source in list(self._snapshots):
            if source not in order.snapshots or source not in sources:
                thread = self._snapshots.pop(source)
                thread.stop()
                self._leaving.append(thread)
        self._leaving = [thread for thread in self._leaving if thread.is_alive()]
        leaving = {thread.source_id for thread in self._leaving}
        for source in order.snapshots & sources.keys() - self._snapshots.keys() - leaving:
            streaming = partial(is_streaming, self._layout.tap_status(source))
            thread = start_snapshots(self._spark, sources[source], streaming, self._layout, self._platform)
            self._snapshots[source] = thread
            thread.start()


def main(link: Connection) -> None:
    """Until the server closes its end; what is carried then is drained first."""
    signals.ignore()  # the server drains its runtimes in order
    request: Request = link.recv()
    lifeline.hold(request.parent)
    inbox = _Inbox(link)
    from tailrace.spark.libraries import MOST_WAITING, open_for

    link.send(Report(os.getpid()))
    log = Layout.of(request.platform).spark_log
    spark = open_for(request.sinks, request.platform.spark, log, waiting=MOST_WAITING)
    runtime = Runtime(request, spark)
    last = float("-inf")
    while not (inbox.closed.wait(TICK_S) and runtime.is_idle):
        _end_with(spark)
        runtime.step(Order() if inbox.closed.is_set() else inbox.order)
        if time.monotonic() >= last + REPORT_S:
            last = time.monotonic()
            with suppress(OSError):  # the server has left
                link.send(runtime.report())
    spark.stop()


class _Inbox(threading.Thread):
    """The last order of the server; `closed` once it has left."""

    def __init__(self, link: Connection) -> None:
        super().__init__(name="orders", daemon=True)
        self._link = link
        self.order = Order()
        self.closed = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while True:
                self.order = self._link.recv()
        except (EOFError, OSError):
            self.closed.set()


def _end_with(spark: SparkSession) -> None:
    """A runtime without its JVM can do nothing but be started again."""
    gateway = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        print("tailrace: Spark's JVM has ended", file=sys.stderr)
        os._exit(1)


def _snapshot_report(thread: SnapshotThread) -> SnapshotReport:
    try:
        tables = thread.status()
        errors = tuple(error.as_dict() for error in thread.failures)
    except TailraceError as error:
        return SnapshotReport((), (), (error.as_dict(),))
    except Exception as error:
        told = SparkError("spark.internal", f"{type(error).__name__}: {error}", hint="please report it")
        return SnapshotReport((), (), (told.as_dict(),))
    return SnapshotReport(tables, thread.warnings(), errors)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
