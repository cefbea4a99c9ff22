"""Slices: what one task reads. A slice is picklable and self-contained; executors never see the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.change import CHANGES, LANES, OPS
from tailrace.changelog import frames
from tailrace.changelog.storage import Directory

BATCH_BYTES = 8 << 20
"""Small frames are joined up to this size; it also keeps 32-bit string offsets far from their limit."""

_OPS = pa.array(OPS)
_END = np.iinfo(np.int64).max

Column = Any
"""An Arrow array; its element type is `ROWS`' or `CHANGES`' to know."""


@dataclass(frozen=True)
class Part:
    """One frame of a slice. `low` and `high` cut it by offset where the range ends inside the frame's line."""

    segment: str
    offset: int
    length: int
    checksum: int
    base: int
    lanes: tuple[int, ...]
    low: int | None
    high: int | None
    captured_us: int
    spilled_tx_rows: int


@dataclass(frozen=True)
class Slice:
    """Lanes `[lane_low, lane_high)` of some frames of the log at `path`."""

    path: str
    source: str
    names: dict[int, tuple[str, str, str]]
    parts: tuple[Part, ...]
    lane_low: int
    lane_high: int
    version: int | None = None
    """The id of the one table version that is wanted; None: all."""

    @property
    def whole(self) -> bool:
        return self.lane_low == 0 and self.lane_high == LANES


@dataclass(frozen=True)
class _Share:
    """A frame's rows of a slice, with their transactions."""

    part: Part
    rows: pa.RecordBatch
    txs: pa.RecordBatch
    lanes: np.ndarray


def read_slice(piece: Slice) -> Iterator[pa.RecordBatch]:
    """The slice's changes in `change.CHANGES` form; in `seq` order per lane, and overall when it has all lanes."""
    storage = Directory(piece.path)
    waiting: list[_Share] = []
    size = 0
    for part in piece.parts:
        if part.lanes[piece.lane_low] == part.lanes[piece.lane_high]:
            continue
        share = _share(storage, piece, part)
        if not share.rows.num_rows:
            continue
        waiting.append(share)
        size += part.length * share.rows.num_rows // part.lanes[-1]
        if size >= BATCH_BYTES:
            yield from _joined(waiting, piece)
            waiting, size = [], 0
    if waiting:
        yield from _joined(waiting, piece)


def read_part(storage: Directory, part: Part) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A frame's rows and its transactions."""
    buffer = storage.read(part.segment, part.offset, part.length)
    frames.verify(buffer, part.checksum, f"{part.segment}@{part.offset}")
    return frames.decode(buffer)


def _share(storage: Directory, piece: Slice, part: Part) -> _Share:
    first, last = part.lanes[piece.lane_low], part.lanes[piece.lane_high]
    rows, txs = read_part(storage, part)
    rows, lanes = rows.slice(first, last - first), _lanes(part.lanes, piece.lane_low, piece.lane_high)
    if piece.version is not None:
        wanted = np.flatnonzero(rows.column("schema_id").to_numpy() == piece.version)
        if len(wanted) < rows.num_rows:
            rows, lanes = rows.take(wanted), lanes[wanted]
    return _Share(part, rows, txs, lanes)


def _joined(shares: list[_Share], piece: Slice) -> Iterator[pa.RecordBatch]:
    """Small frames together: what a batch costs does not depend on its rows."""
    batch = _changes(shares, piece)
    order = _order(batch.column("seq").to_numpy(), shares, piece)
    batch = batch if order is None else batch.take(order)
    if batch.num_rows:
        yield batch


def _order(seq: np.ndarray, shares: list[_Share], piece: Slice) -> np.ndarray | None:
    """The rows inside the range and, of a slice with all lanes, in source order; None: all as they are."""
    order = None
    if any(share.part.low is not None or share.part.high is not None for share in shares):
        low = _each(shares, [share.part.low or 0 for share in shares])
        high = _each(shares, [_END if share.part.high is None else share.part.high for share in shares])
        order = np.flatnonzero((seq >= low) & (seq < high))
    if piece.whole:
        order = np.argsort(seq, kind="stable") if order is None else order[np.argsort(seq[order], kind="stable")]
    return order


def _each(shares: list[_Share], values: list[int]) -> np.ndarray:
    """A value of each share, for each of its rows."""
    return np.repeat(np.array(values, dtype=np.int64), [share.rows.num_rows for share in shares])


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined]  # newer than the stubs


def _changes(shares: list[_Share], piece: Slice) -> pa.RecordBatch:
    rows, txs = _join([share.rows for share in shares]), _join([share.txs for share in shares])
    row, ordinal = rows.column("row").to_numpy(), rows.column("ordinal").to_numpy()
    before = np.cumsum([0, *(share.txs.num_rows for share in shares[:-1])])
    tx = rows.column("tx").to_numpy() + _each(shares, before.tolist())
    database, schema, table = _names(rows.column("schema_id"), piece.names)
    columns = [
        pa.array(row + _each(shares, [share.part.base for share in shares])),
        pa.array(np.concatenate([share.lanes for share in shares])),
        pa.repeat(piece.source, rows.num_rows),
        _OPS.take(rows.column("op")),
        database,
        schema,
        table,
        rows.column("key"),
        rows.column("before"),
        rows.column("after"),
        _lists(rows.column("unchanged")),
        txs.column("ts_us").take(pa.array(tx)),
        pa.array(_each(shares, [share.part.captured_us for share in shares])),
        txs.column("tx_id").take(pa.array(tx)),
        pa.array(ordinal.astype(np.int64)),
        _is_last(row, ordinal, txs.column("end_row").to_numpy()[tx], shares),
        txs.column("position").take(pa.array(tx)),
        rows.column("schema_id"),
        _maps(rows.column("headers")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def _lanes(offsets: tuple[int, ...], low: int, high: int) -> np.ndarray:
    counts = np.diff(np.asarray(offsets[low : high + 1]))
    return np.repeat(np.arange(low, high, dtype=np.int32), counts)


def _is_last(row: np.ndarray, ordinal: np.ndarray, end_row: np.ndarray, shares: list[_Share]) -> Column:
    last = row + 1 == end_row
    if any(share.part.spilled_tx_rows for share in shares):  # frames from before their transaction's end was known
        spilled = _each(shares, [share.part.spilled_tx_rows for share in shares])
        last |= (spilled > 0) & (end_row < 0) & (ordinal + 1 == spilled)
    return pa.array(last)


def _names(schema_id: Column, names: dict[int, tuple[str, str, str]]) -> tuple[Column, Column, Column]:
    known = sorted(names)
    places = np.zeros(known[-1] + 1, dtype=np.int32)
    places[known] = np.arange(len(known))
    index = pa.array(places[schema_id.to_numpy()])
    triples = [names[number] for number in known]
    database, schema, table = (pa.array([triple[i] for triple in triples]).take(index) for i in range(3))
    return database, schema, table


def _lists(texts: Column) -> Column:
    """JSON array texts → lists; few distinct ones, so each is parsed once."""
    kind = CHANGES.field("unchanged").type
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    coded = texts.dictionary_encode()
    return pa.array([json.loads(text) for text in coded.dictionary.to_pylist()], kind).take(coded.indices)


def _maps(texts: Column) -> Column:
    """JSON object texts → maps of text; rare (key changes, origins)."""
    kind = CHANGES.field("headers").type
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    parsed = [None if text is None else list(json.loads(text).items()) for text in texts.to_pylist()]
    return pa.array(parsed, kind)
