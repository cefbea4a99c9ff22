"""What a range of the log has of each table, from the small columns of its frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import OPS
from tailrace.changelog import frames
from tailrace.changelog.slices import Column, FramePart, Slice, inside, wanted
from tailrace.changelog.storage import Directory
from tailrace.contracts import Break, Content

_BREAKS = tuple(map(OPS.index, ("t", "s")))
_OLD_KEY = '"old_key":'
"""How a row's headers say that it had another key. In the text of another header its quotes would be escaped."""


@dataclass
class _Tally:
    """A version's changes, as far as they were looked at."""

    rows: int = 0
    first: int = np.iinfo(np.int64).max
    last: int = -1
    last_us: int = 0
    ops: set[int] = field(default_factory=set)
    partial_columns: set[str] = field(default_factory=set)
    has_key_changes: bool = False
    has_partial_key_changes: bool = False
    breaks: list[Break] = field(default_factory=list)

    def content(self, schema_id: int) -> Content:
        return Content(
            schema_id,
            self.rows,
            self.first,
            self.last,
            self.last_us,
            frozenset(OPS[op] for op in self.ops),
            tuple(sorted(self.partial_columns)),
            self.has_key_changes,
            self.has_partial_key_changes,
            tuple(sorted(self.breaks, key=lambda each: each.seq)),
        )


def contents(piece: Slice) -> list[Content]:
    """Of a slice with all lanes; the version whose first change comes first is first."""
    storage = Directory(piece.path)
    found: dict[int, _Tally] = {}
    for part in piece.parts:
        rows, txs = frames.read(storage, part)
        _count(part, rows, txs, found)
    return sorted((tally.content(number) for number, tally in found.items()), key=lambda each: each.first)


def keys(piece: Slice) -> Iterator[Column]:
    """The keys of a slice's changes, frame by frame."""
    storage = Directory(piece.path)
    for part in piece.parts:
        rows, _ = frames.read(storage, part)
        yield rows.column("key").filter(pa.array(inside(part, rows) & wanted(piece, part, rows)))


def _count(part: FramePart, rows: pa.RecordBatch, txs: pa.RecordBatch, found: dict[int, _Tally]) -> None:
    seq, within = _numbers(rows, "row") + np.int64(part.base), inside(part, rows)
    schema_ids, times = _numbers(rows, "schema_id"), _numbers(txs, "ts_us")[_numbers(rows, "tx")]
    lacks = _true(pc.not_equal(rows.column("unchanged"), pa.scalar("[]")))
    moved = _true(pc.match_substring(rows.column("headers"), _OLD_KEY))
    for number in np.unique(schema_ids[within]).tolist():
        mine = np.flatnonzero(within & (schema_ids == number))
        tally = found.setdefault(number, _Tally())
        _add(tally, rows, mine, seq[mine])
        tally.last_us = max(tally.last_us, int(times[mine].max()))
        tally.partial_columns |= _names(rows.column("unchanged"), mine[lacks[mine]])
        tally.has_key_changes |= bool(moved[mine].any())
        tally.has_partial_key_changes |= bool((moved & lacks)[mine].any())


def _add(tally: _Tally, rows: pa.RecordBatch, mine: np.ndarray, seq: np.ndarray) -> None:
    """Count the changes at `mine`, whose offsets are `seq`."""
    ops = _numbers(rows, "op")[mine]
    tally.rows += len(seq)
    tally.first, tally.last = min(tally.first, int(seq.min())), max(tally.last, int(seq.max()))
    tally.ops |= set(np.unique(ops).tolist())
    images: Column = rows.column("after")
    for place in np.flatnonzero(np.isin(ops, _BREAKS)).tolist():
        tally.breaks.append(Break(int(seq[place]), OPS[ops[place]], images[int(mine[place])].as_py()))


def _names(unchanged: Column, places: np.ndarray) -> set[str]:
    """The columns that the changes there lack; few distinct texts, so each is parsed once."""
    texts = unchanged.take(pa.array(places)).unique().to_pylist() if len(places) else []
    return {name for text in texts for name in json.loads(text)}


def _true(answers: Column) -> np.ndarray:
    return np.asarray(answers.fill_null(False))


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return batch.column(name).to_numpy()
