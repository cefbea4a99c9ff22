"""What a part of the log leaves of each key: one row at most, the last, with columns the source did not send filled in
from the changes before it. What no change of the part has is in the table: under the row's own key, or under the key
that it had before the part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks import json_columns

_UNKNOWN, _OF_TABLE = -1, -2
"""Of a column that a change lacks: whoever was before it knows; the table knows, under the key it had there."""

Column = Any
"""An Arrow array."""


@dataclass(frozen=True)
class Names:
    """A version's columns, and those of them whose values are JSON."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    documents: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """One row for each key. `columns` are texts, in the order of the version's columns. `unsent`: partial column →
    which rows have the table's value there. `origins`: the key's columns of the row that has it, null where that is the
    row's own key; empty where no row has another."""

    deleted: Column
    columns: list[Column]
    unsent: dict[str, Column]
    origins: list[Column]


def whole(batch: pa.RecordBatch, names: Names) -> Rows:
    """Of changes that are the last of their keys and have all columns; of a delete, those of its key."""
    images: Column = pc.coalesce(batch.column("after"), batch.column("key"))
    deleted = pc.equal(batch.column("op"), pa.scalar("d"))
    return Rows(deleted, json_columns.texts(images.cast(pa.string()), names.columns, names.documents), {}, [])


def folded(batches: Iterable[pa.RecordBatch], names: Names, partial: Sequence[str]) -> Rows | None:
    """Of all changes of a part; None where there is none."""
    table = pa.Table.from_batches(list(batches)).sort_by("seq").combine_chunks() if batches else None
    if table is None or not table.num_rows:
        return None
    return _Fold(table.to_batches()[0], names, [name for name in partial if name in names.columns]).rows()


class _Fold:
    """Places are row numbers in the part, which is in the order of the log."""

    def __init__(self, changes: pa.RecordBatch, names: Names, partial: Sequence[str]) -> None:
        self._names, self._partial = names, partial
        self._count = changes.num_rows
        images: Column = pc.coalesce(changes.column("after"), changes.column("key"))
        self._columns = json_columns.texts(images.cast(pa.string()), names.columns, names.documents)
        self._deleted = np.asarray(pc.equal(changes.column("op"), pa.scalar("d")))
        encoded: Column = pc.dictionary_encode(changes.column("key"))
        self._codes, self._keys = encoded.indices.to_numpy(), encoded.dictionary
        self._order = np.argsort(self._codes, kind="stable")
        self._begins = np.searchsorted(self._codes[self._order], np.arange(len(self._keys) + 1))
        self._found = {name: np.arange(self._count) for name in partial}
        """By column, for each change: the place of its value."""
        self._was: dict[int, str] = {}
        """For changes with `_OF_TABLE`: the key under which the table has the row."""
        self._note_lacking(changes.column("unchanged"))
        self._resolve_moved(changes.column("headers"))

    def rows(self) -> Rows:
        last = self._order[self._begins[1:] - 1]
        values = {name: self._value_of(name) for name in self._partial}
        columns = [
            _taken(column, values.get(name, last))
            for name, column in zip(self._names.columns, self._columns, strict=True)
        ]
        unsent = {name: pa.array((found < 0) & ~self._deleted[last]) for name, found in values.items()}
        return Rows(pa.array(self._deleted[last]), columns, unsent, self._origins())

    def _note_lacking(self, unchanged: Column) -> None:
        parents: Column = pc.list_parent_indices(unchanged)
        names = pc.list_flatten(unchanged)
        for name in self._partial:
            lacks = parents.filter(pc.equal(names, pa.scalar(name))).to_numpy()
            self._found[name][lacks] = _UNKNOWN
        for found in self._found.values():
            found[self._deleted] = np.flatnonzero(self._deleted)

    def _resolve_moved(self, headers: Column) -> None:
        """In the order of the log, so that the row that moved before is known when the next asks for it."""
        lacking = np.zeros(self._count, dtype=bool)
        for found in self._found.values():
            lacking |= found == _UNKNOWN
        places = np.flatnonzero(lacking & np.asarray(pc.is_valid(headers)))
        told = headers.take(pa.array(places)).to_pylist()
        for place, own in zip(places.tolist(), told, strict=True):
            old = dict(own).get("old_key")
            if old is not None:
                self._resolve(place, old)

    def _resolve(self, place: int, old: str) -> None:
        earlier = self._before(old, place)
        for found in self._found.values():
            if found[place] == _UNKNOWN:
                told = next((each for each in earlier if found[each] != _UNKNOWN), None)
                found[place] = _OF_TABLE if told is None else found[told]
                if found[place] == _OF_TABLE:
                    self._was[place] = old if told is None else self._was[told]

    def _before(self, key: str, place: int) -> list[int]:
        """The changes of a key before the delete that came with its move, newest first."""
        code = pc.index(self._keys, pa.scalar(key, self._keys.type)).as_py()
        if code < 0:
            return []
        mine = self._order[self._begins[code] : self._begins[code + 1]]
        return list(mine[mine < place][::-1][1:].tolist())

    def _value_of(self, name: str) -> np.ndarray:
        """For each key, where the value that it is left with is."""
        found = self._found[name]
        newest = np.full(len(self._keys), -1)
        known = np.flatnonzero(found != _UNKNOWN)
        np.maximum.at(newest, self._codes[known], known)
        value: np.ndarray = np.where(newest >= 0, found[newest], _UNKNOWN)
        return value

    def _origins(self) -> list[Column]:
        if not self._was:
            return []
        newest = {int(self._codes[place]): key for place, key in sorted(self._was.items())}
        nobody = json.dumps(dict.fromkeys(self._names.key))
        texts = [newest.get(code, nobody) for code in range(len(self._keys))]
        documents = [name for name in self._names.documents if name in self._names.key]
        return json_columns.texts(pa.array(texts, pa.string()), self._names.key, documents)


def _taken(column: Column, places: np.ndarray) -> Column:
    """The values at these places; null where there is none."""
    indices: Column = pa.array(np.maximum(places, 0), pa.int64(), mask=places < 0)
    return column.take(indices)
