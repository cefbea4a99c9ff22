"""Waiting on conditions, never on the clock alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    timeout: float = 30.0,
    *,
    every: float = 0.02,
    what: Callable[[], str] | None = None,
) -> T:
    """The first true result of `condition`; when time is over an `AssertionError` with its last result and `what`."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            name = getattr(condition, "__name__", repr(condition))
            story = f"\n{what()}" if what else ""
            raise AssertionError(f"{name} did not come true within {timeout:g} s; last result: {result!r}{story}")
        time.sleep(every)
