"""Waiting for what another process does, and saying what goes on meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tailrace.errors import SetupError

POLL_S = 0.005
_BEGAN = time.monotonic()


def until(condition: Callable[[], bool], what: str, *, seconds: float = 600.0, every: float = POLL_S) -> None:
    """Return as soon as `condition()`; raise `benchmark.stuck` when that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise SetupError(
                "benchmark.stuck",
                f"{what}: not within {seconds:g} s",
                hint="run it again with --keep and read the logs in the folder it names",
            )
        time.sleep(every)


def say(line: str) -> None:
    """A line of progress; the results alone go to standard output."""
    print(f"bench {time.monotonic() - _BEGAN:6.1f} s: {line}", file=sys.stderr, flush=True)
