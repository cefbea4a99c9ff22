"""Debezium's values: the last step of a sink's chain where its envelope says `values: debezium`.

`semantics` knows what Debezium makes of each type, `kernel` and `rare` write values, `images` rewrites columns of
images, `schemas` describes them, `messages` builds records around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.render.debezium.schemas import KEY_SCHEMA, VALUE_SCHEMA, fields, with_entries
from tailrace.schema import TableSchema

if TYPE_CHECKING:
    from tailrace.render.debezium.images import Images

_ROWS = ("c", "u", "d", "r")
_REWRITTEN = ("key", "before", "after")


class DebeziumValues(BatchProcessor):
    """Rewrites keys and row images as Debezium's connector writes them. An image has all columns of its version then,
    in the table's order, but those of types that Debezium leaves out; one with members that are no columns keeps the
    members that it has. A change of which a processor said that its record is the row image alone stays as it is."""

    schemas: bool = False

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"rows"})

    def open(self, place: Place) -> Step:
        return _Values(place, self.schemas)


class _Values:
    def __init__(self, place: Place, schemas: bool) -> None:
        self._place, self._schemas = place, schemas
        self._tables: dict[int, _Table] = {}

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        known = [number for number, table in self._place.tables.items() if table.columns]
        wanted = np.asarray(pc.is_in(changes.column("schema_id"), pa.array(known, pa.int32()))) & ~_raw(changes)
        rows = wanted & np.asarray(pc.is_in(changes.column("op"), pa.array(_ROWS)))
        made: dict[str, Any] = dict(zip(_REWRITTEN, self._images(changes, rows), strict=True))
        if self._schemas:
            truncates = np.asarray(pc.equal(changes.column("op"), pa.scalar("t")))
            made["route"] = self._described(changes, wanted & (rows | truncates))
        arrays = [made.get(name, changes.column(name)) for name in changes.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=changes.schema)

    def _images(self, changes: pa.RecordBatch, rows: np.ndarray[Any, Any]) -> tuple[Any, ...]:
        """The three columns; each version's rows on their own, put together again."""
        part = changes.select([*_REWRITTEN, "unchanged"])
        if rows.all() and (number := _only(changes.column("schema_id"))) is not None:
            return self._table(number).rewritten(part)
        rest = np.flatnonzero(~rows)
        pieces = [tuple(_taken(part, rest).columns[:3])]
        places = [rest]
        for number, mine in _groups(changes, rows):
            pieces.append(self._table(number).rewritten(_taken(part, mine)))
            places.append(mine)
        back: Any = pa.array(np.argsort(np.concatenate(places)))
        return tuple(pa.concat_arrays(list(columns)).take(back) for columns in zip(*pieces, strict=True))

    def _described(self, changes: pa.RecordBatch, rows: np.ndarray[Any, Any]) -> Any:
        groups = list(_groups(changes, rows))
        which = np.full(changes.num_rows, -1, dtype=np.int64)
        for place, (_, mine) in enumerate(groups):
            which[mine] = place
        tables = [self._table(number) for number, _ in groups]
        index: Any = pa.array(which, mask=which < 0)
        values = pa.array([table.value_schema for table in tables], pa.string()).take(index)
        keys = pa.array([table.key_schema for table in tables], pa.string()).take(index)
        entries = {VALUE_SCHEMA: values, KEY_SCHEMA: keys}
        return with_entries(changes.column("route"), entries).cast(changes.schema.field("route").type)

    def _table(self, number: int) -> _Table:
        if number not in self._tables:
            self._tables[number] = _Table(self._place.tables[number])
        return self._tables[number]


class _Table:
    """A version of a table."""

    def __init__(self, table: TableSchema) -> None:
        self._table = table

    def rewritten(self, part: pa.RecordBatch) -> tuple[Any, ...]:
        key, before, after, unchanged = part.columns
        return self._keys.rewritten(key), self._rows.rewritten(before), self._rows.rewritten(after, unchanged)

    @cached_property
    def value_schema(self) -> str:
        return fields(self._table.columns)

    @cached_property
    def key_schema(self) -> str | None:
        return fields(self._keys.columns, key=True) if self._table.key else None

    @cached_property
    def _rows(self) -> Images:
        from tailrace.render.debezium.images import Images

        return Images(self._table, self._table.columns)

    @cached_property
    def _keys(self) -> Images:
        """A key's columns are in the order that the primary key has them in."""
        from tailrace.render.debezium.images import Images

        columns = sorted((c for c in self._table.columns if c.name in self._table.key), key=lambda c: c.primary)
        return Images(self._table, tuple(columns))


def _raw(changes: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Whether a processor said that the record is the row image alone."""
    route: Any = changes.column("route")
    if route.null_count == len(route):
        return np.zeros(len(route), dtype=np.bool_)
    said: Any = pc.map_lookup(route, pa.scalar("value"), "first")
    return np.asarray(pc.fill_null(pc.equal(said, pa.scalar("after")), False))


def _taken(part: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    return part.take(pa.array(rows, pa.int64()))


def _only(numbers: Any) -> int | None:
    """The one number, where all are the same."""
    found: Any = pc.min_max(numbers).as_py()
    return int(found["min"]) if found["min"] == found["max"] and found["min"] is not None else None


def _groups(changes: pa.RecordBatch, rows: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Each version of a table, and its rows."""
    numbers = changes.column("schema_id").to_numpy()
    for number in np.unique(numbers[rows]).tolist():
        yield number, np.flatnonzero(rows & (numbers == number))
