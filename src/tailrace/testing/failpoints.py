"""Dying at a failpoint without ending the test: what stood there is dropped as a crash would drop it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.failpoints import arm, disarm, kill_after


class Died(BaseException):
    """Raised at the failpoint. No `except Exception` hears it, as none would hear a kill."""


@contextmanager
def dies_at(name: str, passes: int = 1) -> Iterator[None]:
    """The block must reach the failpoint `passes` times and ends there; fails the test where it does not."""

    def die() -> None:
        raise Died(name)

    arm(name, kill_after(passes, die))
    try:
        yield
    except Died:
        return
    finally:
        disarm(name)
    raise AssertionError(f"the failpoint {name} was not reached {passes} time(s)")
