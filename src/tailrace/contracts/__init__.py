"""What the stages promise each other. Everything else may change; this page should not.

Describe, then open: a connector is a frozen, picklable pydantic model (configuration, documentation and JSON
schema at once); connections are born where they are used, by `open`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tailrace.contracts.checking import Check as Check
from tailrace.contracts.checking import Subject as Subject
from tailrace.contracts.letter_topics import LetterRecord as LetterRecord
from tailrace.contracts.letter_topics import LetterTemplate as LetterTemplate
from tailrace.contracts.letters import OPEN as OPEN
from tailrace.contracts.letters import Letter as Letter
from tailrace.contracts.letters import LetterState as LetterState
from tailrace.contracts.letters import OnError as OnError
from tailrace.contracts.processing import DEAD_LETTER as DEAD_LETTER
from tailrace.contracts.processing import BatchProcessor as BatchProcessor
from tailrace.contracts.processing import Failed as Failed
from tailrace.contracts.processing import Place as Place
from tailrace.contracts.processing import Processor as Processor
from tailrace.contracts.processing import Step as Step
from tailrace.contracts.processing import Trait as Trait
from tailrace.contracts.provenance import UNKNOWN as UNKNOWN
from tailrace.contracts.provenance import Member as Member
from tailrace.contracts.provenance import OutboxNames as OutboxNames
from tailrace.contracts.provenance import Provenance as Provenance
from tailrace.contracts.sinks import EXTENSIONS as EXTENSIONS
from tailrace.contracts.sinks import Delivery as Delivery
from tailrace.contracts.sinks import Gather as Gather
from tailrace.contracts.sinks import Hold as Hold
from tailrace.contracts.sinks import Jar as Jar
from tailrace.contracts.sinks import RecordSink as RecordSink
from tailrace.contracts.sinks import Rejected as Rejected
from tailrace.contracts.sinks import Sink as Sink
from tailrace.contracts.sinks import SinkFilter as SinkFilter
from tailrace.contracts.sinks import SinkRetry as SinkRetry
from tailrace.contracts.sinks import Span as Span
from tailrace.contracts.sinks import Writer as Writer
from tailrace.contracts.sinks import Written as Written
from tailrace.contracts.sinks import never as never
from tailrace.schema import SchemaBook, TableSchema

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
