"""Maps from text to text, such as `headers` and `route`, with entries set for many changes at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def entry(maps: Any, name: str) -> Any:
    """The entry of this name of each map; null where there is none."""
    found: Any = pc.map_lookup(maps, pa.scalar(name), "first")
    return found


def with_entries(maps: Any, entries: Mapping[str, Any]) -> Any:
    """`maps` with these entries, by name a value for each map. A null leaves a map as it is."""
    valid = np.asarray(pc.is_valid(maps))
    offsets = np.asarray(maps.offsets).astype(np.int64)
    lengths = np.where(valid, np.diff(offsets), 0)
    owners = np.repeat(np.arange(len(maps)), lengths)
    first = np.cumsum(lengths) - lengths
    places = np.arange(len(owners)) - np.repeat(first, lengths) + np.repeat(offsets[:-1], lengths)
    names, values = maps.keys.take(pa.array(places)), maps.items.take(pa.array(places))
    stays = np.ones(len(owners), dtype=np.bool_)
    for name, column in entries.items():
        stays &= ~(np.asarray(pc.equal(names, pa.scalar(name))) & np.asarray(pc.is_valid(column))[owners])
    parts = [(owners[stays], names.filter(pa.array(stays)), values.filter(pa.array(stays)))]
    for name, column in entries.items():
        rows = np.flatnonzero(np.asarray(pc.is_valid(column)))
        parts.append((rows, pa.repeat(name, len(rows)), column.drop_null()))
    return _joined(maps.type, valid, parts)


def _joined(kind: pa.DataType, valid: Any, parts: list[tuple[Any, Any, Any]]) -> Any:
    """Maps of entries, each with the map it belongs to. A map without entries that was null stays so."""
    owners = np.concatenate([part[0] for part in parts])
    order = np.argsort(owners, kind="stable")
    names = pa.concat_arrays([part[1] for part in parts]).take(order)
    values = pa.concat_arrays([part[2] for part in parts]).take(order)
    counts = np.bincount(owners, minlength=len(valid))
    is_null = np.append(~valid & (counts == 0), False)
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), mask=is_null)
    return pa.MapArray.from_arrays(offsets, names, values).cast(kind)
