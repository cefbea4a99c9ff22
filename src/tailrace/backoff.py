"""Waiting before the next try: doubling, bounded, with a little chance so that many do not come at once."""

from __future__ import annotations

import random
from collections.abc import Callable

_DOUBLINGS = 32


class Backoff:
    """The waits of one thing that is retried; `reset` after it worked."""

    def __init__(
        self,
        initial_s: float,
        max_s: float,
        jitter: float,
        chance: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial_s, self._max_s, self._jitter = initial_s, max_s, jitter
        self._chance = chance
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait now."""
        wait = min(self._max_s, self._initial_s * 2.0 ** min(self._tries, _DOUBLINGS))
        self._tries += 1
        return wait * (1 + self._chance(-self._jitter, self._jitter))
