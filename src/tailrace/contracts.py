"""What the stages promise each other. Everything else may change; this page should not.

Describe, then open: a connector is a frozen, picklable pydantic model (configuration, documentation and JSON
schema at once); connections are born where they are used, by `open`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import pyarrow as pa
from pydantic import Field

from tailrace.config import Envelope, Model, NativeEnvelope
from tailrace.schema import TableSchema


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
class Capture:
    """What a source yields: whole transactions with the position to resume after them, or a part of a
    transaction that is still open (`resume` is None), which stays invisible until its end is appended."""

    frame: Frame | None
    resume: Mapping[str, str] | None
    schemas: tuple[TableSchema, ...] = ()
    xids: tuple[int, int] | None = None


@dataclass(frozen=True)
class LogState:
    """Where a log stands, for the source that continues it."""

    resume: Mapping[str, str] | None
    schemas: tuple[TableSchema, ...]
    log_id: str = ""


class Source(Protocol):
    """An open source. `batches` runs until told to stop; resuming is only ever at transaction boundaries."""

    def batches(self, after: LogState) -> Iterator[Capture]: ...

    def acknowledge(self, resume: Mapping[str, str]) -> None:
        """Everything up to `resume` is durable in the log: the database may forget it (Law 1)."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Delivery:
    """Whose delivery it is. `name` is the pipeline's; together with the sink's id it names marks and producers."""

    pipeline: str
    tenant: str
    source: str


class Writer(Protocol):
    """Lives in one Spark task, for one span. It gets the sink's columns as Arrow batches, in `seq` order per key."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> str:
        """Deliver every row, durably, before returning. The receipt (may be "") reaches `Sink.commit`."""
        ...


class Sink(Model, ABC):
    """Where records go. A subclass is one file in `sinks/`; its docstring says how it absorbs a repeat (Law 4)."""

    id: Annotated[str, Field(description="Unique name of the sink in its pipeline.", pattern=r"^[A-Za-z0-9._-]+$")]
    required: Annotated[bool, Field(description="A required sink's unread changes are never dropped from the log.")] = (
        True
    )
    envelope: Annotated[Envelope, Field(description="Shape of each record.")] = NativeEnvelope()

    def columns(self) -> tuple[str, ...]:
        """Canonical columns (see `change.CHANGES`, plus `event_id`) the writer needs besides `value` and its routes."""
        return ()

    def routes(self) -> Mapping[str, str]:
        """Column name → routing template (`${source.table}` …), rendered per change for the writer."""
        return {}

    def wants_value(self) -> bool:
        """Whether the writer needs `value`, the rendered envelope."""
        return True

    def gather(self) -> tuple[float, int] | None:
        """(seconds, bytes) to collect before a batch is cut, for sinks that prefer few large commits."""
        return None

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
