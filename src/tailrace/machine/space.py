"""A disk that is full: how the system, Java and others say so. Space can be freed, so it is a wait and not an end."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.errors import SetupError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space on the disk, in the user's quota, below the process's limit of a file's size."""
_SAID = re.compile(rf"^.*?([\w.$]+(?:Error|Exception): .*?(?:{'|'.join(map(os.strerror, FULL))}))", re.MULTILINE)
"""An error of Python's or Java's in the text of another, such as a trace that has crossed Spark."""


def full_disk(error: BaseException, where: str = "") -> SetupError | None:
    """`disk.full` if that is what `error`, one of its causes or a trace in its text says."""
    said = next(filter(None, map(_said, _with_causes(error))), None)
    return None if said is None else no_space(said, where)


@contextmanager
def suppress_full_disk() -> Iterator[None]:
    """For what may as well be left out where there is no space for it."""
    try:
        yield
    except OSError as error:
        if full_disk(error) is None:
            raise


def no_space(said: str, where: str = "") -> SetupError:
    """The error that is waited for; `said` is how the disk's user told it."""
    return SetupError(
        "disk.full",
        f"no space left on a disk: {said}",
        hint="free space where the data directory, the sink's files and Spark's temporary files are; it is retried",
        where=where,
    )


def _said(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in FULL:
        return str(error)
    found = _SAID.search(str(error))
    return found[1] if found else None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        yield following
        following = following.__cause__ or following.__context__
