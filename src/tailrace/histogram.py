"""How often a figure was how large: counts by size, to be added up and told to Prometheus."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
ROWS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0)


@dataclass(frozen=True)
class Histogram:
    """`counts[n]` figures were at most `bounds[n]` and above the bound before; the last count has those above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, (0,) * (len(bounds) + 1))

    @property
    def count(self) -> int:
        return sum(self.counts)

    def seen(self, *figures: float) -> Histogram:
        """With these figures."""
        counts = list(self.counts)
        for figure in figures:
            counts[bisect.bisect_left(self.bounds, figure)] += 1
        return Histogram(self.bounds, tuple(counts), self.total + sum(figures))

    def plus(self, other: Histogram) -> Histogram:
        """Both, which have the same bounds."""
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound as Prometheus spells it, how many figures are at most that)."""
        found, below = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


NO_SECONDS, NO_ROWS = Histogram.empty(SECONDS), Histogram.empty(ROWS)
