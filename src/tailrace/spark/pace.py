"""When the next batch starts: as late as its changes still arrive in time, so that fewer batches do the same."""

from __future__ import annotations

RISE, FALL = 0.5, 0.05
"""How far one batch moves the estimate of how long they take, when it took longer and when it took less: a late change
is worse than an early one."""


class Pace:
    """Of one query. Times are those of one clock, in seconds.

    `objective_s` after a batch began, the changes that came since are to be delivered: the next one begins earlier than
    that by the time that batches take. So changes after a pause are not held back, and where a batch takes half of the
    objective or more, the next one follows at once.
    """

    def __init__(self, objective_s: float) -> None:
        self._objective_s = objective_s
        self._began_s: float | None = None
        self._runs = False
        self._usual_s = 0.0

    def begin(self, now_s: float) -> None:
        """A batch begins."""
        self._began_s, self._runs = now_s, True

    def end(self, now_s: float) -> None:
        """The batch that ran, if one did, is committed."""
        if self._runs and self._began_s is not None:
            difference = now_s - self._began_s - self._usual_s
            self._usual_s += difference * (RISE if difference > 0 else FALL)
        self._runs = False

    def left_s(self, now_s: float) -> float:
        """How long the next batch may still wait; 0.0: no longer."""
        if self._began_s is None:
            return 0.0
        return max(0.0, self._began_s + self._objective_s - self._usual_s - now_s)
