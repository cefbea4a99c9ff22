"""The change log as a Spark data source, `format("tailrace")`: a stream, or with `spark.read` a fixed range.

Python sources have no read limits in this Spark, so the reader bounds each batch itself: `latestOffset`
answers where the *next* batch ends. It is asked only after the batch planned before is in the commit log, and
it waits a little for changes, so that an idle query sleeps here instead of spinning in Spark. Method names
are Spark's.
"""

from __future__ import annotations

import base64
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tailrace.change import CHANGES_DDL, PROCESSED_DDL
from tailrace.changelog import Limits, LogReader, Slice, Subscribers, read_slice
from tailrace.contracts import Portion
from tailrace.errors import LogError
from tailrace.machine import lifeline
from tailrace.passage import carried
from tailrace.schema import TableSchema
from tailrace.spark.chain import ChainTask
from tailrace.spark.checkpoint import Mark
from tailrace.spark.control import Control, Orders
from tailrace.spark.pace import Pace

FORMAT = "tailrace"
SLICES = "tailrace.slices"
"""The property of a job that says what its tasks read; see `ReadOptions.per_job`."""
IDLE_S = 2.0
"""How long `latestOffset` waits for changes before it reports that there are none."""
FIRST_POLL_S, LAST_POLL_S = 0.004, 0.1
"""Pauses between looks, growing from the first to the last: quick when busy, cheap when idle."""
REPORT_S = 1.0
"""A report is a file made durable: while there is always more, the log hears of progress this seldom."""
PACED_POLL_S = 0.05
"""The pause while the next batch is not due: only orders and a full batch are looked for."""


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
    quorum: int = 0
    linger_ms: int = 0
    """How long the oldest waiting change may wait for company before a batch is cut..."""
    linger_bytes: int = 0
    """...unless this much waits..."""
    linger_rows: int = 0
    """...or as many changes."""
    latency_ms: int = 0
    """Without `linger_ms`: how soon changes are to be delivered. A batch begins no earlier than that needs."""
    max_events: int = Limits.max_events
    max_bytes: int = Limits.max_bytes
    respect_source_tx: bool = True
    snapshot_batches: int = 1
    per_job: bool = False
    """Whether each job says by itself what its `tasks` tasks read, in its property `SLICES`: planned once, such a read
    serves for any number of ranges."""

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

    chain: ClassVar[ChainTask | None] = None
    """What changes go through where they are read. Not among the options, which Spark shows: it may have secrets."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return CHANGES_DDL if self.chain is None else PROCESSED_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.from_text(self.options)
        return JobReader(options.tasks, self.chain) if options.per_job else RangeReader(options, self.chain)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(ReadOptions.from_text(self.options), self.chain)


def own_source(query: str, chain: ChainTask | None = None) -> type[LogSource]:
    """The source under a name of the query's own, with what changes go through where they are read.

    Spark adds to a registered source's environment while tasks run; a query that shares the source and serialises
    a task just then sends a torn map (`OptionalDataException`).
    """
    name = f"{FORMAT}:{query}"
    return type("LogSource", (LogSource,), {"name": classmethod(lambda cls: name), "chain": chain})


class SlicePartition(InputPartition):
    """One task's share of a batch. `tables` and `label` are for a chain of processors."""

    value: Slice

    def __init__(self, value: Slice, tables: Mapping[int, TableSchema], label: str) -> None:
        super().__init__(value)
        self.tables, self.label = tables, label


def partitions_of(
    slices: Sequence[Slice], versions: Mapping[int, TableSchema], what: str, chain: ChainTask | None
) -> list[InputPartition]:
    """A partition for each slice of `what`."""
    if chain is None:
        return [SlicePartition(piece, {}, "") for piece in slices]
    return [
        SlicePartition(piece, {number: versions[number] for number in piece.names}, f"{what}-{place}")
        for place, piece in enumerate(slices)
    ]


class RangeReader(DataSourceReader):
    """All that the log retains from `start` on, as it is when the read is planned."""

    def __init__(self, options: ReadOptions, chain: ChainTask | None = None) -> None:
        self._options, self._chain = options, chain

    def partitions(self) -> list[InputPartition]:
        with carried():
            log = LogReader(self._options.path, self._options.start)
            start = log.earliest if self._options.start is None else self._options.start
            end = log.end if self._options.end is None else self._options.end
            options = self._options
            slices = log.slices(start, end, options.tasks, options.version, last=options.last, portion=options.portion)
            what = f"{start}-{end}-{options.version}-{options.began}-{options.new}"
            return partitions_of(slices, log.schemas, what, self._chain)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._chain)


