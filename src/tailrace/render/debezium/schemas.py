"""Connect schemas of a table's columns, and how they travel: beside the change, in its `route`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.render.debezium.defaults import default_of
from tailrace.render.debezium.semantics import OMITTED, connect, encoding_of
from tailrace.schema import Column

VALUE_SCHEMA, KEY_SCHEMA = "schema", "key_schema"
"""Where in `route` the fields of a row, and of its key, are."""


def fields(columns: Iterable[Column], *, key: bool = False) -> str:
    """The fields of a struct of these columns, as JSON. Those of a key cannot be null."""
    found = [
        _field(column, optional=column.nullable and not key) for column in columns if encoding_of(column) != OMITTED
    ]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _field(column: Column, *, optional: bool) -> dict[str, Any]:
    encoding, default = encoding_of(column), default_of(column)
    schema = encoding.schema if default is None else {**encoding.schema, "default": json.loads(default)}
    return connect(schema, optional=optional, field=column.name)


def with_entries(maps: Any, entries: Mapping[str, pa.Array[Any]]) -> Any:
    """Maps of texts to texts with more in them: each name with its value, in every row where that is not null. Of a row
    that gets nothing, the map stays as it was."""
    rows = np.arange(len(maps))
    keys, items, of = _flat(maps)
    names, values, owners = [keys], [items], [of]
    for name, texts in entries.items():
        valid = np.asarray(texts.is_valid())
        names.append(pa.nulls(int(valid.sum()), pa.string()).fill_null(name))
        values.append(texts.drop_null())
        owners.append(rows[valid])
    owner = np.concatenate(owners)
    order: Any = pa.array(np.argsort(owner, kind="stable"))
    sizes = np.bincount(owner, minlength=len(maps))
    places = np.zeros(len(maps) + 1, dtype=np.int32)
    np.cumsum(sizes, out=places[1:])
    nothing = np.append((sizes == 0) & np.asarray(maps.is_null()), False)
    offsets: Any = pa.array(places, mask=nothing)
    return pa.MapArray.from_arrays(offsets, pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order))


def _flat(maps: Any) -> tuple[Any, Any, np.ndarray[Any, Any]]:
    """The keys, the items, and the row of each."""
    kept = np.flatnonzero(np.asarray(maps.is_valid()))
    present: Any = maps.take(pa.array(kept, pa.int64()))  # copied: of what it was a part of, nothing else is in it
    places = present.offsets.to_numpy()
    sizes = np.diff(places)
    entries = slice(int(places[0]), int(places[-1])) if len(places) else slice(0, 0)
    return present.keys[entries], present.items[entries], np.repeat(kept, sizes)
