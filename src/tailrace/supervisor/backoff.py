"""Waiting before the next try: doubling, bounded, with a little chance so that many do not come at once."""

from __future__ import annotations

import random
from collections.abc import Callable

from tailrace.spec import Retry


class Backoff:
    """The waits of one thing that is retried; `reset` after it worked."""

    def __init__(self, retry: Retry, chance: Callable[[float, float], float] = random.uniform) -> None:
        self._retry = retry
        self._chance = chance
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait now."""
        longest = self._retry.max.total_seconds()
        wait = min(longest, self._retry.initial.total_seconds() * float(2 ** min(self._tries, 32)))
        self._tries += 1
        return wait * (1 + self._chance(-self._retry.jitter, self._retry.jitter))
