"""Steps that take a while, told as they begin and again while they last."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import typer

REPEAT_S = 5.0


class Steps:
    """Lines on standard error, each with the seconds since `since` (by the clock that tells the time of day). While it
    is entered, a step is told again every `repeat_s` until it ends or the next one begins."""

    def __init__(self, since: float | None = None, *, repeat_s: float = REPEAT_S) -> None:
        self._since = time.time() if since is None else since
        self._repeat_s = repeat_s
        self._step = ""
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._repeat, name="steps", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return max(0.0, time.time() - self._since)

    def begin(self, step: str) -> None:
        """Tell the step, and again while it lasts."""
        with self._changed:
            self._step = step
            self.tell(step)
            self._changed.notify_all()

    def end(self, step: str) -> None:
        """Do not tell this step again, if it is still the one that lasts."""
        with self._changed:
            if self._step == step:
                self._step = ""

    def tell(self, text: str) -> None:
        """A line about something that has happened."""
        typer.echo(f"tailrace: {self.seconds:3.0f} s  {text}", err=True)

    def _repeat(self) -> None:
        with self._changed:
            while not self._over:
                if not self._changed.wait(self._repeat_s) and self._step:
                    self.tell(f"{self._step} …")