class JobReader(DataSourceReader):
    """What the job that runs says (`SLICES`): in each job something else."""

    def __init__(self, tasks: int, chain: ChainTask | None = None) -> None:
        self._tasks, self._chain = tasks, chain

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partitions = unpack_partitions(context.getLocalProperty(SLICES) or "")
        return read_partition(partitions[partition.value], self._chain)


def pack_partitions(partitions: list[InputPartition]) -> str:
    """For the property `SLICES`."""
    return base64.b64encode(zlib.compress(pickle.dumps(partitions), level=1)).decode()


def unpack_partitions(text: str) -> list[InputPartition]:
    """What `pack_partitions` was given."""
    found: list[InputPartition] = pickle.loads(zlib.decompress(base64.b64decode(text)))
    return found


class StreamReader(DataSourceStreamReader):
    """Plans batches in a process of its own beside the driver; `read` runs in tasks and uses no state."""

    def __init__(self, options: ReadOptions, chain: ChainTask | None = None) -> None:
        self._options, self._chain = options, chain
        self._plan: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:
        with carried():
            return self._planner().initial().as_dict()

    def latestOffset(self) -> dict[str, Any]:
        with carried():
            return self._planner().next_end().as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with carried():
            first, last = Mark(**start), Mark(**end)
            planner = self._planner()
            slices = planner.slices(first, last)
            return partitions_of(slices, planner.versions(), f"{first.offset}-{last.offset}", self._chain)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._chain)

    def _planner(self) -> Planner:
        if self._plan is None:
            lifeline.hold(os.getppid())
            self._plan = Planner(self._options)
        return self._plan


class Planner:
    """Decides where batches end: within the limits, at a transaction's end, not past the target."""

    def __init__(
        self,
        options: ReadOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._clock, self._sleep = options, clock, sleep
        self._pace = Pace(0.0 if options.linger_ms else options.latency_ms / 1000)
        self._log = LogReader(options.path, options.start)
        self._subscribers = Subscribers(options.path)
        self._control = Control(Path(options.state))
        self._planned = self._log.earliest if options.start is None else options.start
        self._reported, self._reported_s = -1, -REPORT_S
        self._refuse_other_log(options.log or self._log.log_id)

    def initial(self) -> Mark:
        """Where the first batch begins; the same whenever it is asked."""
        offset = self._planned if self._options.initial is None else self._options.initial
        return Mark(self._log.log_id, offset)

    def next_end(self) -> Mark:
        """Where the next batch ends, or where the last one did if nothing came within `IDLE_S`."""
        began = self._clock()
        self._log.forget(self._planned)  # it is committed and will not be read again
        self._pace.end(began)
        deadline = began + IDLE_S
        pause = FIRST_POLL_S
        while True:
            orders = self._control.orders()
            self._log.refresh()
            now = self._clock()
            self._report(now, last=orders.drain or self._log.end == self._planned)
            end = self._planned if orders.drain else self._cut(orders)
            if orders.drain:
                self._control.answer()
            if end > self._planned:
                self._pace.begin(now)
            if end > self._planned or now >= deadline:
                self._planned = end
                return Mark(self._log.log_id, end)
            self._sleep(max(pause, min(self._pace.left_s(now), PACED_POLL_S)))
            pause = min(pause * 1.5, LAST_POLL_S)

    def slices(self, start: Mark, end: Mark) -> list[Slice]:
        """The tasks of the batch `[start, end)`."""
        self._refuse_other_log(start.log)
        self._planned = max(self._planned, end.offset)
        return self._log.slices(start.offset, end.offset, self._options.tasks)

    def versions(self) -> Mapping[int, TableSchema]:
        """Every table version that the log knows, by its id."""
        return self._log.schemas

    def _report(self, now: float, *, last: bool) -> None:
        """Everything planned before is committed, so the log may let go of it. `last`: no other report may follow
        soon."""
        options = self._options
        due = last or now >= self._reported_s + REPORT_S
        if options.subscriber and self._reported != self._planned and due:
            self._subscribers.report(
                options.subscriber, self._planned, required=options.required, quorum=options.quorum
            )
            self._reported, self._reported_s = self._planned, now

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
            return not self._pace.left_s(self._clock())
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


def read_partition(partition: InputPartition, chain: ChainTask | None) -> Iterator[pa.RecordBatch]:
    """In a task: the changes of its slice, behind the chain."""
    assert isinstance(partition, SlicePartition)
    with carried():
        changes = read_slice(partition.value)
        if chain is not None:
            new = bool(partition.value.new)
            changes = chain.process(changes, partition.tables, partition.label, new=new)
        yield from changes
