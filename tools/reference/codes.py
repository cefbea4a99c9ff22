"""The error codes: what is said with each of them, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import tailrace
from tailrace import errors
from tools.reference.markdown import code, page, table
from tools.reference.raised import UNKNOWN, Code, Raised

INTRO = f"""
Every error has a code that does not change, a message and a hint. `{UNKNOWN}` stands for what differs from case to
case. The last column says what follows:

- **waits**: a running pipeline tries again until it succeeds; a command that meets it ends with the exit code.
- **warns**: it is a warning, and nothing ends.
- A number is the exit code of a command that ends with it: 1 it failed while running, 2 a document or the call is
  wrong, 3 the machine or a server is not ready. In a running pipeline the tap, sink or table that met it stops.
"""


def error_page() -> str:
    """One table for each area: the part of the code before the dot."""
    found = Code(Path(tailrace.__file__).parent).raised()
    areas = groupby(found, lambda error: error.code.partition(".")[0])
    return page("Error codes", INTRO, *(f"## {area}\n\n{_table(errors)}" for area, errors in areas))


def _table(found: Iterable[Raised]) -> str:
    return table(("code", "message", "hint", "then"), _rows(found))


def _rows(found: Iterable[Raised]) -> Iterator[tuple[str, str, str, str]]:
    for name, group in groupby(found, lambda error: error.code):
        same = list(group)
        then = _then(name, {error.kind for error in same})
        by_hint: dict[str, dict[str, None]] = {}
        for error in same:
            by_hint.setdefault(error.hint, {})[_message(error.message)] = None
        for number, (hint, messages) in enumerate(by_hint.items()):
            texts = "<br>".join(messages)
            yield (code(name), texts, hint, then) if number == 0 else ("", texts, hint, "")


def _message(text: str) -> str:
    return text if text.strip(f"{UNKNOWN}:. ") else "(what failed, in its own words)"


def _then(name: str, kinds: set[str]) -> str:
    if kinds == {"Finding"}:
        return "warns"
    exits = {getattr(errors, kind, errors.ConfigError).exit_code for kind in kinds - {"Finding"}}
    numbers = " or ".join(map(str, sorted(exits)))
    return f"waits, {numbers}" if name in errors.RETRYABLE else numbers
