"""Named places between the commits of one step, where a test ends the process to see what a restart makes of it.

    TAILRACE_FAILPOINT=lake.evolve.after_copy tailrace run pipeline.yaml    # dies there as by `kill -9`
    TAILRACE_FAILPOINT=file.commit.before_publish:3 …                       # the third time it gets there

Unset, a failpoint costs one look into an empty dictionary. Tests inside one process use `tailrace.testing.failpoints`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def failpoint(name: str) -> None:
    """Die here, where a test asked for it by this name."""
    if _armed and name in _armed:
        _armed[name]()


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` whenever the failpoint `name` is reached."""
    _armed[name] = action


def disarm(name: str) -> None:
    _armed.pop(name, None)


def kill_after(passes: int, kill: Callable[[], None]) -> Callable[[], None]:
    """An action that calls `kill` when the failpoint is reached for the `passes`th time."""
    left = passes

    def action() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            kill()

    return action


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm_from_environment() -> None:
    wanted = os.environ.get("TAILRACE_FAILPOINT")
    if wanted:
        name, _, passes = wanted.partition(":")
        arm(name, kill_after(int(passes or 1), _kill_this_process))


_arm_from_environment()
