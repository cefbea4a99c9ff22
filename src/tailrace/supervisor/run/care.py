"""The thread in which a sink's tables are tended while its query runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.sinks.tables import Care

LEAVE_S = 30.0
"""How long the end of a query waits for upkeep that runs. Cut off, it leaves unused files, never a broken table."""


@contextmanager
def tended(care: Care | None, name: str) -> Iterator[None]:
    """Tend a sink's tables as long as the block runs."""
    if care is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_tend, args=(care, over), name=f"care/{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LEAVE_S)


def _tend(care: Care, over: threading.Event) -> None:
    wait = 0.0
    while not over.wait(wait):
        wait = care.tend()
