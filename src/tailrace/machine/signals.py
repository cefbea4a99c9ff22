"""The signals that end a run: Ctrl-C (SIGINT), a service manager, `timeout` or a container (SIGTERM), a terminal that
closes (SIGHUP).

Whoever sends one often sends it to every process of the run at once. Only the process that runs the others answers, and
drains them in order; Spark's JVM and its Python processes are deaf. They end with the one they work for (`lifeline`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 1.0
"""Signals within this time are one wish: `timeout` sends one to its child and one to the child's group, a shell or
`make` passes on a Ctrl-C that the terminal has sent already."""


@contextmanager
def answered(answer: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Call `answer` with each wish to end, instead of dying. Only the main thread hears signals; elsewhere nothing
    changes.

    SIGINT and SIGHUP stay ignored where they were: whoever started this with `nohup`, or in the background of a script,
    wants it to go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = float("-inf")

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = clock()
        if now >= last + SAME_S:
            last = now
            answer(number)

    heard = [n for n in ENDING if n == signal.SIGTERM or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Be deaf, and with this process the program it executes: what is ignored stays ignored."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def block() -> None:
    """Be deaf, and with this thread all that it forks: handlers that others set later are not called either."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
