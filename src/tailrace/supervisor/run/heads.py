"""Where a log ends."""

from __future__ import annotations

from pathlib import Path

from tailrace.changelog import LogReader
from tailrace.errors import Action, LogError, decide


class LogEnd:
    """Asking again is cheap: only what is new of the manifest is read."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._reader: LogReader | None = None

    def head(self) -> int | None:
        """None while there is no log, or while it cannot be read for now. Raises `LogError` where it is damaged."""
        try:
            if self._reader is None:
                self._reader = LogReader(self._log, start=1 << 62)
            self._reader.refresh()
            self._reader.forget(self._reader.end)
            return self._reader.end
        except LogError as error:
            if error.code != "log.missing" and decide(error) is not Action.RETRY:
                raise
            return None
