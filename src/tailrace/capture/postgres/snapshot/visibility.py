"""What a read could see: a PostgreSQL MVCC snapshot, and which transactions of the log it missed.

Positions cannot tell: a commit record precedes the commit's visibility, by as long as a synchronous standby takes to
answer. Only the snapshot itself knows. The stream has 32-bit transaction ids; they are widened against the
snapshot's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_EPOCH = 1 << 32


@dataclass(frozen=True)
class Visibility:
    """`pg_current_snapshot()`. On a standby its list of running transactions is empty, so that all from `xmin` on
    count as missed there."""

    xmin: int
    xmax: int
    running: frozenset[int]
    standby: bool

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """From `xmin:xmax:xid,…`, with a leading `standby ` where it was taken on one."""
        snapshot = text.removeprefix("standby ")
        xmin, xmax, running = snapshot.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))), snapshot != text)

    def missed(self, xid: int) -> bool:
        """Whether the transaction with this 32-bit id was not visible."""
        full = int(self._widen(np.array([xid], dtype=np.int64))[0])
        return full >= (self.xmin if self.standby else self.xmax) or full in self.running

    def may_miss(self, newest: np.ndarray) -> np.ndarray:
        """For the newest transaction ids of some ranges: whether one of a range may be missed."""
        may: np.ndarray = self._widen(newest) >= self.xmin
        return may

    def _widen(self, xids: np.ndarray) -> np.ndarray:
        """To 64 bits: the value nearest to `xmax`."""
        full = xids + (self.xmax - self.xmax % _EPOCH)
        full = np.where(full > self.xmax + _EPOCH // 2, full - _EPOCH, full)
        return np.where(full < self.xmax - _EPOCH // 2, full + _EPOCH, full)
