"""What the stages promise each other. Everything else may change; this page should not.

Describe, then open: a connector is a frozen, picklable pydantic model (configuration, documentation and JSON
schema at once); connections are born where they are used, by `open`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self, cast

import pyarrow as pa
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import DebeziumEnvelope, Envelope, Model, NativeEnvelope
from tailrace.contracts.entries import ProcessorEntry
from tailrace.contracts.processing import BatchProcessor as BatchProcessor
from tailrace.contracts.processing import Place as Place
from tailrace.contracts.processing import Processor as Processor
from tailrace.contracts.processing import Step as Step
from tailrace.contracts.processing import Trait as Trait
from tailrace.contracts.provenance import UNKNOWN as UNKNOWN
from tailrace.contracts.provenance import Member as Member
from tailrace.contracts.provenance import OutboxNames as OutboxNames
from tailrace.contracts.provenance import Provenance as Provenance
from tailrace.registry import ENCODERS, PROCESSORS
from tailrace.schema import SchemaBook, TableSchema


@dataclass(frozen=True)
class Span:
    """A half-open range `[start, end)` of offsets of one log: what a micro-batch delivers."""

    log_id: str
    start: int
    end: int


_ROWS: list[pa.Field[Any]] = [
    pa.field("row", pa.int32()),  # place in source order, relative to the frame's first row
    pa.field("op", pa.uint8()),  # index into change.OPS
    pa.field("schema_id", pa.int32()),
    pa.field("tx", pa.int32()),  # index into txs
    pa.field("ordinal", pa.int32()),
    pa.field("key", pa.string()),
    pa.field("before", pa.string()),
    pa.field("after", pa.string()),
    pa.field("unchanged", pa.string()),  # JSON array text
    pa.field("headers", pa.string()),  # JSON object text
]
ROWS = pa.schema(_ROWS)

_TXS: list[pa.Field[Any]] = [
    pa.field("tx_id", pa.string()),
    pa.field("position", pa.string()),
    pa.field("ts_us", pa.int64()),
    pa.field("end_row", pa.int32()),  # rows of the frame up to this transaction's last; -1: it is still open
    pa.field("end_bytes", pa.int64()),  # bytes of row text up to there
]
TXS = pa.schema(_TXS)


@dataclass(frozen=True)
class Frame:
    """Some rows of the log in lane order: the unit a tap hands over and a reader gets back.

    `rows` has the columns `ROWS`, `txs` (columns `TXS`) one row per transaction that `rows.tx` points to,
    `lanes[i]:lanes[i + 1]` are the rows of lane i.
    """

    rows: pa.RecordBatch
    txs: pa.RecordBatch
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class ChunkId:
    """A piece of a table in a run of a snapshot."""

    run: str
    schema: str
    table: str
    number: int


class Need(NamedTuple):
    """A table that must be read again, because changes of it are not in the stream. With `whole` also the rows that the
    table no longer has must go downstream: what sinks have of it is replaced."""

    schema: str
    table: str
    reason: str
    whole: bool = False


@dataclass(frozen=True)
class Extent:
    """What a chunk has of its table: keys above `low` up to `high` (None: no bound), or just `keys`, or the `whole` of
    it, which replaces all there was; of that, what fulfils `filter`, which is SQL. Keys are texts the database reads
    back. `order` says what `low` and `high` are values of and how those are compared: by another key they mean nothing.
    """

    low: tuple[str, ...] | None = None
    high: tuple[str, ...] | None = None
    keys: tuple[str, ...] = ()
    whole: bool = False
    filter: str | None = None
    order: str = ""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Extent:
        low, high = (tuple(data[name]) if data[name] is not None else None for name in ("low", "high"))
        return cls(low, high, tuple(data["keys"]), data["whole"], data["filter"], data.get("order", ""))


@dataclass(frozen=True)
class Staged:
    """A chunk that was read: its rows in `file`, and what decides where the log may take them in.

    The log must have passed the position `after`, behind everything the read saw. `seen` says which transactions that
    was. `since` is a position from before it looked: what it did not see is in a stream that began there or earlier.
    All of it means something only at the server it was read from, which is `origin`. `reset`: the rows replace all
    there is of the table.
    """

    chunk: ChunkId
    file: str
    rows: int
    bytes: int
    since: str
    after: str
    seen: str
    schema: TableSchema
    at_us: int
    reset: bool
    keys: tuple[str, ...]
    origin: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "schema": self.schema.as_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Staged:
        made = {
            "chunk": ChunkId(**data["chunk"]),
            "schema": TableSchema.from_dict(data["schema"]),
            "keys": tuple(data["keys"]),
        }
        return cls(**{**data, **made})


@dataclass(frozen=True)
class Admitted:
    """That a chunk is in the log. Keys in `owed` have columns whose values are not in the log yet and must be
    read again; those in `paid` were owed before and no longer are. `replaces`, of a reset: chunks of the table that
    were read before this position are of what it replaced. `disjoint`: no other chunk of the run that says so has a
    row with the same key."""

    chunk: ChunkId
    rows: int
    owed: tuple[str, ...] = ()
    paid: tuple[str, ...] = ()
    replaces: str = ""
    disjoint: bool = False


STILL_OPEN: None = None
"""The `resume` of a capture whose last transaction has not ended."""
FORGOTTEN: Mapping[str, str] = {}
"""The `resume` of a capture after which the log has no position: the source begins anew."""


@dataclass(frozen=True)
class Capture:
    """What a source yields: whole transactions with the position to resume after them, or a part of a transaction that
    is `STILL_OPEN`, which stays invisible until its end is appended. After a `FORGOTTEN` position the source begins
    anew."""

    frame: Frame | None
    resume: Mapping[str, str] | None
    schemas: tuple[TableSchema, ...] = ()
    xids: tuple[int, int] | None = None
    admitted: Admitted | None = None


@dataclass(frozen=True)
class Break:
    """A change that concerns all rows of a table: a truncate (`t`) or a schema change (`s`, whose image is `after`)."""

    seq: int
    op: str
    after: str | None


@dataclass(frozen=True)
class Content:
    """What a range of the log has of one version of a table: `rows` changes from offset `first` to `last`, the newest
    committed at `last_us`."""

    schema_id: int
    rows: int
    first: int
    last: int
    last_us: int
    ops: frozenset[str]
    partial_columns: tuple[str, ...]
    """Columns that some changes lack: the source did not send their values."""
    has_key_changes: bool
    """Whether a row got another key."""
    has_partial_key_changes: bool
    """Whether one of those rows lacks columns."""
    breaks: tuple[Break, ...]


@dataclass(frozen=True)
class Portion:
    """One of two portions of a table's changes, for a table that has held every change of the log since the offset
    `began` and nothing else: its `new` rows, or all other changes. A row is new if the table's first snapshot since
    then read it and no change before it has its key."""

    began: int
    new: bool


VERDICT = "verdict"
"""The field of a position with which a log may not be continued: why (see `errors.Verdict`)."""


@dataclass(frozen=True)
class LogState:
    """Where a log stands, for the source that continues it. Whoever appends takes the ids of table versions from
    `book`."""

    resume: Mapping[str, str] | None
    book: SchemaBook
    log_id: str = ""


class Source(Protocol):
    """An open source. `batches` runs until told to stop; resuming is only ever at transaction boundaries."""

    def batches(self, after: LogState) -> Iterator[Capture]: ...

    def acknowledge(self, resume: Mapping[str, str]) -> None:
        """Everything up to `resume` is durable in the log: the database may forget it (Law 1)."""
        ...

    def settled(self) -> str:
        """The position up to which everything committed is in the log, whether or not it had rows for us."""
        ...

    def hurry(self, busy: bool) -> None:
        """Whether somebody waits for the next pause between batches."""
        ...

    def close(self) -> None: ...


def never() -> bool:
    """Of a run that does not end."""
    return False


@dataclass(frozen=True)
class Delivery:
    """Whose delivery it is. `pipeline` is its name; together with the sink's id it names marks and producers.

    `ending` tells whether the run drains. Whoever waits for a server asks it, and then gives up within a few seconds,
    with `sink.unavailable`: the batch comes again with the next run. It does not travel; a task has one of its own."""

    pipeline: str
    tenant: str
    source: str
    ending: Callable[[], bool] = field(default=never, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, (self.pipeline, self.tenant, self.source)


class Writer(Protocol):
    """Lives in one Spark task, for one span. It gets the sink's columns as Arrow batches, in `seq` order per key."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> str:
        """Deliver every row, durably, before returning. The receipt (may be "") reaches `Sink.commit`."""
        ...


