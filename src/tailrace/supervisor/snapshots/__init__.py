"""Snapshots of one source: which tables need one, their chunks planned ahead, read in parallel and staged.

The tap admits what is staged here. All that is known is in the ledger and in the staged files: a crash costs the chunks
that were being read, one for each reader. A table that cannot be read fails alone: the others of its run are read, and
the next start tries it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from tailrace.backoff import Backoff
from tailrace.capture.postgres import PostgresSource, Snapshot
from tailrace.capture.staging import left_behind, remove_others
from tailrace.changelog import LogReader
from tailrace.config import Model
from tailrace.contracts import ChunkId, Extent, Staged
from tailrace.control.ledger import Run, SnapshotLedger, TableRequest, TableRun
from tailrace.errors import Action, SourceError, TailraceError, decide, located, rebuilt
from tailrace.failpoints import failpoint
from tailrace.machine.space import full_disk
from tailrace.spark.snapshot import Outcome, Read, ReadHere, ReadInSpark, Task, crashed
from tailrace.spec import Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.snapshots.requests import BESIDE
from tailrace.supervisor.status import SnapshotStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = tuple[str, str, str]
"""A table of a run: the run's id, schema and name."""

CHUNKS_PER_TASK = 8
AHEAD = 64
"""Chunks planned, and chunks staged, at most: what is read long before it is admitted is stale by then."""
OWED_PER_CHUNK = 1000
UNREAD = "rows that are there already are not captured: add `snapshot: {}` to the source to read them"
TICK_S = 0.1
IDLE_TICK_S = 1.0
"""How soon a request is noticed while no snapshot is under way."""
MODES = get_args(Snapshot.model_fields["mode"].annotation)
AGAIN = "failed before"
"""The reason of a run over tables that the run before could not read."""


