"""Waiting until the log, and then a table of the sink, has passed what a read of the source saw."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

from tailrace.capture.postgres import PostgresSource
from tailrace.changelog import tip
from tailrace.errors import SetupError, SinkError
from tailrace.sinks.tables import Mirror, Pin

POLL_S = 0.2


class Passage:
    """The way from one source to one sink. `say` is told what is waited for."""

    def __init__(
        self,
        source: PostgresSource,
        log: Path,
        status: Path,
        patience_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._source, self._log, self._status = source, log, status
        self._say, self.patience_s = say, patience_s

    def log_past(self, positions: Sequence[str]) -> int:
        """An offset below which the log has every change of a row up to these positions. Where no tap runs, the
        server is asked whether there are more."""
        furthest = reduce(lambda one, other: one if self._source.is_past(one, other) else other, positions)
        waiting = Patience(self.patience_s, f"the log to pass {furthest}", self._say)
        asked: object = None
        while True:
            reached = self._reached()
            offset, resume = tip(self._log)  # after: what was settled then is in the log now
            known = [*reached, *([resume["lsn"]] if resume else [])]
            if any(self._source.is_past(each, furthest) for each in known):
                return offset
            if resume and asked != (offset, known):
                complete = self._source.nothing_between(resume, furthest)
                if complete:
                    return offset
                asked = None if complete is None else (offset, known)  # a no stands until something moves
            waiting.go_on((offset, *known))

    def mirror_past(self, mirror: Mirror, offset: int) -> Pin:
        """The table once it has every change below `offset`. Raises `verify.halted` where it never will."""
        waiting = Patience(self.patience_s, f"the sink to pass offset {offset}", self._say)
        while True:
            reason = mirror.halted()
            if reason:
                raise SinkError("verify.halted", f"the table halted: {reason}")
            state, pin = mirror.state(), mirror.pinned()
            if pin is not None and pin.offset >= offset:
                return pin
            if pin is not None:
                pin.close()
            waiting.go_on((state, pin.offset if pin else None))

    def _reached(self) -> list[str]:
        """What the tap says that it has read."""
        try:
            told = json.loads(self._status.read_text())
        except FileNotFoundError:
            return []
        return [told["settled"]] if "settled" in told else []


class Patience:
    """Waits in steps, for as long as something moves, and for `seconds` after nothing does."""

    def __init__(self, seconds: float, what: str, say: Callable[[str], None]) -> None:
        self._seconds, self._what, self._say = seconds, what, say
        self._moved, self._seen = time.monotonic(), None  # type: tuple[float, object]

    def go_on(self, seen: object) -> None:
        """Another step. `seen`: whatever should move."""
        if seen != self._seen:
            self._moved, self._seen = time.monotonic(), seen
        if time.monotonic() > self._moved + self._seconds:
            raise SetupError(
                "verify.waiting",
                f"waited {self._seconds:g} s for {self._what}, and nothing moved",
                hint="start the pipeline (tailrace run), or wait longer with --patience",
            )
        self._say(f"waiting for {self._what}")
        time.sleep(POLL_S)
