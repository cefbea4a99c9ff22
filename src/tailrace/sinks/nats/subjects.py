"""Subjects: templates and what fills their holes, and which subjects of a stream take them. Nothing here is I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from tailrace.config import Reference, parse_template

LONGEST_SUBJECT = 1024
"""In bytes. A server's line has 4096 by default; subject, reply and sizes share it."""

_HAS_MEANING = re.compile(r"[\x00-\x20\x7f.*>%$]")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f*>]")
_OF_THE_SERVER = ("$JS", "$SYS", "$G", "_INBOX")


def escaped(value: str) -> str:
    """A value as (a part of) one token: what has a meaning in subjects is percent-encoded, so `a.b c` is `a%2Eb%20c`.
    No two values are the same afterwards, and none adds a token or reaches the server's own subjects."""
    return _HAS_MEANING.sub(lambda found: f"%{ord(found[0]):02X}", value)


def problem_of(subject: str) -> str:
    """Why nothing can be published to it; empty where it can."""
    if _FORBIDDEN.search(subject):
        return "has white space or a wildcard"
    tokens = subject.split(".")
    if not all(tokens):
        return "has an empty token"
    if tokens[0] in _OF_THE_SERVER:
        return "belongs to the server"
    if len(subject.encode()) > LONGEST_SUBJECT:
        return f"is longer than {LONGEST_SUBJECT} bytes"
    return ""


@dataclass(frozen=True)
class SubjectTemplate:
    """The literal pieces and holes of a subject, in order."""

    text: str
    parts: tuple[str | Reference, ...]

    @property
    def static(self) -> str | None:
        """The subject, where all records have the same one."""
        match self.parts:
            case (str(subject),):
                return subject
            case _:
                return None

    @property
    def pattern(self) -> str:
        """What every filled subject matches: a token with a hole is a `*`, since no value adds a token."""
        text = "".join(part if isinstance(part, str) else "*" for part in self.parts)
        return ".".join("*" if "*" in token else token for token in text.split("."))

    def holes(self) -> dict[str, str]:
        """Column name → the template that is this hole alone."""
        return {
            f"subject_{place}": "${" + ".".join(part.path) + "}"
            for place, part in enumerate(self.parts)
            if isinstance(part, Reference)
        }

    def filled(self, values: dict[str, str | None]) -> str | None:
        """The subject with the holes' columns filled in; None where a value is missing or empty."""
        texts: list[str] = []
        for place, part in enumerate(self.parts):
            text = part if isinstance(part, str) else escaped(values[f"subject_{place}"] or "")
            if not text:
                return None
            texts.append(text)
        return "".join(texts)


def subject_template(text: str) -> SubjectTemplate:
    return SubjectTemplate(text, parse_template(text))


def checked_template(text: str) -> str:
    """Refuse what no value could make a subject of."""
    template = subject_template(text)
    parts = [part if isinstance(part, str) else "x" for part in template.parts]
    if problem := problem_of("".join(parts)):
        hint = "subjects are tokens with dots between them, such as `orders.${source.table}`"
        raise PydanticCustomError(
            "config.invalid_value", "{message}", {"message": f"the subject {problem}", "hint": hint}
        )
    return text


def covers(taken: str, pattern: str) -> bool:
    """Whether a stream that takes `taken` gets all that is published to what `pattern` matches."""
    return _matches(taken.split("."), pattern.split("."), either=False)


def meets(taken: str, pattern: str) -> bool:
    """Whether it gets some of it."""
    return _matches(taken.split("."), pattern.split("."), either=True)


def _matches(taken: list[str], pattern: list[str], *, either: bool) -> bool:
    for place, token in enumerate(taken):
        if place >= len(pattern):
            return False
        if token == ">":
            return True
        if token not in ("*", pattern[place]) and not (either and pattern[place] == "*"):
            return False
    return len(taken) == len(pattern)
