"""A bounded walk over a log: so many changes and so much time, and then the place to go on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tailrace.changelog.history import History, Stretch, Wanted
from tailrace.errors import LogError

PIECE_ROWS = 500
"""Changes that are looked at between two looks at the clock."""

Reason = Literal["", "changes", "time"]


@dataclass(frozen=True)
class Bounds:
    """What one look may cost. Whatever they say, it looks at one piece of the log at least."""

    changes: int = 200_000
    seconds: float = 5.0


class Scan:
    """Over `[start, end)`. `low` and `high` are what was covered, also by passing over what is not wanted; `changes`
    counts those that were read. `stopped`: which bound ended it."""

    def __init__(
        self,
        history: History,
        start: int,
        end: int,
        bounds: Bounds,
        *,
        newest_first: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history, self._bounds, self._clock = history, bounds, clock
        self._start, self._end, self.newest_first = start, end, newest_first
        self.low = self.high = end if newest_first else start
        self.changes, self.lost = 0, 0
        self.stopped: Reason = ""
        self._until = clock() + bounds.seconds

    @property
    def left_s(self) -> float:
        return self._until - self._clock()

    def pieces(self, wanted: Wanted, narrow: Callable[[Stretch], Stretch] | None = None) -> Iterator[pa.RecordBatch]:
        """A few changes at a time, those of a piece in the log's order. A piece is covered when the next is asked
        for."""
        walk = self._history.walk(self._start, self._end, wanted, newest_first=self.newest_first)
        for stretch in walk:
            self._note_gap(stretch)
            for piece in self._read(stretch, narrow):
                self.changes += piece.num_rows
                yield piece
                self._reach(*_range(piece))
                if self._is_over():
                    return
            self._reach(stretch.start, stretch.end)
            if self._is_over():
                return
        self.lost += self.low - self._start if self.newest_first else self._end - self.high
        self._reach(self._start, self._end)

    def stop_at(self, seq: int) -> None:
        """The walk ends with the change at `seq`: everything before it, in the walk's direction, is covered."""
        if self.newest_first:
            self.low = seq
        else:
            self.high = seq + 1

    @property
    def at(self) -> int:
        """Where another walk goes on."""
        return self.low if self.newest_first else self.high

    @property
    def is_done(self) -> bool:
        return self.at <= self._start if self.newest_first else self.at >= self._end

    def _read(self, stretch: Stretch, narrow: Callable[[Stretch], Stretch] | None) -> Iterator[pa.RecordBatch]:
        try:
            wanted = stretch if narrow is None else narrow(stretch)
            batches = list(self._history.read(wanted)) if wanted.parts else []
        except LogError as error:
            if error.code != "log.expired":
                raise
            batches = []  # retention was faster: the range that is told begins behind it
            self.lost += max(0, min(stretch.end, self._history.earliest) - stretch.start)
        for batch in reversed(batches) if self.newest_first else batches:
            yield from _cut(batch, newest_first=self.newest_first)

    def _note_gap(self, stretch: Stretch) -> None:
        if not self.newest_first:
            self.lost += max(0, stretch.start - self.high)

    def _reach(self, low: int, high: int) -> None:
        if self.newest_first:
            self.low = min(self.low, low)
        else:
            self.high = max(self.high, high)

    def _is_over(self) -> bool:
        if self.changes >= self._bounds.changes:
            self.stopped = "changes"
        elif self.left_s <= 0:
            self.stopped = "time"
        return bool(self.stopped)


def _cut(batch: pa.RecordBatch, *, newest_first: bool) -> Iterator[pa.RecordBatch]:
    starts = list(range(0, batch.num_rows, PIECE_ROWS))
    for start in reversed(starts) if newest_first else starts:
        yield batch.slice(start, PIECE_ROWS)


def _range(piece: pa.RecordBatch) -> tuple[int, int]:
    seq = piece.column("seq")
    return seq[0].as_py(), seq[-1].as_py() + 1
