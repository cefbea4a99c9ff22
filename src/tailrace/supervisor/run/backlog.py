"""How far a sink is behind its log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tailrace.changelog.manifest import Entry, Header, Line, Tail
from tailrace.changelog.reader import tail_from
from tailrace.changelog.storage import Directory
from tailrace.errors import LogError

LINES = 20_000
"""Lines of the manifest that are looked at, at most. What waits behind them is not known by bytes and tables."""
AT_ONCE = 2_000
"""Lines that are read in one look, at most: a look takes some twentieths of a second, however much waits."""


@dataclass(frozen=True)
class Lag:
    """Changes that wait in the log, what they weigh there, and for how long the oldest of them has waited; of `tables`,
    for how long the oldest of each has. None: not known."""

    rows: int | None = None
    seconds: float | None = None
    bytes: int | None = None
    tables: dict[str, float] | None = None


@dataclass(frozen=True)
class _Waiting:
    """What is needed of a line."""

    base: int
    end: int
    bytes: int
    at_us: int
    tables: tuple[int, ...]

    def bytes_from(self, offset: int) -> int:
        """Of its changes at and above `offset`, as if all weighed the same."""
        return self.bytes * (self.end - max(offset, self.base)) // max(1, self.end - self.base)


class Backlog:
    """What waits for one sink. Asking again is cheap: the manifest is read on from where it was left."""

    def __init__(self, log: Path) -> None:
        self._storage = Directory(log)
        self._names: dict[int, str] = {}
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._tables: Counter[int] = Counter()
        """How many waiting lines have changes of each table version."""
        self._entries: Iterator[Entry] = iter(())
        self._tail: Tail | None = None
        self._from = 0
        """Everything at and above this offset that was read is in `_waiting`."""

    def lag(self, offset: int | None, head: int | None, now: float) -> Lag:
        """Of a sink that has delivered everything below `offset`, in a log that ends at `head`."""
        if offset is None or head is None:
            return Lag()
        if head <= offset:
            return Lag(0, 0.0, 0, {})
        try:
            self._look(offset, head)
        except LogError:  # its tap reports it
            self._tail = None
            return Lag(head - offset)
        waiting = self._waiting
        if not waiting:
            return Lag(head - offset)
        seconds = _age(waiting[0], now)
        if waiting[-1].end < head:
            return Lag(head - offset, seconds)
        delivered = waiting[0].bytes - waiting[0].bytes_from(offset)
        return Lag(head - offset, seconds, self._bytes - delivered, self._oldest(now))

    def _oldest(self, now: float) -> dict[str, float]:
        """How long the oldest change of each table has waited."""
        found: dict[str, float] = {}
        wanted = {number for number, lines in self._tables.items() if lines > 0}
        for line in self._waiting:
            for number in wanted.intersection(line.tables):
                found.setdefault(self._names[number], _age(line, now))
            wanted.difference_update(line.tables)
            if not wanted:
                break
        return found

    def _look(self, offset: int, head: int) -> None:
        if self._tail is None or offset < self._from:
            self._tail, self._entries = tail_from(self._storage, offset), iter(())
            self._waiting.clear()
            self._bytes, self._tables = 0, Counter()
        self._from = offset
        while self._waiting and self._waiting[0].end <= offset:
            self._count(self._waiting.popleft(), -1)
        for line in islice(self._lines(), AT_ONCE):
            if line.end > offset:
                self._waiting.append(line)
                self._count(line, 1)
            if line.end >= head or len(self._waiting) >= LINES:
                return

    def _count(self, line: _Waiting, times: int) -> None:
        self._bytes += times * line.bytes
        for number in line.tables:
            self._tables[number] += times

    def _lines(self) -> Iterator[_Waiting]:
        """Lines that were not read yet, up to the log's end."""
        assert self._tail is not None
        for _ in range(2):  # once for what the last look left, and once for what came since
            for entry in self._entries:
                if isinstance(entry, Header | Line):
                    self._names |= {schema.id: schema.name for schema in entry.schemas}
                if isinstance(entry, Line):
                    yield _Waiting(entry.base, entry.end, entry.bytes, entry.at_us, entry.tables)
            self._entries = self._tail.entries()


def _age(line: _Waiting, now: float) -> float:
    return max(0.0, now - line.at_us / 1e6)
