"""The change log as a Spark data source, `format("tailrace")`: a stream, or with `spark.read` a fixed range.

Python sources have no read limits in this Spark, so the reader bounds each batch itself: `latestOffset`
answers where the *next* batch ends. It is asked only after the batch planned before is in the commit log, and
it waits a little for changes, so that an idle query sleeps here instead of spinning in Spark. Method names
are Spark's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tailrace.change import CHANGES_DDL
from tailrace.changelog import Limits, LogReader, Slice, Subscribers, read_slice
from tailrace.contracts import Portion
from tailrace.errors import LogError
from tailrace.machine import lifeline
from tailrace.spark.checkpoint import Mark
from tailrace.spark.control import Control, Orders
from tailrace.spark.passage import carried

FORMAT = "tailrace"
IDLE_S = 2.0
"""How long `latestOffset` waits for changes before it reports that there are none."""
FIRST_POLL_S, LAST_POLL_S = 0.004, 0.1
"""Pauses between looks, growing from the first to the last: quick when busy, cheap when idle."""


@dataclass(frozen=True)
class ReadOptions:
    """The source's options, which Spark carries as text. Only `path` is needed to read a fixed range."""

    path: str
    tasks: int = 1
    start: int | None = None
    """Where reading begins: for a stream, the end of the newest batch of its checkpoint."""
    end: int | None = None
    """Where a fixed range ends; absent: where the log does."""
    version: int | None = None
    """The table version whose changes a fixed range is read for; absent: all."""
    last: bool = False
    """Whether only the last change of each key of that version is read."""
    began: int | None = None
    """Of that version, only one portion of its changes (see `contracts.Portion`) is read, with this beginning..."""
    new: bool = False
    """...and this one of the two."""
    initial: int | None = None
    """Where the stream's first batch began."""
    log: str = ""
    """The log's id; a log with another one is refused."""
    state: str = ""
    """The query's state directory, for `control.json`."""
    subscriber: str = ""
    required: bool = True
    linger_ms: int = 0
    """How long the oldest waiting change may wait for company before a batch is cut..."""
    linger_bytes: int = 0
    """...unless this much waits..."""
    linger_rows: int = 0
    """...or as many changes."""
    max_events: int = Limits.max_events
    max_bytes: int = Limits.max_bytes
    respect_source_tx: bool = True
    snapshot_batches: int = 1

    @property
    def limits(self) -> Limits:
        return Limits(self.max_events, self.max_bytes, self.respect_source_tx, self.snapshot_batches)

    @property
    def portion(self) -> Portion | None:
        return None if self.began is None else Portion(self.began, self.new)

    def as_text(self) -> dict[str, str]:
        """For `DataStreamReader.options`."""
        return {name: str(value) for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_text(cls, options: Mapping[str, str]) -> ReadOptions:
        """The inverse; keys are matched without case, as Spark does, and unknown ones are Spark's own."""
        given = {name.lower(): text for name, text in options.items()}
        if "path" not in given:
            raise LogError(
                "log.missing", "no change log is named", hint='add .option("path", "<directory of the log>")'
            )
        parsers: dict[str, Callable[[str], Any]] = {
            "int": int,
            "int | None": int,
            "str": str,
            "bool": lambda text: text.lower() == "true",
        }
        kinds = {field.name: str(field.type) for field in cls.__dataclass_fields__.values()}
        return cls(**{name: parsers[kind](given[name]) for name, kind in kinds.items() if name in given})


class LogSource(DataSource):
    """Register with `spark.dataSource.register(LogSource)`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return CHANGES_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangeReader(ReadOptions.from_text(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(ReadOptions.from_text(self.options))


def own_source(query: str) -> type[LogSource]:
    """The source under a name of the query's own.

    Spark adds to a registered source's environment while tasks run; a query that shares the source and serialises
    a task just then sends a torn map (`OptionalDataException`).
    """
    name = f"{FORMAT}:{query}"
    return type("LogSource", (LogSource,), {"name": classmethod(lambda cls: name)})


class SlicePartition(InputPartition):
    """One task's share of a batch."""

    value: Slice


class RangeReader(DataSourceReader):
    """All that the log retains from `start` on, as it is when the read is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        with carried():
            log = LogReader(self._options.path, self._options.start)
            start = log.earliest if self._options.start is None else self._options.start
            end = log.end if self._options.end is None else self._options.end
            options = self._options
            slices = log.slices(start, end, options.tasks, options.version, last=options.last, portion=options.portion)
            return [SlicePartition(piece) for piece in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class StreamReader(DataSourceStreamReader):
    """Plans batches in a process of its own beside the driver; `read` runs in tasks and uses no state."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._plan: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:
        with carried():
            return self._planner().initial().as_dict()

    def latestOffset(self) -> dict[str, Any]:
        with carried():
            return self._planner().next_end().as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with carried():
            slices = self._planner().slices(Mark(**start), Mark(**end))
            return [SlicePartition(piece) for piece in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def _planner(self) -> Planner:
        if self._plan is None:
            lifeline.hold(os.getppid())
            self._plan = Planner(self._options)
        return self._plan


class Planner:
    """Decides where batches end: within the limits, at a transaction's end, not past the target."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log = LogReader(options.path, options.start)
        self._subscribers = Subscribers(options.path)
        self._control = Control(Path(options.state))
        self._planned = self._log.earliest if options.start is None else options.start
        self._reported = -1
        self._refuse_other_log(options.log or self._log.log_id)

    def initial(self) -> Mark:
        """Where the first batch begins; the same whenever it is asked."""
        offset = self._planned if self._options.initial is None else self._options.initial
        return Mark(self._log.log_id, offset)

    def next_end(self) -> Mark:
        """Where the next batch ends, or where the last one did if nothing came within `IDLE_S`."""
        self._settle()
        deadline = time.monotonic() + IDLE_S
        pause = FIRST_POLL_S
        while True:
            orders = self._control.orders()
            self._log.refresh()
            end = self._planned if orders.drain else self._cut(orders)
            if orders.drain:
                self._control.answer()
            if end > self._planned or time.monotonic() >= deadline:
                self._planned = end
                return Mark(self._log.log_id, end)
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL_S)

    def slices(self, start: Mark, end: Mark) -> list[Slice]:
        """The tasks of the batch `[start, end)`."""
        self._refuse_other_log(start.log)
        self._planned = max(self._planned, end.offset)
        return self._log.slices(start.offset, end.offset, self._options.tasks)

    def _settle(self) -> None:
        """Everything planned before is committed: it will not be read again, so the log may let go of it."""
        self._log.forget(self._planned)
        if self._options.subscriber and self._reported != self._planned:
            options = self._options
            self._subscribers.report(options.subscriber, self._planned, required=options.required)
            self._reported = self._planned

    def _cut(self, orders: Orders) -> int:
        if self._log.end <= self._planned:
            return self._planned
        end = self._log.cut(self._planned, self._options.limits)
        if orders.target is not None:
            end = max(self._planned, min(end, orders.target))
        if end == self._planned or end < self._log.end or end == orders.target:
            return end  # nothing, or a limit was reached: waiting would not make the batch larger
        return end if self._waited_enough() else self._planned

    def _waited_enough(self) -> bool:
        options = self._options
        if not options.linger_ms:
            return True
        pending = self._log.pending(self._planned, options.limits)
        if options.linger_bytes and pending.bytes >= options.linger_bytes:
            return True
        if options.linger_rows and pending.rows >= options.linger_rows:
            return True
        return pending.oldest_us is not None and time.time_ns() // 1000 - pending.oldest_us >= options.linger_ms * 1000

    def _refuse_other_log(self, expected: str) -> None:
        if expected != self._log.log_id:
            raise replaced(self._options.path)


def replaced(path: str) -> LogError:
    """The log is not the one the checkpoint knows."""
    return LogError(
        "log.replaced",
        "the change log was recreated since this sink last read it",
        hint="restore the old log, or delete the sink's checkpoint to start over on this one",
        where=path,
    )


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    with carried():
        yield from read_slice(partition.value)