class Snapshots:
    """`step` does what can be done now and returns; nothing of it blocks on the tap."""

    def __init__(self, source: PostgresSource, ledger: SnapshotLedger, read: Read, backoff: Backoff) -> None:
        self._source, self._ledger, self._read, self._backoff = source, ledger, read, backoff
        self._pool = ThreadPoolExecutor(source.snapshot.max_parallel_chunks, "snapshot")
        self._reading: dict[Future[list[Outcome]], Task] = {}
        self._not_before = 0.0
        self._waiting_for: dict[Place, TailraceError] = {}
        """Why tables wait for the next try."""
        self._reasons: dict[Place, TailraceError] = {}
        """Why tables failed in this process."""
        self._failed: list[TableRun] = []
        self._under_way: list[str] | None = None
        self.warnings: list[str] = []
        self.failure: TailraceError | None = None
        """Why nothing of what the mode wants could be read: without it the pipeline must not look healthy."""
        self.active = True
        """Whether a run was under way at the last step."""

    def begin(self, log_id: str, known: set[tuple[str, str]]) -> None:
        """Request what the configured mode wants of a log; `known`: tables whose schema the log has."""
        mode = self._source.snapshot.mode
        self._try_again(log_id)
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

    def _try_again(self, log_id: str) -> None:
        """Request what the stream could not tell and a run could not read either. What the mode wants is requested by
        it."""
        for table in self._ledger.failed(self._source.id):
            run, last = self._ledger.run(table.run), self._ledger.last_extent(table)
            by_mode = run.reason == self._source.snapshot.mode
            if table.filter is not None or run.log_id != log_id or by_mode or not self._must_have(run):
                continue
            again = TableRequest(table.schema, table.table, None, table.estimate)
            if last is not None and last.whole:
                self._ledger.request_parts(self._source.id, AGAIN, again, [Extent(whole=True)], log_id)
            else:
                self._ledger.request(self._source.id, AGAIN, [again], log_id=log_id, since=0)

    def recover(self, folder: Path) -> None:
        """Take over what was read before a crash, and remove the rest. Before the first step only."""
        self._ledger.stage(left_behind(folder))
        remove_others(folder, {each.file for each in self._ledger.staged(self._source.id)})

    @property
    def busy(self) -> bool:
        return bool(self._ledger.runs(self._source.id, "active"))

    def step(self, streaming: Callable[[], bool] = lambda: True) -> None:
        """`streaming` is asked after the runs are: one that was requested since then waits."""
        self._collect()
        runs = self._ledger.runs(self._source.id, "active")
        self.active = bool(runs)
        self._notice([run.id for run in runs])
        if self._waits or not streaming():
            return
        for run in runs:
            self._advance(run)

    def status(self) -> tuple[SnapshotStatus, ...]:
        """The tables of runs that are under way, and those that could not be read."""
        runs = self._ledger.runs(self._source.id, "active") if self.active else []
        tables = [table for run in runs for table in self._ledger.tables(run.id)]
        tables += [table for table in self._failed if table.run not in {run.id for run in runs}]
        return tuple(self._status(table) for table in tables)

    @property
    def failures(self) -> list[TailraceError]:
        """Why tables could not be read that the pipeline must have."""
        needed = [table for table in self._failed if self._must_have(self._ledger.run(table.run))]
        return [self._reasons.get(_place(table)) or _told(table) for table in needed]

    def close(self) -> None:
        """Wait for what is being read; it is read again next time."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._collect()

    def _must_have(self, run: Run) -> bool:
        """Whether the pipeline has a gap without this run. Not where somebody asked for it beside the pipeline, who may
        ask again, nor where a mode wanted it that is no longer configured."""
        return run.reason == self._source.snapshot.mode or run.reason not in BESIDE.union(MODES)

    # -- one run ---------------------------------------------------------------------------------------------

    def _advance(self, run: Run) -> None:
        open_tables = [table for table in self._ledger.tables(run.id) if table.state in ("planning", "reading")]
        for table in open_tables[: self._source.snapshot.max_parallel_tables]:
            with self._blamed(table):
                self._plan(table) if table.state == "planning" else self._collect_debts(table)
            if self._waits:
                return
        self._submit(run)

    def _plan(self, table: TableRun) -> None:
        if self._ledger.count(table.run, "planned") >= AHEAD:
            return
        last, size = self._ledger.last_extent(table), self._source.snapshot.chunk_size
        extents = self._source.plan_chunks(table.schema, table.table, last, size, AHEAD)
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
            staged = [each for each in outcomes if isinstance(each, Staged)]
            failpoint("snapshot.read.before_ledger")
            self._ledger.stage(staged)
            task = self._reading.pop(future)
            if staged:
                self._backoff.reset()
                self._waiting_for.pop(_place(staged[0].chunk), None)
            for error in (each for each in outcomes if isinstance(each, TailraceError)):
                self._handle(task[len(staged)][0], error)  # chunks are read in order, and the error is the last outcome

    # -- what goes wrong -------------------------------------------------------------------------------------

    @contextmanager
    def _blamed(self, table: TableRun) -> Iterator[None]:
        """What the block raises is this table's trouble, and no other's."""
        try:
            yield
        except TailraceError as error:
            self._handle(table, error)
        except Exception as error:
            self._handle(table, full_disk(error) or crashed(error))

    def _handle(self, table: TableRun | ChunkId, error: TailraceError) -> None:
        """Leave it out where it is no longer there, plan it anew where it has another key, wait where time can heal,
        and give it up otherwise."""
        if error.code == "source.table_missing":
            self._ledger.drop_table(table)
        elif error.code == "source.key_changed" and self._ledger.plan_anew(table):
            return
        elif decide(error) is Action.RETRY:
            self._waiting_for[_place(table)] = error
            self._not_before = time.monotonic() + self._backoff.next()
        else:
            self._reasons[_place(table)] = located(error, f"{table.schema}.{table.table}")
            self._ledger.fail_table(table, error)
            self._under_way = None

    @property
    def _waits(self) -> bool:
        return time.monotonic() < self._not_before

    def _notice(self, under_way: list[str]) -> None:
        """When a run began or ended, or a table failed: learn what could not be read."""
        if under_way == self._under_way:
            return
        self._under_way, self._failed = under_way, self._ledger.failed(self._source.id)
        self._waiting_for = {place: error for place, error in self._waiting_for.items() if place[0] in under_way}
        over = [place for place in self._reasons if place[0] not in under_way]
        for place in over if self.failure is None else ():
            run = self._ledger.run(place[0])
            wanted = run.reason == self._source.snapshot.mode
            if wanted and not self._ledger.covered(self._source.id, run.log_id):
                self.failure = self._reasons[place]

    def _status(self, table: TableRun) -> SnapshotStatus:
        waits = self._waiting_for.get(_place(table))
        error = table.error or (waits.as_dict() if waits is not None else None)
        rows, estimate = table.rows_admitted, table.estimate
        return SnapshotStatus(self._source.id, table.run, table.name, table.state, rows, estimate, error)


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
        self.source_id = name
        self._snapshots, self._streaming, self._log = snapshots, streaming, log
        self._halt = threading.Event()
        self.begun = False
        self._crash: TailraceError | None = None
        self._told: tuple[SnapshotStatus, ...] = ()

    @property
    def failure(self) -> TailraceError | None:
        """Why the source's snapshots stopped, or why the one its mode wants has nothing."""
        return self._crash or self._snapshots.failure

    @property
    def failures(self) -> list[TailraceError]:
        """Everything that the pipeline must have and that was not read, each with its reason."""
        return [*([self._crash] if self._crash is not None else []), *self._snapshots.failures]

    @property
    def busy(self) -> bool:
        """Whether something is still to be read or admitted, as far as can be said now."""
        if self._crash is not None:
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
            while not self._halt.wait(self._pause()) and self._crash is None:
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
            if decide(error) is not Action.RETRY:
                self._crash = error
        except Exception as error:  # nobody waits for a thread that ended without a word
            if full_disk(error) is None:  # otherwise the next step tries again
                self._crash = crashed(error)


@contextmanager
def _patience() -> Iterator[None]:
    """Leaves the block where only time is missing."""
    try:
        yield
    except TailraceError as error:
        if decide(error) is not Action.RETRY:
            raise


def start_snapshots(
    spark: SparkSession, of: Model, streaming: Callable[[], bool], layout: Layout, platform: Platform
) -> SnapshotThread:
    """The snapshots of the source `of`, not yet begun. `streaming` tells whether its tap reads the stream."""
    source = cast(PostgresSource, of)
    folder = layout.staged(source.id)
    read = ReadInSpark(spark, ReadHere(source, folder))
    snapshots = Snapshots(source, SnapshotLedger(layout.open_store()), read, platform.retry.backoff())

    snapshots.recover(folder)

    def known() -> tuple[str, set[tuple[str, str]]]:
        log = LogReader(layout.log(source.id))
        return log.log_id, {(schema.schema, schema.table) for schema in log.schemas.values()}

    return SnapshotThread(snapshots, streaming, known, source.id)


def _place(table: TableRun | ChunkId) -> Place:
    return table.run, table.schema, table.table


def _told(table: TableRun) -> TailraceError:
    """The error of a table that failed in an earlier process."""
    assert table.error is not None
    return rebuilt(SourceError, table.error)


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
        if last and len(last) < CHUNKS_PER_TASK and _place(last[0][0]) == _place(pair[0]):
            last.append(pair)
        else:
            tasks.append([pair])
    return tasks
