"""The upkeep of lake tables: fewer files, fewer snapshots, beside the stream and without breaking it.

A pass first runs while batches come. Where it loses a table to a batch, it runs once more while that table's batches
wait, which is short: a pass rewrites a bounded number of rows. A batch that loses to a pass is repeated (`keeper`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated

from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.errors import PySparkException

from tailrace.config import Model
from tailrace.errors import TailraceError
from tailrace.jvm import reason
from tailrace.sinks.lake.target import Compaction, DataFile, Target
from tailrace.sinks.tables import Debt

SMALL_BYTES = 64 * 1024 * 1024
"""A file below this is small, if it can be merged with another of its size within one pass."""
LOOK_S = 60.0
"""How soon to look again where there was nothing yet."""
HEAVY = 0.3
"""A file that has lost this share of its rows is worth to be written anew."""


class Maintenance(Model):
    """Compaction (small files become large ones) and expiry (old snapshots are removed), while the pipeline runs."""

    enabled: Annotated[bool, Field(description="Whether a running pipeline does this by itself.")] = False
    expire_snapshots_interval_seconds: Annotated[
        float,
        Field(gt=0, description="How often old snapshots or versions are removed, with the files only they have."),
    ] = 3600
    expire_snapshots_older_than_seconds: Annotated[
        float, Field(ge=0, description="How old they must be. The one with the last mark stays. Delta: 3600 or more.")
    ] = 86400
    compaction_interval_seconds: Annotated[float, Field(gt=0, description="How often small files are merged.")] = 7200
    compaction_file_threshold: Annotated[
        int, Field(ge=2, description="How many small files a table must have to be compacted.")
    ] = 10
    compaction_max_rows_per_batch: Annotated[
        int,
        Field(
            ge=2,
            description="Rows of a table that a pass rewrites at most; the rest waits for the next. A file that has "
            "more than half of that is not merged.",
        ),
    ] = 500_000


def compaction(files: Sequence[DataFile], maintenance: Maintenance) -> Compaction | None:
    """What a pass should rewrite: small files, or where there are too few of them, files full of deleted rows."""
    bound = maintenance.compaction_max_rows_per_batch
    small = small_files(files, bound)
    if len(small) >= maintenance.compaction_file_threshold:
        chosen = _within(small, lambda file: file.bytes, bound)
        below = max(file.bytes for file in chosen) + 1
        return Compaction(below=below, files=_count([file for file in small if file.bytes < below], bound))
    heavy = [file for file in files if file.deleted_share >= HEAVY and file.rows <= bound]
    if not heavy:
        return None
    chosen = _within(heavy, lambda file: -file.deleted_share, bound)
    share = min(file.deleted_share for file in chosen)
    same = [file for file in files if file.deleted_share >= share]
    count = _count(same, bound)
    return Compaction(deleted_share=share, files=count) if count else None


def small_files(files: Sequence[DataFile], bound: int) -> list[DataFile]:
    """Files that can be merged: two of them fit a pass, and their partition has another."""
    small = [file for file in files if file.bytes < SMALL_BYTES and file.rows * 2 <= bound]
    partitions = Counter(file.partition for file in small)
    return [file for file in small if partitions[file.partition] > 1]


def _within(files: Iterable[DataFile], rank: Callable[[DataFile], float], bound: int) -> list[DataFile]:
    """The first files by rank that have `bound` rows together. Where files rank the same, all or none, as they cannot
    be told apart; but where that leaves nothing to merge, some."""
    ordered = sorted(files, key=rank)
    total, count = 0, 0
    while count < len(ordered) and total + ordered[count].rows <= bound:
        total, count = total + ordered[count].rows, count + 1
    whole = count
    while 0 < whole < len(ordered) and rank(ordered[whole - 1]) == rank(ordered[whole]):
        whole -= 1
    return ordered[:whole] if whole > 1 else ordered[: max(count, 1)]


def _count(files: Iterable[DataFile], bound: int) -> int:
    """How many files, whichever they are, have no more than `bound` rows."""
    total, count = 0, 0
    for rows in sorted((file.rows for file in files), reverse=True):
        total, count = total + rows, count + 1
        if total > bound:
            return count - 1
    return count


def debt_of(target: Target, bound: int) -> Debt:
    files = target.files()
    return Debt(len(files), len(small_files(files, bound)), target.delete_files(), target.version_count())


def compact(target: Target, maintenance: Maintenance) -> bool:
    """One pass over a table. False: there was nothing to do."""
    found = compaction(target.files(), maintenance)
    if found is not None:
        target.compact(found)
    return found is not None


def expire(target: Target, maintenance: Maintenance) -> None:
    target.expire(datetime.now(UTC) - timedelta(seconds=maintenance.expire_snapshots_older_than_seconds))


class Turns:
    """Who may write a table now."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def of(self, table: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(table, threading.Lock())


@dataclass
class _Job:
    """One kind of upkeep and when it is due."""

    what: str
    every: float
    do: Callable[[Target], object]
    due: float
    failed: dict[str, str] = field(default_factory=dict)


class LakeCare:
    """Implements `sinks.tables.Care`. `tables` are those the sink keeps now."""

    def __init__(
        self,
        maintenance: Maintenance,
        tables: Callable[[], Mapping[str, Target]],
        turns: Turns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._maintenance, self._tables, self._turns, self._clock = maintenance, tables, turns, clock
        self._debts: dict[str, Debt] = {}
        every, now = maintenance.compaction_interval_seconds, clock()
        self._jobs = [_Job("compaction", every, lambda target: compact(target, maintenance), now + every)]
        every = maintenance.expire_snapshots_interval_seconds
        self._jobs.append(_Job("expiry", every, lambda target: expire(target, maintenance), now + every))

    def tend(self) -> float:
        try:
            tables = self._tables()
        except FAILURES:
            return LOOK_S  # the batches meet the same, and say so
        due = [job for job in self._jobs if job.due <= self._clock()]
        for job in due:
            for name, target in tables.items():
                self._try(job, name, target)
            job.due = self._clock() + job.every
        if due or not self._debts:
            self._look(tables)
        wait = max(0.0, min(job.due for job in self._jobs) - self._clock())
        return wait if self._debts else min(wait, LOOK_S)

    def debts(self) -> Mapping[str, Debt]:
        return dict(self._debts)

    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{job.what} of {name} failed, next try within {job.every:g} s: {reason}"
            for job in self._jobs
            for name, reason in list(job.failed.items())
        )

    def _try(self, job: _Job, name: str, target: Target) -> None:
        job.failed.pop(name, None)
        try:
            self._beside(job, name, target)
        except FAILURES as error:
            job.failed[name] = reason(error)

    def _beside(self, job: _Job, name: str, target: Target) -> None:
        try:
            job.do(target)
        except FAILURES as error:
            if not target.is_conflict(error):
                raise
            with self._turns.of(name):
                job.do(target)

    def _look(self, tables: Mapping[str, Target]) -> None:
        for name, target in tables.items():
            try:
                self._debts[name] = debt_of(target, self._maintenance.compaction_max_rows_per_batch)
            except FAILURES:
                self._debts.pop(name, None)  # what stands in its way is a warning already, or it is gone


FAILURES = (PySparkException, Py4JError, TailraceError, OSError)
"""What upkeep may run into."""