@dataclass(frozen=True)
class Gather:
    """A batch is cut when its oldest change has waited for so long, or when so much is there (0: no such bound)."""

    seconds: float
    bytes: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Jar:
    """A library of the JVM that Spark must have, by its Maven coordinates; with all it needs, if `transitive`."""

    group: str
    artifact: str
    version: str
    transitive: bool = False


EXTENSIONS = "spark.sql.extensions"


class SinkFilter(Model):
    """Which changes a sink wants, by who made them."""

    exclude_synthetic: Annotated[bool, Field(description="Only what the source did.")] = False
    synthetic_only: Annotated[bool, Field(description="Only what a processor made.")] = False
    producers: Annotated[
        tuple[str, ...],
        Field(description="Of what processors made, only what these made. Absent: of all.", examples=[["enrich"]]),
    ] = ()


class Sink(Model, ABC):
    """Where changes go: as records (`RecordSink`) or into tables (`sinks.tables.TableSink`). A subclass is one file in
    `sinks/`; its docstring says how it absorbs a repeat (Law 4)."""

    id: Annotated[str, Field(description="Unique name of the sink in its pipeline.", pattern=r"^[A-Za-z0-9._-]+$")]
    required: Annotated[
        bool,
        Field(
            description="Whether the log keeps every change until this sink has it, even beyond its `retention`. "
            "`false`: the sink may fall behind the log, and then stops with `log.expired`."
        ),
    ] = True

    processors: Annotated[
        tuple[ProcessorEntry, ...],
        Field(description="Steps that this sink's changes go through, behind those of the spec."),
    ] = ()
    filter: Annotated[SinkFilter | None, Field(description="Which changes it wants, by who made them.")] = None

    def chain(self) -> tuple[Processor, ...]:
        """What its changes go through behind the processors that all sinks share."""
        own = tuple(entry.config for entry in self.processors)
        if self.filter is None:
            return own
        wanted = cast(type[Processor], PROCESSORS.load("synthetic"))
        return (*own, wanted.model_validate({"id": "filter", **self.filter.model_dump()}))

    def mirrors(self) -> bool:
        """Whether its tables are to equal their source."""
        return False

    def gather(self) -> Gather | None:
        """What to wait for before a batch is cut, for sinks that prefer few large commits."""
        return None

    def snapshot_batches(self) -> int:
        """How many batches' worth of rows of a snapshot it takes in one batch."""
        return 1

    def jars(self) -> tuple[Jar, ...]:
        """What Spark's JVM needs for it; fetched on first use."""
        return ()

    def spark_settings(self) -> Mapping[str, str]:
        """What Spark's session must be started with. `spark.sql.extensions` of several sinks are joined."""
        return {}


