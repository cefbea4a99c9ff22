"""Waiting before the next try: growing, bounded, with a little chance so that many do not come at once."""

from __future__ import annotations

import random
from collections.abc import Callable

_GROWTHS = 32


class Backoff:
    """The waits of one thing that is retried; `reset` after it worked."""

    def __init__(
        self,
        initial_s: float,
        max_s: float,
        jitter: float,
        chance: Callable[[float, float], float] = random.uniform,
        *,
        multiplier: float = 2.0,
    ) -> None:
        self._initial_s, self._max_s, self._jitter = initial_s, max_s, jitter
        self._multiplier, self._chance = multiplier, chance
        self._tries = 0

    @property
    def tries(self) -> int:
        """How many waits there were since it last worked."""
        return self._tries

    def reset(self) -> None:
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait now."""
        wait = min(self._max_s, self._initial_s * self._multiplier ** min(self._tries, _GROWTHS))
        self._tries += 1
        return wait * (1 + self._chance(-self._jitter, self._jitter))
