"""Snapshots of one source: which tables need one, their chunks planned ahead, read in parallel and staged.

The tap admits what is staged here. All that is known is in the ledger and in the staged files: a crash costs the chunks
that were being read, one for each reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from tailrace.backoff import Backoff
from tailrace.capture.postgres import PostgresSource
from tailrace.capture.staging import keep_only, left_behind
from tailrace.changelog import LogReader
from tailrace.contracts import ChunkId, Extent, Staged
from tailrace.control import Store
from tailrace.control.ledger import Ledger, Run, TableRequest, TableRun
from tailrace.errors import Action, SourceError, TailraceError, decide
from tailrace.machine.space import full_disk
from tailrace.spark.snapshot import Outcome, Read, ReadHere, ReadInSpark, Task
from tailrace.spec import Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.taps import TapProcess
from tailrace.supervisor.status import SnapshotStatus

CHUNKS_PER_TASK = 8
AHEAD = 64
"""Chunks planned, and chunks staged, at most: what is read long before it is admitted is stale by then."""
OWED_PER_CHUNK = 1000
UNREAD = "rows that are there already are not captured: add `snapshot: {}` to the source to read them"
TICK_S = 0.1
IDLE_TICK_S = 1.0
"""How soon a request is noticed while no snapshot is under way."""


class Snapshots:
    """`step` does what can be done now and returns; nothing of it blocks on the tap."""

    def __init__(self, source: PostgresSource, ledger: Ledger, read: Read, backoff: Backoff) -> None:
        self._source, self._ledger, self._read, self._backoff = source, ledger, read, backoff
        self._pool = ThreadPoolExecutor(source.snapshot.max_parallel_chunks, "snapshot")
        self._reading: dict[Future[list[Outcome]], Task] = {}
        self._not_before = 0.0
        self.warnings: list[str] = []
        self.failure: TailraceError | None = None
        self.active = True
        """Whether a run was under way at the last step."""

    def begin(self, log_id: str, known: set[tuple[str, str]]) -> None:
        """Request what the configured mode wants of a log; `known`: tables whose schema the log has."""
        mode = self._source.snapshot.mode
        covered = self._ledger.covered(self._source.id, log_id)
        missing = [
            TableRequest(schema, table, "false" if mode == "no_data" else None, estimate)
            for schema, table, estimate in self._source.snapshot_tables()
            if _wanted(mode, (schema, table), covered, known)
        ]
        if missing and not (mode == "always" and self._ledger.runs(self._source.id, "active")):
            self.warnings = self._source.preflight((each.schema, each.table) for each in missing)
            self._ledger.request(self._source.id, mode, missing, log_id=log_id, since=0)
        elif mode == "never" and not known and self._source.has_rows():
            self.warnings = [UNREAD]

    def recover(self, folder: Path) -> None:
        """Take over what was read before a crash, and remove the rest. Before the first step only."""
        self._ledger.stage(left_behind(folder))
        keep_only(folder, {each.file for each in self._ledger.staged(self._source.id)})

    @property
    def busy(self) -> bool:
        return bool(self._ledger.runs(self._source.id, "active"))

    def step(self, streaming: Callable[[], bool] = lambda: True) -> None:
        """`streaming` is asked after the runs are: one that was requested since then waits."""
        self._collect()
        runs = self._ledger.runs(self._source.id, "active")
        self.active = bool(runs)
        if time.monotonic() < self._not_before or not streaming():
            return
        for run in runs:
            try:
                self._advance(run)
            except TailraceError as error:
                self._handle(run.id, error)

    def status(self) -> tuple[SnapshotStatus, ...]:
        """The tables of runs that are under way."""
        if not self.active:
            return ()
        return tuple(
            SnapshotStatus(self._source.id, run.id, table.name, table.state, table.rows_admitted, table.estimate)
            for run in self._ledger.runs(self._source.id, "active")
            for table in self._ledger.tables(run.id)
        )

    def close(self) -> None:
        """Wait for what is being read; it is read again next time."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._collect()

    # -- one run ---------------------------------------------------------------------------------------------

    def _advance(self, run: Run) -> None:
        open_tables = [table for table in self._ledger.tables(run.id) if table.state in ("planning", "reading")]
        for table in open_tables[: self._source.snapshot.max_parallel_tables]:
            if table.state == "planning":
                self._plan(table)
            else:
                self._collect_debts(table)
        self._submit(run)

    def _plan(self, table: TableRun) -> None:
        if self._ledger.count(table.run, "planned") >= AHEAD:
            return
        try:
            extents = self._source.plan_chunks(
                table.schema,
                table.table,
                self._ledger.last_extent(table),
                self._source.snapshot.chunk_size,
                AHEAD,
            )
        except SourceError as error:
            if not self._is_gone(table, error):
                raise
            return
        filtered = [replace(extent, filter=table.filter) for extent in extents]
        self._ledger.plan(table, filtered, complete=extents[-1].high is None)

    def _collect_debts(self, table: TableRun) -> None:
        """When all ranges are in the log, read once more what they left owing."""
        if self._ledger.unfinished(table):
            return
        owed = sorted(self._ledger.owed(table.run, table.schema, table.table))
        parts = [owed[place : place + OWED_PER_CHUNK] for place in range(0, len(owed), OWED_PER_CHUNK)]
        self._ledger.plan(table, [Extent(keys=tuple(part)) for part in parts], complete=False)

    def _submit(self, run: Run) -> None:
        if self._ledger.count(run.id, "staged") >= AHEAD:
            return
        taken = {chunk for task in self._reading.values() for chunk, _ in task}
        waiting = [pair for pair in self._ledger.chunks(run.id, "planned", 2 * AHEAD) if pair[0] not in taken]
        for task in _tasks(waiting)[: max(0, 2 * self._source.snapshot.max_parallel_chunks - len(self._reading))]:
            self._reading[self._pool.submit(self._read, task)] = task

    def _collect(self) -> None:
        for future in [each for each in self._reading if each.done()]:
            outcomes = [] if future.cancelled() else future.result()
            self._ledger.stage(each for each in outcomes if isinstance(each, Staged))
            chunk, _ = self._reading.pop(future)[0]
            for error in (each for each in outcomes if isinstance(each, TailraceError)):
                if not self._is_gone(chunk, error):
                    self._handle(chunk.run, error)

    def _is_gone(self, table: TableRun | ChunkId, error: TailraceError) -> bool:
        """A table that was dropped since the run was requested is left out of it."""
        gone = error.code == "source.table_missing"
        if gone:
            self._ledger.drop_table(table)
        return gone

    def _handle(self, run: str, error: TailraceError) -> None:
        if decide(error) is Action.RETRY:
            self._not_before = time.monotonic() + self._backoff.next()
            return
        self._ledger.fail(run, error)
        if self._ledger.run(run).reason == self._source.snapshot.mode:
            self.failure = error  # without it the pipeline has a gap, and must not look healthy


