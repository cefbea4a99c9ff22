"""How a task's rows are shared out: requests at the same time, and yet one after another for each key."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.config import MIB

_CHUNK_BYTES = 32 * MIB
_ALONE = ("t", "s")
"""A truncate and a change of the schema are about all keys of their table: nothing is under way beside them."""


def chunks(batch: pa.RecordBatch, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that are delivered one after another, each of bounded size."""
    ops: Any = batch.column("op")
    alone = np.flatnonzero(pc.is_in(ops, value_set=pa.array(_ALONE)).to_numpy(zero_copy_only=False))
    full = np.arange(most_rows, batch.num_rows, most_rows)
    values: Any = batch.column("value")
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    large = np.flatnonzero(np.diff(np.cumsum(sizes, dtype=np.int64) // _CHUNK_BYTES)) + 1
    cuts = np.unique(np.concatenate([[0], alone, alone + 1, full, large, [batch.num_rows]])).astype(int).tolist()
    for first, last in itertools.pairwise(cuts):
        yield batch.slice(first, last - first)


def lanes(chunk: pa.RecordBatch, most: int) -> list[pa.RecordBatch]:
    """The rows in at most so many parts, in order, all of one key in the same. Rows without a key are in order for
    each table."""
    if most == 1:
        return [chunk]
    keys: Any = chunk.column(key_name(chunk))
    if keys.null_count:
        tables: Any = [chunk.column(name) for name in ("schema", "table")]
        keys = pc.coalesce(keys, pc.binary_join_element_wise(*tables, "\x00"))
    lane = keys.dictionary_encode().indices.to_numpy() % most
    return [chunk.take(pa.array(np.flatnonzero(lane == number), pa.int64())) for number in np.unique(lane)]


def key_name(chunk: pa.RecordBatch) -> str:
    """The column that order is kept per: behind processors the key that they said, or else the row's."""
    return "record_key" if "record_key" in chunk.schema.names else "key"


def grouped(
    places: Sequence[Hashable], keys: Sequence[str | None], sizes: Sequence[int], *, rows: int, size: int
) -> Iterator[list[int]]:
    """The rows of a lane as requests, in order: each to one place, with at most so many rows and bytes (but a large
    row alone). Rows of different keys may pass each other, those of one key and those without do not."""
    open_: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    place_of: dict[str | None, Hashable] = {}
    for row, (place, key) in enumerate(zip(places, keys, strict=True)):
        if place_of.get(key, place) != place:  # its former row must go first, and that of its place with it
            yield from open_.values()
            open_, filled, place_of = {}, {}, {}
        if place in open_ and (len(open_[place]) >= rows or filled[place] + sizes[row] > size):
            yield open_.pop(place)
            filled[place] = 0
        open_.setdefault(place, []).append(row)
        filled[place] = filled.get(place, 0) + sizes[row]
        place_of[key] = place
    yield from open_.values()
