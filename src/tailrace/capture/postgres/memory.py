"""What was seen last of each table: by this process or, through the control store, by an earlier one."""

from __future__ import annotations

from tailrace.control.sightings import Name, Sightings


class Memory:
    """A text for each table, in `seen`; the store gets it by `keep`."""

    def __init__(self, sightings: Sightings | None, *, first: bool) -> None:
        """`first`: the log is new, and what was seen for another log does not matter."""
        self._sightings = sightings
        if first and sightings is not None:
            sightings.replace({})
        self._saved = sightings.load() if sightings is not None else {}
        self.seen: dict[Name, str] = dict(self._saved)

    def keep(self, busy: set[Name]) -> None:
        """Save what is seen, but for the tables in `busy`: what is known of them stays as it was, so that the next
        process finds the difference again."""
        wanted = {name: self._saved.get(name) if name in busy else text for name, text in self.seen.items()}
        kept = {name: text for name, text in wanted.items() if text is not None}
        if self._sightings is not None and kept != self._saved:
            self._sightings.replace(kept)
            self._saved = kept
