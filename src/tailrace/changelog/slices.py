"""Slices: what one task reads. A slice is picklable and self-contained; executors never see the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import CHANGES, LANES, OPS
from tailrace.changelog import frames
from tailrace.changelog.first_read import TouchedKeys
from tailrace.changelog.storage import Directory

BATCH_BYTES = 8 << 20
"""Small frames are joined up to this size; it also keeps 32-bit string offsets far from their limit."""

_OPS = pa.array(OPS)
_END = np.iinfo(np.int64).max

Column = Any
"""An Arrow array; its element type is `ROWS`' or `CHANGES`' to know."""


@dataclass(frozen=True)
class FramePart:
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
    is_first_read: bool = False
    """Whether it is of a chunk of the table's first snapshot; told only where a portion of its changes is wanted."""


@dataclass(frozen=True)
class Slice:
    """Lanes `[lane_low, lane_high)` of some frames of the log at `path`."""

    path: str
    source: str
    names: dict[int, tuple[str, str, str]]
    parts: tuple[FramePart, ...]
    lane_low: int
    lane_high: int
    version: int | None = None
    """The id of the one table version that is wanted; None: all."""
    last: bool = False
    """Whether of each key of that version only the last change is wanted."""
    new: bool | None = None
    """Whether only the new rows of the table's first snapshot are wanted, or only all others; None: both."""
    touched: TouchedKeys | None = None
    """What tells the two apart."""

    @property
    def whole(self) -> bool:
        return self.lane_low == 0 and self.lane_high == LANES


@dataclass(frozen=True)
class _Share:
    """A frame's rows of a slice, with their transactions."""

    part: FramePart
    rows: pa.RecordBatch
    txs: pa.RecordBatch
    lanes: np.ndarray


def read_slice(piece: Slice) -> Iterator[pa.RecordBatch]:
    """The slice's changes in `change.CHANGES` form; in `seq` order per lane, and overall when it has all lanes."""
    storage = Directory(piece.path)
    parts = [part for part in piece.parts if part.lanes[piece.lane_low] < part.lanes[piece.lane_high]]
    last = _last(storage, piece, parts) if piece.last else [None] * len(parts)
    waiting: list[_Share] = []
    size = 0
    for part, chosen in zip(parts, last, strict=True):
        share = _share(storage, piece, part, chosen)
        if not share.rows.num_rows:
            continue
        waiting.append(share)
        size += part.length * share.rows.num_rows // part.lanes[-1]
        if size >= BATCH_BYTES:
            yield from _joined(waiting, piece)
            waiting, size = [], 0
    if waiting:
        yield from _joined(waiting, piece)


def wanted(piece: Slice, part: FramePart, rows: pa.RecordBatch) -> np.ndarray:
    """Which rows of a frame are of the slice's version, and of the portion of it that is wanted."""
    mine: np.ndarray = rows.column("schema_id").to_numpy() == piece.version
    if piece.new is None or piece.touched is None:
        return mine
    if not part.is_first_read:
        return mine & (not piece.new)
    seq = rows.column("row").to_numpy() + np.int64(part.base)
    touched = piece.touched.before(rows.column("key"), seq)
    chosen: np.ndarray = mine & (~touched if piece.new else touched)
    return chosen


def inside(part: FramePart, rows: pa.RecordBatch) -> np.ndarray:
    """Which rows are in the range."""
    seq = rows.column("row").to_numpy() + np.int64(part.base)
    return (seq >= (part.low or 0)) & (seq < (_END if part.high is None else part.high))


def _share(storage: Directory, piece: Slice, part: FramePart, chosen: np.ndarray | None) -> _Share:
    """`chosen`: the wanted rows, where that is known."""
    rows, txs = _lanes_of(storage, piece, part)
    lanes = _lanes(part.lanes, piece.lane_low, piece.lane_high)
    if chosen is None and piece.version is not None:
        chosen = np.flatnonzero(wanted(piece, part, rows))
    if chosen is not None and len(chosen) < rows.num_rows:
        rows, lanes = rows.take(chosen), lanes[chosen]
    return _Share(part, rows, txs, lanes)


def _lanes_of(storage: Directory, piece: Slice, part: FramePart) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A frame's rows in the slice's lanes, and all its transactions."""
    first, last = part.lanes[piece.lane_low], part.lanes[piece.lane_high]
    rows, txs = frames.read(storage, part)
    return rows.slice(first, last - first), txs


def _last(storage: Directory, piece: Slice, parts: list[FramePart]) -> list[np.ndarray]:
    """Where the last change of each key is, frame by frame; a change without a key stands for itself.

    A key is in one lane, so no other slice has it. Texts of rows are not looked at."""
    if not parts:
        return []
    keys: list[Column] = []
    seqs: list[np.ndarray] = []
    places: list[np.ndarray] = []
    for part in parts:
        rows, _ = _lanes_of(storage, piece, part)
        chosen = inside(part, rows) & wanted(piece, part, rows)
        places.append(np.flatnonzero(chosen))
        keys.append(rows.column("key").filter(pa.array(chosen)))
        seqs.append(rows.column("row").to_numpy()[chosen] + np.int64(part.base))
    newest = _newest(pa.chunked_array(keys, pa.string()), np.concatenate(seqs))
    ends = np.cumsum([len(each) for each in places])
    return [mine[chosen] for mine, chosen in zip(places, np.split(newest, ends[:-1]), strict=True)]


def _newest(keys: pa.ChunkedArray[Any], seq: np.ndarray) -> np.ndarray:
    """Which changes are the last of their key."""
    if not len(keys):
        return np.empty(0, bool)
    coded: list[Any] = pc.dictionary_encode(keys, null_encoding="encode").chunks
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in coded])
    last = np.full(len(coded[-1].dictionary), -1, np.int64)
    np.maximum.at(last, codes, seq)
    newest: np.ndarray = (last[codes] == seq) | np.asarray(pc.is_null(keys))
    return newest


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