class SnapshotThread(threading.Thread):
    """Steps until told to stop, while the stream runs: what is planned before a stream begins may miss rows that are
    not in the stream either. `log` tells the log's id and the tables it knows."""

    def __init__(
        self,
        snapshots: Snapshots,
        streaming: Callable[[], bool],
        log: Callable[[], tuple[str, set[tuple[str, str]]]],
        name: str,
    ) -> None:
        super().__init__(name=f"snapshots/{name}", daemon=True)
        self._snapshots, self._streaming, self._log = snapshots, streaming, log
        self._halt = threading.Event()
        self.begun = False
        self.failure: TailraceError | None = None
        self._told: tuple[SnapshotStatus, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether something is still to be read or admitted, as far as can be said now."""
        if self.failure is not None:
            return False
        with _patience():
            return not self.begun or self._snapshots.busy
        return True

    def status(self) -> tuple[SnapshotStatus, ...]:
        """What was known last, where it cannot be asked now."""
        with _patience():
            self._told = self._snapshots.status() if self.begun else ()
        return self._told

    def warnings(self) -> tuple[str, ...]:
        return tuple(self._snapshots.warnings)

    def stop(self) -> None:
        self._halt.set()

    def run(self) -> None:
        try:
            while not self._halt.wait(self._pause()) and self.failure is None:
                self._step()
        finally:
            self._snapshots.close()

    def _pause(self) -> float:
        return TICK_S if self._snapshots.active else IDLE_TICK_S

    def _step(self) -> None:
        try:
            if not self.begun and self._streaming():
                self._snapshots.begin(*self._log())
                self.begun = True
            if self.begun:
                self._snapshots.step(self._streaming)
        except TailraceError as error:
            if decide(error) is Action.STOP:
                self.failure = error
        except Exception as error:  # nobody waits for a thread that ended without a word
            text = f"{type(error).__name__}: {error}"
            if full_disk(error) is not None:
                return  # the next step tries again
            self.failure = SourceError("snapshot.crashed", text, hint="start again; if it comes back, please report it")
        self.failure = self.failure or self._snapshots.failure


@contextmanager
def _patience() -> Iterator[None]:
    """Leaves the block where only time is missing."""
    try:
        yield
    except TailraceError as error:
        if decide(error) is Action.STOP:
            raise


def start_snapshots(spark: SparkSession, tap: TapProcess, layout: Layout, platform: Platform) -> SnapshotThread:
    """The snapshots of a tap's source, not yet begun."""
    source = cast(PostgresSource, tap.source)
    folder = layout.staged(source.id)
    read = ReadInSpark(spark, ReadHere(source, folder))
    snapshots = Snapshots(source, Ledger(Store(layout.store)), read, Backoff(*platform.retry.seconds()))

    snapshots.recover(folder)

    def known() -> tuple[str, set[tuple[str, str]]]:
        log = LogReader(layout.log(source.id))
        return log.log_id, {(schema.schema, schema.table) for schema in log.schemas.values()}

    return SnapshotThread(snapshots, tap.is_streaming, known, source.id)


def _wanted(mode: str, table: tuple[str, str], covered: set[tuple[str, str]], known: set[tuple[str, str]]) -> bool:
    match mode:
        case "always":
            return True
        case "no_data":
            return table not in known
        case "initial" | "when_needed":
            return table not in covered
        case _:
            return False


def _tasks(chunks: Sequence[tuple[ChunkId, Extent]]) -> list[Task]:
    """Neighbours of one table, a few at a time."""
    tasks: list[Task] = []
    for pair in chunks:
        last = tasks[-1] if tasks else []
        if last and len(last) < CHUNKS_PER_TASK and _table_of(last[0][0]) == _table_of(pair[0]):
            last.append(pair)
        else:
            tasks.append([pair])
    return tasks


def _table_of(chunk: ChunkId) -> tuple[str, str]:
    return chunk.schema, chunk.table
