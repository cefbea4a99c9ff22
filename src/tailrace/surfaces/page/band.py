"""The states of the last hours, as a band."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.surfaces.rest.shapes import TransitionShown

WIDTH = 1000.0
THINNEST = 3.0
"""What lasted a moment can be seen, too."""


@dataclass(frozen=True)
class Stretch:
    """A time in one state. `x` and `width` are thousandths of the band."""

    state: str
    since: float
    until: float
    x: float
    width: float


def band(steps: Sequence[TransitionShown], now: float | None = None) -> list[Stretch]:
    """From the oldest of the steps, which are the newest first, until now."""
    end = time.time() if now is None else now
    oldest_first = [step for step in reversed(steps)]
    if not oldest_first or end <= oldest_first[0].at:
        return []
    scale = WIDTH / (end - oldest_first[0].at)
    ends = [*(step.at for step in oldest_first[1:]), end]
    return [
        Stretch(
            step.after,
            step.at,
            until,
            (step.at - oldest_first[0].at) * scale,
            max(THINNEST, (until - step.at) * scale),
        )
        for step, until in zip(oldest_first, ends, strict=True)
    ]
