"""The task's half of the file sink: rows into staged files, each with rows of one table and day.

A table's files are numbered as they are begun. Commit days may go back (clocks do, and a snapshot's rows stand between
older changes): then another file is begun, so that the order of names is the order of delivery (Law 3).
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.change import CHANGES
from tailrace.config import MIB
from tailrace.contracts import Span, Written
from tailrace.failpoints import failpoint
from tailrace.sinks.file.layout import day_directory, table_directory

_OWN = frozenset((*CHANGES.names, "event_id", "value"))
_DAY_US = 86_400_000_000
_ROW_GROUP_BYTES = 16 * MIB
_HELD_BYTES = 64 * MIB

Codec = Literal["zstd", "snappy", "gzip", "none"]
_ENDINGS: dict[Codec, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}

Table = tuple[str, str]
"""Schema and table."""


@dataclass(frozen=True)
class FileKind:
    """What files hold, and how that is compressed."""

    format: Literal["jsonl", "parquet"]
    codec: Codec

    @property
    def suffix(self) -> str:
        return self.format + (_ENDINGS[self.codec] if self.format == "jsonl" else "")

    def begin(self, path: Path) -> _Staged:
        return _Parquet(path, self.codec) if self.format == "parquet" else _StagedLines(path, self.codec)


class Staging(Protocol):
    """Where a task's files are until a commit makes them visible."""

    def explained(self) -> AbstractContextManager[None]:
        """Turns refusals of the place into errors that say whether waiting can help."""
        ...

    def draft(self) -> Path:
        """A new file to write to."""
        ...

    def stage(self, draft: Path, final: str) -> object:
        """Take a file that is written and synced, to be `final` once it is committed. What the ledger must be told of
        it, as JSON can say it."""
        ...

    def finish(self) -> None:
        """All that was staged is durable when this returns."""
        ...

    def close(self) -> None:
        """Remove drafts, also after a failure."""
        ...


@dataclass
class FileWriter:
    """Streams batches into staged files. Holds at most one row group per open Parquet file, 64 MiB in all."""

    staging: Staging
    span: Span
    task: int
    roll_bytes: int
    kind: FileKind

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """The receipt lists what `Staging.stage` said of every file."""
        with closing(self.staging), self.staging.explained():
            self._open: dict[Table, _Staged] = {}
            self._days: dict[Table, int] = {}
            self._parts: dict[Table, int] = {}
            self._told: list[object] = []
            for whole in batches:
                for table, day, rows in split(_own(whole)):
                    self._append(table, day, rows)
                self._bound_memory()
            for table in list(self._open):
                self._close(table)
            if self._told:
                self.staging.finish()
            failpoint("file.write.staged")
            return Written(json.dumps(self._told) if self._told else "")

    def _append(self, table: Table, day: int, rows: pa.RecordBatch) -> None:
        if table in self._open and self._days[table] != day:
            self._close(table)
        file = self._open.get(table)
        if file is None:
            file = self.kind.begin(self.staging.draft())
            self._open[table], self._days[table] = file, day
        if file.append(rows) >= self.roll_bytes:
            self._close(table)

    def _close(self, table: Table) -> None:
        file = self._open.pop(table)
        file.close()
        part = self._parts.get(table, 0)
        self._parts[table] = part + 1
        self._told.append(self.staging.stage(file.path, self._final(table, part)))

    def _final(self, table: Table, part: int) -> str:
        offsets = f"{self.span.start:019d}-{self.span.end:019d}"
        name = f"{offsets}-{self.task:04d}-{part:06d}.{self.kind.suffix}"
        return f"{table_directory(*table)}/{day_directory(self._days[table])}/{name}"

    def _bound_memory(self) -> None:
        if sum(file.held for file in self._open.values()) > _HELD_BYTES:
            for file in self._open.values():
                file.spill()


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that files have, and those that say where a row goes."""
    return batch.select([name for name in batch.schema.names if name in _OWN])


def split(batch: pa.RecordBatch) -> Iterator[tuple[Table, int, pa.RecordBatch]]:
    """The batch by table and day, in an order that keeps each key's; the rows without their lane."""
    schemas = batch.column("schema").dictionary_encode()
    tables = batch.column("table").dictionary_encode()
    days = batch.column("ts_us").to_numpy() // _DAY_US
    returns = _returns(days, batch.column("lane").to_numpy())
    codes = np.stack([schemas.indices.to_numpy(), tables.indices.to_numpy(), returns, days], axis=1)
    places, where = np.unique(codes, axis=0, return_inverse=True)
    rows = batch.drop_columns(["lane"])
    for index, (schema, table, _, day) in enumerate(places.tolist()):
        name = (schemas.dictionary[schema].as_py(), tables.dictionary[table].as_py())
        mine = rows if len(places) == 1 else rows.filter(pa.array(where.ravel() == index))
        yield name, day, mine


