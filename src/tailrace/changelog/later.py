"""What the log has of some changes' keys behind them: whether a change that was not delivered has been overtaken."""

from __future__ import annotations

import bisect
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import OPS
from tailrace.changelog import frames, manifest
from tailrace.changelog.manifest import FrameRef, Header, Line
from tailrace.changelog.storage import Directory
from tailrace.schema import TableSchema

_TRUNCATE = OPS.index("t")

Table = tuple[str, str]


class LaterChanges:
    """Of the changes at the offsets `seqs` of the log `log_id`."""

    def __init__(self, path: str | os.PathLike[str], log_id: str, seqs: Iterable[int]) -> None:
        self._storage, self._log_id = Directory(path), log_id
        headers = [(name, manifest.header_of(self._storage, name)) for name in self._storage.list(manifest.FOLDER)]
        known = [(name, header.base) for name, header in headers if header is not None and header.log_id == log_id]
        self._seqs = sorted({seq for seq in seqs if known and seq >= known[0][1]})
        before = [name for name, base in known if self._seqs and base <= self._seqs[0]]
        self._tail = manifest.Tail(self._storage, file=before[-1]) if before else None
        self._end = -1
        self._versions: dict[int, TableSchema] = {}
        self._tables: set[Table] = set()
        self._keys: dict[int, tuple[Table, str | None]] = {}
        self._changes: defaultdict[tuple[Table, str], list[int]] = defaultdict(list)
        self._truncates: defaultdict[Table, list[int]] = defaultdict(list)

    def advance(self, end: int) -> None:
        """Take in the log up to `end`, as far as it goes."""
        entries = iter(()) if self._tail is None else self._tail.entries()
        while self._end < end and (entry := next(entries, None)) is not None:
            if isinstance(entry, Header):
                self._enter(entry)
            elif isinstance(entry, Line):
                self._learn(entry.schemas)
                self._add(entry)
                self._end = entry.end

    def behind(self, seq: int) -> list[int] | None:
        """The offsets of later changes of its key, and of truncates of its table; None where the log cannot tell."""
        if seq not in self._keys:
            return None
        table, key = self._keys[seq]
        of_key = [] if key is None else self._changes[table, key]
        found = (*of_key[bisect.bisect_right(of_key, seq) :], *(at for at in self._truncates[table] if at > seq))
        return sorted(found)

    def _enter(self, header: Header) -> None:
        """Where retention took what lies between, or the log was replaced, nothing is known any more."""
        if header.log_id != self._log_id or (self._end >= 0 and header.base != self._end):
            self._keys.clear()
            self._tail = None
        self._learn(header.schemas)
        self._end = max(self._end, header.base)

    def _learn(self, schemas: Sequence[TableSchema]) -> None:
        self._versions |= {each.id: each for each in schemas}

    def _add(self, line: Line) -> None:
        asked = bisect.bisect_left(self._seqs, line.base) < bisect.bisect_left(self._seqs, line.end)
        if asked or any(self._table(number) in self._tables for number in line.tables):
            for ref in line.frames:
                self._look(line, ref)

    def _look(self, line: Line, ref: FrameRef) -> None:
        rows, _ = frames.read(self._storage, ref)
        seq = rows.column("row").to_numpy() + np.int64(line.base + ref.row)
        for place in np.flatnonzero(np.isin(seq, self._seqs)).tolist():
            table = self._table(int(rows.column("schema_id")[place].as_py()))
            self._tables.add(table)
            self._keys[int(seq[place])] = (table, rows.column("key")[place].as_py())
        self._note(rows, seq)

    def _note(self, rows: pa.RecordBatch, seq: np.ndarray[Any, Any]) -> None:
        """The rows of keys that are asked for, and truncates."""
        keys = pa.array(sorted({key for _, key in self._keys.values() if key is not None}), pa.string())
        asked = np.asarray(pc.is_in(rows.column("key"), keys)) & np.asarray(pc.is_valid(rows.column("key")))
        truncates = rows.column("op").to_numpy() == _TRUNCATE
        places = np.flatnonzero(asked | truncates)
        for place in places[np.argsort(seq[places], kind="stable")].tolist():
            table = self._table(int(rows.column("schema_id")[place].as_py()))
            if truncates[place]:
                self._truncates[table].append(int(seq[place]))
            else:
                self._changes[table, rows.column("key")[place].as_py()].append(int(seq[place]))

    def _table(self, number: int) -> Table:
        version = self._versions[number]
        return version.schema, version.table