class RecordSink(Sink):
    """Gets each change as a record, in Spark tasks."""

    carries_tombstones: ClassVar[bool] = False
    """Whether it has records without a value: what `tombstones` of an envelope asks for."""

    envelope: Annotated[Envelope, Field(description="Shape of each record.")] = NativeEnvelope()

    @model_validator(mode="after")
    def _carries_its_tombstones(self) -> Self:
        if self.wants_tombstones and not self.carries_tombstones:
            hint = "leave tombstones out: deletes are records of their own"
            message = "this sink has no records without a value"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    @property
    def wants_tombstones(self) -> bool:
        """Whether a record without a value is to follow each delete."""
        return isinstance(self.envelope, DebeziumEnvelope) and self.envelope.tombstones

    def chain(self) -> tuple[Processor, ...]:
        """The same, and at its end what the envelope makes of values."""
        shared = super().chain()
        if not (isinstance(self.envelope, DebeziumEnvelope) and self.envelope.values == "debezium"):
            return shared
        values = cast(type[Processor], ENCODERS.load("debezium"))
        return (*shared, values.model_validate({"id": "envelope", "schemas": self.envelope.schemas}))

    def columns(self) -> tuple[str, ...]:
        """Canonical columns (see `change.CHANGES`, plus `event_id`) the writer needs besides `value` and its routes."""
        return ()

    def routes(self) -> Mapping[str, str]:
        """Column name → routing template (`${source.table}` …), rendered per change for the writer."""
        return {}

    def routed(self) -> Mapping[str, str]:
        """Column name → what processors call it in a change's `route` (`topic`, `key`, `headers` …). Behind processors
        the writer gets these columns: what they said, or else what `routes` or the row's key says, or null."""
        return {}

    def wants_value(self) -> bool:
        """Whether the writer needs `value`, the rendered envelope."""
        return True

    def prepare(self, delivery: Delivery) -> None:
        """Once on the driver, before the first batch: check reachability, create what is missing, finish an
        interrupted commit. Raises `SinkError("sink.unavailable")` where waiting can help."""

    def mark(self, delivery: Delivery, log_id: str) -> int:
        """The offset below which this sink already holds every change of the log; 0 where it keeps no mark."""
        return 0

    @abstractmethod
    def open(self, delivery: Delivery, span: Span, task: int) -> Writer:
        """In a Spark task: a writer for this span. May reuse connections between calls in one process."""

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        """On the driver, after every task of the span wrote: make it visible and move the mark."""
