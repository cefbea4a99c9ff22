"""Which rows of a table's first snapshot are new to a sink's table that has held the log since an offset.

A first snapshot brings rows whose keys no change before has mentioned: they can be appended where all others must be
looked up. Its chunks are ranges of keys that do not overlap, so only changes that are not of such a chunk can have
touched a key before; those are few, and the manifest says where they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.changelog import frames, manifest
from tailrace.changelog.manifest import FrameRef, Header, Line
from tailrace.changelog.storage import Directory
from tailrace.schema import TableSchema

MOST_KEYS = 100_000
"""Of so many touched keys the account is kept, in every task that reads; with more, no row is called new."""
MOST_ROWS = 2_000_000
"""So many changes are looked at to find them."""


@dataclass(frozen=True)
class TouchedKeys:
    """Keys that changes outside the first snapshot's chunks have, each with the offset of the first such change."""

    keys: pa.Array[Any]
    first: np.ndarray

    def before(self, keys: Any, seq: np.ndarray) -> np.ndarray:
        """Which of these rows have a key that a change before them has."""
        if not len(self.keys):
            return np.zeros(len(seq), bool)
        place = pc.index_in(keys, self.keys)
        found = np.asarray(pc.is_valid(place))
        first = self.first[np.asarray(place.fill_null(0))]
        touched: np.ndarray = found & (first < seq)
        return touched


class FirstRead:
    """The account of one table, from the offset `began` on. `table` is any of its versions."""

    def __init__(self, path: str | os.PathLike[str], began: int, table: TableSchema) -> None:
        self._storage, self._table = Directory(path), table
        self._tail = manifest.Tail(self._storage, file=self._file_with(began))
        self._began, self._end = began, -1
        self._versions: dict[int, TableSchema] = {}
        self._run: str | None = None
        self._chunks: dict[int, int] = {}
        self._others: dict[int, int] = {}
        """Lines, by the offsets at which they begin, with those at which they end."""
        self._touched: dict[str, int] = {}
        self._looked = 0
        self._is_known = True

    def advance(self, end: int) -> bool:
        """Take in the log up to `end`. False where the rows that are new cannot be told: the log no longer has its
        beginning, the table got another key or is another, or too much was touched."""
        entries = self._tail.entries()
        while self._is_known and self._end < end and (entry := next(entries, None)) is not None:
            self._enter(entry)
        return self._is_known and self._end >= end

    def has(self, base: int) -> bool:
        """Whether the line that begins at `base` is a chunk of the first snapshot."""
        return base in self._chunks

    def has_chunks(self, start: int, end: int) -> bool:
        """Whether chunks of the first snapshot reach into `[start, end)`."""
        return _overlap(self._chunks, start, end)

    def has_others(self, start: int, end: int) -> bool:
        """Whether lines that reach into `[start, end)` have other changes of the table."""
        return _overlap(self._others, start, end)

    def touched(self) -> TouchedKeys:
        keys = pa.array(list(self._touched), pa.string())
        return TouchedKeys(keys, np.fromiter(self._touched.values(), np.int64, len(self._touched)))

    def _file_with(self, began: int) -> str | None:
        headers = [(name, manifest.header_of(self._storage, name)) for name in self._storage.list(manifest.FOLDER)]
        before = [name for name, header in headers if header is not None and header.base <= began]
        return before[-1] if before else None

    def _enter(self, entry: manifest.Entry) -> None:
        if isinstance(entry, Header):
            is_next = entry.base == self._end if self._end >= 0 else entry.base <= self._began
            self._is_known = is_next
            self._learn(entry.schemas)
            self._end = entry.base
        elif isinstance(entry, Line):
            self._learn(entry.schemas)
            self._end = entry.end
            mine = self._versions.keys() & set(entry.tables)
            if mine and entry.end > self._began:
                self._add(entry, mine)

    def _learn(self, schemas: tuple[TableSchema, ...]) -> None:
        table = self._table
        self._versions |= {
            each.id: each for each in schemas if (each.schema, each.table) == (table.schema, table.table)
        }

    def _add(self, line: Line, mine: set[int]) -> None:
        if not all(_same_rows(self._versions[number], self._table) for number in mine):
            self._is_known = False
            return
        if self._is_chunk(line):
            self._chunks[line.base] = line.end
            return
        self._others[line.base] = line.end
        for ref in line.frames:
            self._touch(line, ref, mine)
        if len(self._touched) > MOST_KEYS or self._looked > MOST_ROWS:
            self._is_known = False
            self._touched = {}

    def _is_chunk(self, line: Line) -> bool:
        if line.admitted is None:
            return False
        if self._run is None:
            self._run = line.admitted.chunk.run
        return line.admitted.disjoint and line.admitted.chunk.run == self._run

    def _touch(self, line: Line, ref: FrameRef, mine: set[int]) -> None:
        rows, _ = frames.read(self._storage, ref)
        self._looked += ref.rows
        chosen = np.flatnonzero(np.isin(rows.column("schema_id").to_numpy(), list(mine)))
        seqs = rows.column("row").to_numpy()[chosen] + np.int64(line.base + ref.row)
        keys: Any = rows.column("key").take(chosen)
        for key, seq in zip(keys.to_pylist(), seqs.tolist(), strict=True):
            if key is not None:
                self._touched[key] = min(seq, self._touched.get(key, seq))


def _overlap(lines: dict[int, int], start: int, end: int) -> bool:
    return any(low < end and high > start for low, high in lines.items())


def _same_rows(version: TableSchema, other: TableSchema) -> bool:
    """Whether two versions of a table spell a row's key alike."""
    return (version.relation, _key_columns(version)) == (other.relation, _key_columns(other))


def _key_columns(version: TableSchema) -> list[tuple[str, str]]:
    types = {column.name: column.type for column in version.columns}
    return [(name, types[name]) for name in version.key if name in types]
