"""What `tailrace doctor` is told: one thing that was looked at, and what to do about it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tailrace.config import GIB, redact
from tailrace.errors import TailraceError

State = Literal["ok", "warn", "fail", "skipped"]

LOW_BYTES = 1 * GIB


@dataclass(frozen=True)
class Check:
    """`detail` says what was found, or why nothing could be; `fix` what to do, if there is something."""

    about: str
    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Subject:
    """What a group of checks is about; makes its checks."""

    about: str

    def ok(self, name: str, detail: str) -> Check:
        return Check(self.about, name, "ok", redact(detail))

    def warn(self, name: str, detail: str, fix: str) -> Check:
        return Check(self.about, name, "warn", redact(detail), fix)

    def fail(self, name: str, detail: str, fix: str) -> Check:
        return Check(self.about, name, "fail", redact(detail), fix)

    def skipped(self, name: str, reason: str) -> Check:
        return Check(self.about, name, "skipped", reason)

    def failed(self, name: str, error: TailraceError) -> Check:
        return self.fail(name, " ".join(str(error).split()), error.hint)


def check_directory(subject: Subject, path: Path) -> Iterator[Check]:
    """A directory that is there or can be made, and has room. Nothing is written to find out."""
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
