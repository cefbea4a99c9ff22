"""Checks of directories: may we write there, and is there room?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tailrace.config import GIB
from tailrace.supervisor.doctor.check import Check, Subject

LOW_BYTES = 1 * GIB


def check_directory(subject: Subject, path: Path) -> Iterator[Check]:
    """A directory that is there or can be made. Nothing is written to find out."""
    path = path.absolute()
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir():
        yield subject.fail("directory", f"{nearest} is not a directory", "remove the file, or choose another path")
    elif not os.access(nearest, os.W_OK | os.X_OK):
        fix = f"let this user write to {nearest}, or choose another path"
        yield subject.fail("directory", f"{nearest} is not writable", fix)
    else:
        yield subject.ok("directory", str(path) if nearest == path else f"{path} will be created")
    yield _space(subject, nearest)


def _space(subject: Subject, path: Path) -> Check:
    free = shutil.disk_usage(path).free
    detail = f"{free / GIB:,.1f} GiB free"
    if free < LOW_BYTES:
        return subject.warn("space", detail, "free some; without space capture waits, and the database keeps its WAL")
    return subject.ok("space", detail)
