"""What runs in a Spark task: hand the rows to the sink's writer, count them, and report one outcome row.

A writer's failure is an outcome too, not a failed task: Spark abandons the other tasks of a failed job while
their workers still write, and the next attempt's records could overtake theirs (Law 3).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tailrace.contracts import Delivery, RecordSink, Rejected, Span
from tailrace.errors import SinkError, TailraceError
from tailrace.machine.space import full_disk
from tailrace.passage import pack
from tailrace.spark.control import Control
from tailrace.spark.letters import Refusals, RefusedHere

SPAN = "tailrace.span"
"""The property of a job that says which batch it delivers."""
OUTCOME = pa.schema([(name, pa.string()) for name in ("receipt", "error", "counts", "refused")])
OUTCOME_DDL = "receipt string, error string, counts string, refused string"

NEVER_NULL = {"unchanged": "array()", "headers": "map()", "tags": "array()"}
"""Columns that travel to tasks with something empty for null: Spark's writer goes back over a run of null lists for
every row that it adds, which makes large batches take minutes."""
COUNTED = ("schema_id", "ts_us")
"""Columns the counts need, whatever the sink wants."""


@dataclass
class Count:
    """What was delivered of one table version. `bytes` are those of rendered records; None where there are none."""

    rows: int = 0
    bytes: int | None = 0
    last_us: int = 0

    def add(self, other: Count) -> None:
        self.rows += other.rows
        self.bytes = None if self.bytes is None or other.bytes is None else self.bytes + other.bytes
        self.last_us = max(self.last_us, other.last_us)


class Deadline:
    """How long a task may take; None: as long as it wants."""

    def __init__(self, sink: str, seconds: float | None) -> None:
        self._sink, self._seconds, self._began = sink, seconds, time.monotonic()

    def is_over(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._began > self._seconds

    def check(self) -> None:
        if self.is_over():
            raise SinkError(
                "sink.unavailable",
                f"the batch took longer than {self._seconds:g} seconds",
                hint="the target is slow: raise sink_batch_deadline_secs, or lower batch.max_events",
                where=self._sink,
            )


@dataclass(frozen=True)
class WriteTask:
    """`mapInArrow`'s function: picklable, one for all batches; the job's property `SPAN` says which it is. `columns`
    are what the writer is given; `lock` is in the query's state directory. After `deadline_s` it gives up."""

    sink: RecordSink
    delivery: Delivery
    columns: tuple[str, ...]
    lock: Path
    refusals: Refusals
    deadline_s: float | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        receipt, error, refused = "", "", ""
        clock = Deadline(self.sink.id, self.deadline_s)
        counts: dict[int, Count] = {}
        with writing(self.lock):
            try:
                context = TaskContext.get()
                assert context is not None
                span = Span(*json.loads(context.getLocalProperty(SPAN) or ""))
                here = self.refusals.open(span, context.partitionId())
                writer = self.sink.open(
                    replace(self.delivery, ending=lambda: self._is_ending(clock)), span, context.partitionId()
                )
                written = writer.write(self._counted(batches, counts, here, clock))
                receipt = written.receipt
                here.settle(written.rejected)
                self._discount(written.rejected, counts)
                refused = here.told.pack()
            except TailraceError as failure:
                error = pack(failure)
            except Exception as failure:
                error = pack(self._unexpected(failure))
        told = json.dumps({number: asdict(count) for number, count in counts.items()})
        outcome = {"receipt": [receipt], "error": [error], "counts": [told], "refused": [refused]}
        yield pa.RecordBatch.from_pydict(outcome, schema=OUTCOME)

    def _is_ending(self, clock: Deadline) -> bool:
        return clock.is_over() or Control(self.lock.parent).orders().drain

    def _counted(
        self, batches: Iterable[pa.RecordBatch], counts: dict[int, Count], here: RefusedHere, clock: Deadline
    ) -> Iterator[pa.RecordBatch]:
        for whole in batches:
            clock.check()
            batch = here.passing(restored(whole))
            for number, count in _count(batch):
                counts.setdefault(number, Count()).add(count)
            yield batch.select(list(self.columns))

    def _discount(self, rejected: Sequence[Rejected], counts: dict[int, Count]) -> None:
        """What was refused was not delivered."""
        for each in rejected:
            count = counts[each.row.column("schema_id")[0].as_py()]
            count.rows -= 1
            if count.bytes is not None:
                sizes = _sizes(each.row)
                count.bytes -= 0 if sizes is None else int(sizes.sum())

    def _unexpected(self, failure: Exception) -> TailraceError:
        return full_disk(failure, self.sink.id) or SinkError(
            "sink.failed",
            f"{type(failure).__name__}: {failure}",
            hint="This is a defect of the sink: please report it with the Spark log",
            where=self.sink.id,
        )


@contextmanager
def writing(lock: Path) -> Iterator[None]:
    """A task writes: it shares the lock with its siblings. The kernel releases it however the task ends."""
    with _opened(lock) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def nobody_writes(lock: Path) -> bool:
    """Whether no task of an earlier batch, query or driver on this machine still writes."""
    with _opened(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def _opened(lock: Path) -> Iterator[int]:
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def restored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`NEVER_NULL` columns as they were: empty is null."""
    for name in NEVER_NULL:
        if name in batch.schema.names:
            column: Any = batch.column(name)
            empty = pa.array(np.diff(column.offsets.to_numpy()) == 0)
            nothing = pa.scalar(None, column.type)
            whole = pc.call_function("if_else", [empty, nothing, column])
            batch = batch.set_column(batch.schema.get_field_index(name), name, whole)
    return batch


def _count(batch: pa.RecordBatch) -> Iterator[tuple[int, Count]]:
    """(schema id, what the batch has of it)."""
    numbers, place = np.unique(batch.column("schema_id").to_numpy(), return_inverse=True)
    times, sizes = batch.column("ts_us").to_numpy(), _sizes(batch)
    for index, number in enumerate(numbers.tolist()):
        mine = place == index
        size = None if sizes is None else int(sizes[mine].sum())
        yield number, Count(int(mine.sum()), size, int(times[mine].max()))


def _sizes(batch: pa.RecordBatch) -> np.ndarray[Any, Any] | None:
    if "value" not in batch.schema.names:
        return None
    lengths: pa.Array[Any] = pc.call_function("binary_length", [batch.column("value")])
    return np.asarray(lengths.fill_null(0))
