"""When what the stream has is handed over, when the server hears from us, and how long to sleep in between."""

from __future__ import annotations

import time

FLOOD_BYTES = 1 << 20
"""More than this in one group commit is a flood, which is synced less often: a sync costs as much as a megabyte."""
FRAME_BYTES = 8 << 20
REPORT_S = 1.0
IDLE_S = 10.0
WAIT_S = 0.5
BUSY_WAIT_S = 0.005
STREAMING_BYTES = 8 << 10
GATHER_S = 0.004
"""While that much comes at once, a little more is let gather: waking up for every packet costs more than decoding."""
TRICKLE_BYTES = 64 << 10
"""While a group commit has less than this, nobody looks for more before it is due: so does waking up for every
transaction."""


class Pace:
    """The clock of one stream."""

    def __init__(self, group_commit_s: float) -> None:
        self._group_commit_s = group_commit_s
        self._last_flush = self._last_idle = self._last_report = 0.0
        self._reply_wanted = False
        self._wait_s = WAIT_S

    def hurry(self, busy: bool) -> None:
        """Sleep less while the server is silent."""
        self._wait_s = BUSY_WAIT_S if busy else WAIT_S

    def want_reply(self) -> None:
        """The server asked for a sign of life."""
        self._reply_wanted = True

    def commit_due(self, size: int) -> bool:
        """Group commit of `size` bytes: at once after a pause, else every `group_commit`, seldom in a flood."""
        pause = self._group_commit_s * (4 if size >= FLOOD_BYTES else 1)
        return size >= FRAME_BYTES or time.monotonic() >= self._last_flush + pause

    def committed(self) -> None:
        self._last_flush = time.monotonic()

    def idle_due(self) -> bool:
        """Whether an idle position may be handed over."""
        return self._reply_wanted or time.monotonic() >= self._last_idle + IDLE_S

    def idled(self) -> None:
        self._last_idle = time.monotonic()

    def report_due(self) -> bool:
        return self._reply_wanted or time.monotonic() >= self._last_report + REPORT_S

    def reported(self) -> None:
        self._last_report, self._reply_wanted = time.monotonic(), False

    def rest(self, arrived: int, finished: int) -> float:
        """How long to let more gather before the server is listened to again, when `arrived` bytes came at last and
        `finished` bytes wait for the group commit."""
        if arrived >= STREAMING_BYTES:
            return GATHER_S
        return self._until_commit() if 0 < finished < TRICKLE_BYTES else 0.0

    def patience(self, waiting: bool) -> float:
        """How long to sleep on the socket; `waiting`: without delaying a group commit."""
        return self._until_commit() if waiting else self._wait_s

    def _until_commit(self) -> float:
        return max(0.0, self._last_flush + self._group_commit_s - time.monotonic())
