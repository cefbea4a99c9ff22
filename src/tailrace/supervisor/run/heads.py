"""Where a log ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tailrace.changelog import LogReader
from tailrace.errors import Action, LogError, decide

FAR = 1 << 62
"""Behind every log."""


class LogEnd:
    """Asking again is cheap: only what is new of the manifest is read, and `take` is given it. What was before `start`
    is of no interest."""

    def __init__(self, log: Path, start: int = FAR, take: Callable[[LogReader], None] = lambda reader: None) -> None:
        self._log, self._start, self._take = log, start, take
        self._reader: LogReader | None = None

    def head(self) -> int | None:
        """None while there is no log, or while it cannot be read for now. Raises `LogError` where it is damaged."""
        try:
            if self._reader is None:
                self._reader = LogReader(self._log, start=self._start)
            self._reader.refresh()
            self._take(self._reader)
            self._reader.forget(self._reader.end)
            return self._reader.end
        except LogError as error:
            if error.code != "log.missing" and decide(error) is not Action.RETRY:
                raise
            return None
