"""When the source is told that a change is safe: as soon as the log has it, or when sinks have it too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from tailrace.contracts import Source

LOOK_S = 0.5
"""How often it is looked how far sinks are."""


class Acknowledgement:
    """Of one source. `delivered` tells below which offset its pipelines have delivered everything; None: the log's word
    is enough. What is not acknowledged when the tap ends is acknowledged after its next start: the log has it."""

    def __init__(self, delivered: Callable[[], int] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._delivered, self._clock = delivered, clock
        self._waiting: deque[tuple[int, Mapping[str, str]]] = deque()
        self._looked = float("-inf")

    def durable(self, source: Source, end: int, resume: Mapping[str, str]) -> None:
        """The log, which ends at `end`, has everything up to `resume`."""
        if self._delivered is None:
            source.acknowledge(resume)
            return
        if self._waiting and self._waiting[-1][0] == end:
            self._waiting.pop()  # a later position without changes in between says as much
        self._waiting.append((end, resume))

    def look(self, source: Source) -> None:
        """Acknowledge what was delivered meanwhile."""
        if self._delivered is None or not self._waiting or self._clock() < self._looked + LOOK_S:
            return
        self._looked = self._clock()
        offset, safe = self._delivered(), None
        while self._waiting and self._waiting[0][0] <= offset:
            safe = self._waiting.popleft()[1]
        if safe is not None:
            source.acknowledge(safe)
