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
from tailrace.changelog.storage import Directory

BATCH_BYTES = 8 << 20
"""Small frames are joined up to this size; it also keeps 32-bit string offsets far from their limit."""

_OPS = pa.array(OPS)

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

    @property
    def whole(self) -> bool:
        return self.lane_low == 0 and self.lane_high == LANES


def read_slice(piece: Slice) -> Iterator[pa.RecordBatch]:
    """The slice's changes in `change.CHANGES` form; in `seq` order per lane, and overall when it has all lanes."""
    storage = Directory(piece.path)
    waiting: list[pa.RecordBatch] = []
    size = 0
    for part in piece.parts:
        batch = _read_part(storage, piece, part)
        if batch is None:
            continue
        waiting.append(batch)
        size += part.length
        if size >= BATCH_BYTES:
            yield _join(waiting)
            waiting, size = [], 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined]  # newer than the stubs


def _read_part(storage: Directory, piece: Slice, part: Part) -> pa.RecordBatch | None:
    first, last = part.lanes[piece.lane_low], part.lanes[piece.lane_high]
    if first == last:
        return None
    buffer = storage.read(part.segment, part.offset, part.length)
    frames.verify(buffer, part.checksum, f"{part.segment}@{part.offset}")
    rows, txs = frames.decode(buffer)
    lane = _lane_column(part.lanes, piece.lane_low, piece.lane_high)
    return _select(_changes(rows.slice(first, last - first), txs, lane, piece, part), piece, part)


def _lane_column(offsets: tuple[int, ...], low: int, high: int) -> Column:
    counts = np.diff(np.asarray(offsets[low : high + 1]))
    return pa.array(np.repeat(np.arange(low, high, dtype=np.int32), counts))


def _select(batch: pa.RecordBatch, piece: Slice, part: Part) -> pa.RecordBatch | None:
    """Cut to the range and, for a slice with all lanes, put back into source order."""
    seq = batch.column("seq").to_numpy()
    if part.low is not None or part.high is not None:
        low = part.base if part.low is None else part.low
        high = np.iinfo(np.int64).max if part.high is None else part.high
        inside = np.flatnonzero((seq >= low) & (seq < high))
        batch, seq = batch.take(inside), seq[inside]
    if piece.whole and len(seq) > 1:
        batch = batch.take(np.argsort(seq))
    return batch if batch.num_rows else None


def _changes(rows: pa.RecordBatch, txs: pa.RecordBatch, lane: Column, piece: Slice, part: Part) -> pa.RecordBatch:
    count = rows.num_rows
    tx, row, ordinal = (rows.column(name) for name in ("tx", "row", "ordinal"))
    database, schema, table = _names(rows.column("schema_id"), piece.names)
    columns = [
        pc.add(row.cast(pa.int64()), part.base),
        lane,
        pa.repeat(piece.source, count),
        _OPS.take(rows.column("op")),
        database,
        schema,
        table,
        rows.column("key"),
        rows.column("before"),
        rows.column("after"),
        _lists(rows.column("unchanged")),
        txs.column("ts_us").take(tx),
        pa.repeat(pa.scalar(part.captured_us, pa.int64()), count),
        txs.column("tx_id").take(tx),
        ordinal.cast(pa.int64()),
        _is_last(row.to_numpy(), ordinal.to_numpy(), tx.to_numpy(), txs.column("end_row").to_numpy(), part),
        txs.column("position").take(tx),
        rows.column("schema_id"),
        _maps(rows.column("headers")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def _is_last(row: np.ndarray, ordinal: np.ndarray, tx: np.ndarray, end_row: np.ndarray, part: Part) -> Column:
    last = row + 1 == end_row[tx]
    if part.spilled_tx_rows:  # the frame was written before its transaction's end was known
        last |= (end_row[tx] < 0) & (ordinal + 1 == part.spilled_tx_rows)
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
