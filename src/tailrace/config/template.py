"""Routing templates: text with `${…}` holes that each change fills, such as `shop.${source.table}`.

The holes may name what every record has:

    ${op} ${event_id} ${tenant_id}
    ${source.db} ${source.schema} ${source.table} …    see `SOURCE_FIELDS` and `POSITION_FIELDS`
    ${key.COLUMN} ${before.COLUMN} ${after.COLUMN}     deeper paths reach into JSON columns

`$$` stands for one `$`. Any other `${NAME}` is an environment variable and is gone before a template is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

WORDS = ("op", "event_id", "tenant_id")
IMAGES = ("key", "before", "after")
SOURCE_FIELDS = ("db", "schema", "table", "connector", "name", "version", "ts_ms")
"""What every source has."""
POSITION_FIELDS = ("lsn", "txId", "sequence", "server_id", "gtid", "file", "pos", "row")
"""What a place in a database's own log is called. Each kind of source has some of them, and says which."""
HOLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<hole>[^}]*)(?P<end>\}?))")


class Expansion(Enum):
    """How `${…}` in a field is treated; a marker in the field's annotation. Unmarked: variables only."""

    TEMPLATE = "template"
    NEVER = "never"


@dataclass(frozen=True)
class Reference:
    """One hole of a template: the path into the record, `("source", "table")`."""

    path: tuple[str, ...]


def parse_template(text: str) -> tuple[str | Reference, ...]:
    """The literal pieces and holes of a template, in order. Raises a validation error for a hole that no
    change can fill."""
    parts: list[str | Reference] = []
    at = 0
    for match in HOLE.finditer(text):
        parts += [text[at : match.start()], "$" if match["dollar"] else _reference(match)]
        at = match.end()
    return _joined([*parts, text[at:]])


def literal_of(text: str) -> str | None:
    """What a template is for every change; None where it has holes."""
    match parse_template(text):
        case (str(literal),):
            return literal
        case _:
            return None


def _reference(match: re.Match[str]) -> Reference:
    hole = match["hole"]
    if not match["end"]:
        raise _bad("`${` is never closed", "close it with `}`, or write `$$` for a plain `$`")
    if ":-" in hole:
        raise _bad(f"`{hole}` has a default", "only environment variables can have one")
    path = tuple(hole.split("."))
    if hole in WORDS or (path[0] in IMAGES and len(path) > 1 and all(path)):
        return Reference(path)
    if path[0] == "source" and len(path) == 2 and path[1] in (*SOURCE_FIELDS, *POSITION_FIELDS):  # noqa: PLR2004
        return Reference(path)
    raise _bad(f"a change has no `{hole}`", _nearest(hole, path[0]))


def _nearest(hole: str, root: str) -> str:
    if root in IMAGES:
        return f"name a column: `${{{root}.id}}`"
    known = [
        *WORDS,
        *(f"source.{name}" for name in (*SOURCE_FIELDS, *POSITION_FIELDS)),
        *(f"{image}.COLUMN" for image in IMAGES),
    ]
    close = get_close_matches(hole, known, 1, 0.5) or get_close_matches(root, IMAGES, 1, 0.5)
    if not close:
        return "use " + ", ".join(f"`${{{name}}}`" for name in known)
    tail = hole.removeprefix(root) if close[0] in IMAGES else ""
    return f"did you mean `${{{close[0]}{tail}}}`?"


def _bad(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.bad_template", "{message}", {"message": message, "hint": hint})


def _joined(parts: list[str | Reference]) -> tuple[str | Reference, ...]:
    joined: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return tuple(joined)


def _checked(text: str) -> str:
    parse_template(text)
    return text


Template = Annotated[str, Expansion.TEMPLATE, AfterValidator(_checked)]
"""The type of a field that is a routing template; `parse_template` gives its pieces."""

Script = Annotated[str, Expansion.NEVER]
"""The type of a field that holds code: nothing in it is ever expanded."""
