"""How far a sink is behind its log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.changelog.manifest import Entry, Line, Tail
from tailrace.changelog.reader import tail_from
from tailrace.changelog.storage import Directory
from tailrace.errors import LogError


@dataclass(frozen=True)
class Lag:
    """Changes that wait in the log, and for how long the oldest of them has. None: not known."""

    rows: int | None = None
    seconds: float | None = None


class Backlog:
    """What waits for one sink. Asking again is cheap: the manifest is read on from the sink's last place, up to its
    next change."""

    def __init__(self, log: Path) -> None:
        self._storage = Directory(log)
        self._tail = Tail(self._storage)
        self._entries: Iterator[Entry] = iter(())
        self._line: Line | None = None

    def lag(self, offset: int | None, head: int | None, now: float) -> Lag:
        """Of a sink that has delivered everything below `offset`, in a log that ends at `head`."""
        if offset is None or head is None:
            return Lag()
        if head <= offset:
            return Lag(0, 0.0)
        oldest_us = self._oldest_us(offset)
        return Lag(head - offset, None if oldest_us is None else max(0.0, now - oldest_us / 1e6))

    def _oldest_us(self, offset: int) -> int | None:
        """When the change at `offset` was appended; None where the log cannot tell, which its tap then reports."""
        try:
            if self._line is None or offset < self._line.base:
                self._tail, self._entries, self._line = tail_from(self._storage, offset), iter(()), None
            while self._line is None or self._line.end <= offset:
                self._line = self._next_line()
            return self._line.at_us
        except (LogError, StopIteration):
            self._line = None
            return None

    def _next_line(self) -> Line:
        """Raises `StopIteration` at the end of the log."""
        for entry in self._entries:
            if isinstance(entry, Line):
                return entry
        self._entries = self._tail.entries()
        return next(entry for entry in self._entries if isinstance(entry, Line))
