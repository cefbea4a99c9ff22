"""When the catalog is looked at beside the stream, and when what was seen may be taken in."""

from __future__ import annotations

import time

from tailrace.capture.postgres.drift import Drift, NextVersion, Observation
from tailrace.capture.postgres.relations import Relations
from tailrace.contracts import Need

LOOK_S = 5.0
"""How often the catalog is looked at for what the stream does not tell."""
HURRY_S = 0.5
"""The same while a new table waits for open transactions to end."""


class CatalogWatch:
    """One observation at a time: made, kept until the stream is past it, taken in."""

    def __init__(self, drift: Drift, relations: Relations, needs: list[Need]) -> None:
        """Tables whose rows the stream does not tell are added to `needs`."""
        self._drift, self._relations, self._needs = drift, relations, needs
        self._seen: Observation | None = None
        self._next = 0.0

    @property
    def warnings(self) -> list[str]:
        return self._drift.warnings

    def observe(self) -> Observation | None:
        """What was seen and not taken in yet; looks, when it is time."""
        if self._seen is None and time.monotonic() >= self._next:
            self._seen = self._drift.observe(self._relations)
        return self._seen

    def steps(self, seen: Observation) -> list[NextVersion]:
        """The versions that the log does not have yet."""
        return self._drift.steps(seen, self._relations)

    def done(self, seen: Observation) -> None:
        """The log has the steps: note which tables must be read anew, and wait for the next look."""
        self._seen = None
        found = self._drift.needs(seen, self._relations)
        self._needs += [need for need in found if need not in self._needs]
        self._drift.remember(self._needs)
        self._next = time.monotonic() + (HURRY_S if self._drift.waits else LOOK_S)
