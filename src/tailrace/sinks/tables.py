"""Sinks that keep tables: they get whole batches on the driver and carry their own marks, one per table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from tailrace.contracts import Content, Delivery, Extent, Portion, Sink, Span
from tailrace.schema import TableSchema
from tailrace.sinks.typed_rows import TypedRows


@dataclass
class Applied:
    """What a batch brought to one version of a table."""

    rows: int
    last_us: int


@dataclass(frozen=True)
class Debt:
    """What a table's upkeep would remove: `small_files` that could be one, `delete_files` (or deletion vectors) that
    every read applies, and `snapshots` (or versions) that keep old files."""

    files: int
    small_files: int
    delete_files: int
    snapshots: int


@dataclass(frozen=True)
class Portions:
    """Whether a range of the log has `new` rows of a table's first snapshot, and `other` changes of the table."""

    new: bool
    other: bool


class Log(Protocol):
    """The log as a table sink sees it: each table's part of a batch is read apart, by its own job."""

    @property
    def log_id(self) -> str: ...

    @property
    def drops_rows(self) -> bool:
        """Whether processors drop rows, by what is in them: one that was dropped may come back with its next change."""
        ...

    @property
    def earliest(self) -> int:
        """The oldest retained offset."""
        ...

    def versions(self) -> Mapping[int, TableSchema]:
        """Every table version that the log knows, by its id."""
        ...

    def ends(self, start: int, end: int) -> list[int]:
        """Where to cut `[start, end)` so that no part is too large for one batch; the last is `end`."""
        ...

    def contents(self, start: int, end: int) -> list[Content]:
        """What `[start, end)` has of each table version, by the place of its first change."""
        ...

    def portions(self, start: int, end: int, version: int, began: int) -> Portions | None:
        """Which portions the changes of one table version in `[start, end)` have, for a table that has held every
        change since `began` and nothing else. None where it cannot be told which rows are new."""
        ...

    def read(
        self, start: int, end: int, version: int, *, last: bool = False, portion: Portion | None = None
    ) -> DataFrame:
        """The changes of one table version in `[start, end)`, or a portion of them, or the `last` of each key, with the
        sink's columns."""
        ...

    def batches(self, start: int, end: int, version: int, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """The same changes, or the `last` of each key, with all their columns, here on the driver. They are in no
        order."""
        ...

    def read_rows(self, start: int, end: int, version: int, rows: TypedRows, portion: Portion) -> DataFrame | None:
        """The row images of a portion of those changes as typed columns. Whoever reads it fails where a value does not
        fit its column. None where processors before it want frames."""
        ...

    def keys(self, start: int, end: int, version: int, portion: Portion | None = None) -> Iterator[pa.Array[Any]]:
        """The keys of those changes, as texts."""
        ...

    def retain(self, table: str, offset: int | None) -> None:
        """Keep what lies at and above `offset` for a table that waits; None: it waits no longer."""
        ...


class Keeper(Protocol):
    """The driver's side of a table sink, for one log. Used by one thread at a time."""

    def mark(self) -> int:
        """The offset below which every change of the log is in its table or waits for a table that halted."""
        ...

    def settle(self) -> None:
        """Before the first batch: let tables that halted or were rolled back catch up with the others."""
        ...

    def keep(self, span: Span) -> dict[int, Applied]:
        """Apply a batch: what the log has in `span`. Returns what it brought, by the id of the table version. A repeat
        changes nothing."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What somebody should know, such as tables that halted."""
        ...

    def care(self) -> Care | None:
        """What tends the tables while batches come; None where nothing is wanted."""
        ...


class Care(Protocol):
    """Tends a sink's tables beside its batches, in a thread of its own."""

    def tend(self) -> float:
        """Do what is due. Returns the seconds until something is due again. What fails is a warning, and due again."""
        ...

    def debts(self) -> Mapping[str, Debt]:
        """What was found last, by the name of the source's table."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What could not be done the last time."""
        ...


def nothing(extents: Sequence[Extent]) -> DataFrame:
    """The rows of no table."""
    raise AssertionError("there is no table")


@dataclass(frozen=True)
class Pin:
    """A mirror at one moment: it holds every change below `offset`, and none at or above it. Without a table there are
    no `types`; without a `version` the table says not which version its columns follow.

    `rows` gives the rows of these extents, or more; all of the table where there are none. `close` frees what keeps the
    moment."""

    offset: int
    version: TableSchema | None
    types: Mapping[str, DataType] | None = None
    rows: Callable[[Sequence[Extent]], DataFrame] = nothing
    close: Callable[[], None] = lambda: None


class Mirror(ABC):
    """One table of a sink whose tables equal the source's, for whoever compares the two."""

    @property
    @abstractmethod
    def session(self) -> SparkSession:
        """The session whose frames its rows are."""

    @abstractmethod
    def halted(self) -> str:
        """Why the table goes on no more; empty where it does."""

    @abstractmethod
    def state(self) -> object:
        """Another value whenever something moved: waiting for it makes sense then."""

    @abstractmethod
    def pinned(self) -> Pin | None:
        """The table as it is now; None while it becomes another."""

    @abstractmethod
    def types_of(self, schema: TableSchema) -> Mapping[str, DataType]:
        """The types of the rows' columns, if the table were made now."""


class TableSink(Sink):
    """Keeps one table for each table of the source."""

    repairs: ClassVar[bool] = False
    """Whether `verify` may remove rows from its mirrors."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Canonical columns (see `change.CHANGES`, plus `event_id`) that `Keeper.keep` needs."""

    def mirror(
        self, spark: SparkSession, schema: TableSchema, delivery: Delivery, log_id: str, state_dir: Path
    ) -> Mirror:
        """What there is of a table of the source, of a sink that `mirrors`. `state_dir` is the keeper's."""
        raise NotImplementedError

    @abstractmethod
    def keeper(self, spark: SparkSession, delivery: Delivery, log: Log, state_dir: Path) -> Keeper:
        """Open it. Raises `SinkError("sink.unavailable")` where waiting can help."""
