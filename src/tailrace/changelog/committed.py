"""How far a pipeline has delivered: what enough of its sinks have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.changelog.retention import Subscribers


@dataclass(frozen=True)
class Awaited:
    """The subscribers of a pipeline that it waits for, and how many of them must have a change before it counts as
    delivered."""

    names: tuple[str, ...]
    enough: int

    def committed(self, offsets: Mapping[str, int]) -> int:
        """Everything below is delivered. A subscriber that is not among `offsets` has nothing yet."""
        reached = sorted((offsets.get(name, 0) for name in self.names), reverse=True)
        return reached[self.enough - 1]


def delivered(log: str | os.PathLike[str], pipelines: tuple[Awaited, ...]) -> int:
    """The offset below which each of these pipelines has delivered every change of the log."""
    offsets = {each.name: each.offset for each in Subscribers(log).all()}
    return min(each.committed(offsets) for each in pipelines)
