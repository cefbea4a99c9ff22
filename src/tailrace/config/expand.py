"""Environment variables in a document's text values.

    ${VAR}             the variable; an error that names it when it is not set
    ${VAR:-default}    the default when it is not set or empty
    $$                 one `$`

Values only, never keys and never code (`Script`). What a variable holds is not expanded again. In
a routing template (`Template`) the words of `tailrace.config.template` and dotted names stay for the change.
A text made of variables takes the type of its field: `count: ${COUNT}` is a number there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.config.document import Document, Path, problem_at, scalar
from tailrace.config.model import Model
from tailrace.config.problems import Problem
from tailrace.config.shape import child, members
from tailrace.config.template import HOLE, SOURCE_FIELDS, WORDS, Expansion

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand(document: Document, model: type[Model], environ: Mapping[str, str]) -> tuple[Document, list[Problem]]:
    """The document with its variables filled in, and what could not be filled."""
    walk = _Walk(document, environ)
    return document.with_data(walk.value(document.data, model, ())), walk.problems


@dataclass
class _Walk:
    document: Document
    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)

    def value(self, value: Any, kind: Any, path: Path) -> Any:
        """A key the model does not know has no `kind`; it stays as it is, to be refused by name."""
        if kind is None:
            return value
        if isinstance(value, dict):
            return self._mapping(value, kind, path)
        if isinstance(value, list):
            return [self.value(item, child(kind, i, value), (*path, i)) for i, item in enumerate(value)]
        return self._text(value, kind, path) if isinstance(value, str) and "$" in value else value

    def _mapping(self, value: dict[str, Any], kind: Any, path: Path) -> dict[str, Any]:
        """Scalars first: a sibling such as `type` may decide the type of what stands above it."""
        done = dict(value)
        for key in sorted(value, key=lambda key: isinstance(value[key], dict | list)):
            done[key] = self.value(value[key], child(kind, key, done), (*path, key))
        return done

    def _text(self, text: str, kind: Any, path: Path) -> Any:
        markers = {marker for _, found in members(kind) for marker in found if isinstance(marker, Expansion)}
        if Expansion.NEVER in markers:
            return text
        filled = HOLE.sub(lambda match: self._hole(match, Expansion.TEMPLATE in markers, path), text)
        return filled if Expansion.TEMPLATE in markers else _retyped(filled, kind)

    def _hole(self, match: re.Match[str], template: bool, path: Path) -> str:
        if match["dollar"]:
            return "$$" if template else "$"
        hole, variable = match["hole"], _VARIABLE.fullmatch(match["hole"])
        if template and (variable is None or hole in WORDS):
            return match[0]
        if not match["end"] or variable is None:
            self._refuse_hole(match[0], path)
            return match[0]
        filled = self.environ.get(variable[1], "")
        if not filled and variable[2] is not None:
            filled = variable[2]
        elif variable[1] not in self.environ:
            self._refuse_missing(variable[1], template, path)
            return match[0]
        return filled.replace("$", "$$") if template else filled

    def _refuse_missing(self, name: str, template: bool, path: Path) -> None:
        message = f"the environment variable {name} is not set"
        hint = f"set {name}, or write `${{{name}:-default}}`"
        if template and name in SOURCE_FIELDS:
            hint = f"did you mean `${{source.{name}}}`?"
        self.problems.append(problem_at(self.document, path, "config.missing_variable", message, hint))

    def _refuse_hole(self, hole: str, path: Path) -> None:
        message = f"`{hole}` is not a variable, and this field is not a routing template"
        hint = "write `${VAR}` or `${VAR:-default}`; `$$` stands for a plain `$`"
        self.problems.append(problem_at(self.document, path, "config.bad_variable", message, hint))


def _retyped(text: str, kind: Any) -> Any:
    """`text` as the number or truth its field wants, where it reads as one."""
    plain = {member for member, _ in members(kind)}
    meant = scalar(text)
    if str in plain or not (type(meant) in plain or (float in plain and type(meant) is int)):
        return text
    return meant
