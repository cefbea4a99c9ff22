"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.config import redact
from tailrace.errors import TailraceError

State = Literal["ok", "warn", "fail", "skipped"]


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