def _returns(days: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """How often the day went back in each row's lane, up to the row. A key is in one lane, whose rows are in order."""
    if not len(days) or days.min() == days.max():
        return np.zeros(len(days), np.int64)
    order = np.argsort(lanes, kind="stable")
    by_lane = lanes[order]
    back = (np.diff(days[order]) < 0) & (np.diff(by_lane) == 0)
    counted = np.concatenate([[0], np.cumsum(back)])
    found = np.empty(len(days), np.int64)
    found[order] = counted - counted[np.searchsorted(by_lane, by_lane)]
    return found


class _Staged(ABC):
    """An open staged file. `held` is what it keeps in memory."""

    held = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb")

    @abstractmethod
    def append(self, rows: pa.RecordBatch) -> int:
        """Take the rows; the answer is the file's size so far."""

    @abstractmethod
    def spill(self) -> None:
        """Write out what is held."""

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _StagedLines(_Staged):
    """Each value and a line feed, joined by Arrow: no Python per row."""

    def __init__(self, path: Path, codec: Codec) -> None:
        super().__init__(path)
        self._lines: Any = self._file
        if codec != "none":
            beneath = os.fdopen(os.dup(self._file.fileno()), "wb", buffering=0)  # closing the codec's closes it too
            self._lines = pa.CompressedOutputStream(beneath, "gzip" if codec == "gzip" else "zstd")

    def append(self, rows: pa.RecordBatch) -> int:
        values: Any = rows.column("value").cast(pa.large_binary())
        lines = pc.binary_join_element_wise(values, pa.scalar(b"", values.type), pa.scalar(b"\n", values.type))
        _, offsets, data = lines.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int64)
        first, last = bounds[lines.offset], bounds[lines.offset + len(lines)]
        self._lines.write(memoryview(data)[first:last])
        return self._file.tell()

    def spill(self) -> None:
        self._lines.flush()

    def close(self) -> None:
        if self._lines is not self._file:
            self._lines.close()
        super().close()


class _Parquet(_Staged):
    """The canonical change, `ts_us` and `captured_us` as timestamps `ts` and `captured`."""

    def __init__(self, path: Path, codec: Codec) -> None:
        super().__init__(path)
        self._codec = codec
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[pa.RecordBatch] = []

    def append(self, rows: pa.RecordBatch) -> int:
        self._rows.append(rows)
        self.held += rows.nbytes
        if self.held >= _ROW_GROUP_BYTES:
            self.spill()
        return self._file.tell()

    def spill(self) -> None:
        if not self._rows:
            return
        table = typed(pa.Table.from_batches(self._rows))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema, compression=self._codec)
        self._writer.write_table(table)
        self._rows, self.held = [], 0

    def close(self) -> None:
        self.spill()
        if self._writer is not None:
            self._writer.close()
        super().close()


def typed(table: pa.Table) -> pa.Table:
    """Microseconds since 1970 as timestamps in UTC."""
    for name, time in (("ts_us", "ts"), ("captured_us", "captured")):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, time, table.column(name).cast(pa.timestamp("us", tz="UTC")))
    return table
