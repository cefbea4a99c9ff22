"""What can be wrong with a document, told all at once: code, path, line, message, hint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from tailrace.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """One thing to repair. `path` is like `spec.sinks[0].config.topik`; `line` counts from 1."""

    code: str
    message: str
    hint: str = ""
    path: str = ""
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """`file:line`, as editors open it; the path, where there is no file."""
        if not self.file:
            return self.path
        return f"{self.file}:{self.line}" if self.line else self.file

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)


class DocumentError(ConfigError):
    """One or more documents cannot be used; `problems` has every reason found, in order of place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.path))
        first = self.problems[0]
        if len(self.problems) == 1:
            path = f"{first.path}: " if first.path else ""
            super().__init__(first.code, path + first.message, hint=first.hint, where=first.where)
        else:
            listed = "\n".join(f"  {problem.where} {problem.path}: {problem.message}" for problem in self.problems)
            super().__init__(first.code, f"{len(self.problems)} problems\n{listed}")

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentError, (self.problems,)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the closest of `known`, or all of them."""
    names = list(known)
    close = get_close_matches(word, names, 1, 0.6) or [name for name in names if name.lower() == word.lower()]
    return f"did you mean `{close[0]}`?" if close else "use one of: " + ", ".join(sorted(names))
