"""Pipeline documents as the service takes and shows them: as they were written, never with variables filled in."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tailrace.config.document import Document, problem_at
from tailrace.config.problems import DocumentError
from tailrace.config.shown import masked, restored, shown
from tailrace.errors import ConfigError
from tailrace.spec import Pipeline, read_pipeline

Content = Mapping[str, Any]
"""A parsed document."""


@dataclass(frozen=True)
class Checked:
    """A document that can be used, and the pipeline it describes here and now."""

    content: dict[str, Any]
    pipeline: Pipeline


def check(content: object, known: Content | None, environ: Mapping[str, str]) -> Checked:
    """Raises `DocumentError` with all that is wrong. Where it has what is shown of secrets, they are those of the
    `known` document."""
    if not isinstance(content, Mapping):
        raise ConfigError("config.syntax", "the document is not an object", hint="send {metadata: …, spec: …}")
    whole = deepcopy(dict(content)) if known is None else restored(content, known, Pipeline)
    document = Document("", whole)
    hint = "write the secret itself, or better a variable such as ${PASSWORD}"
    message = "is what is shown in place of a secret, and no secret stands behind it"
    if places := masked(whole, Pipeline):
        raise DocumentError([problem_at(document, place, "config.masked", message, hint) for place in places])
    return Checked(whole, read_pipeline(document, environ))


def merged(known: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396): objects by key, null removes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    result = dict(known) if isinstance(known, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def as_shown(content: Content) -> dict[str, Any]:
    """Without its secrets."""
    told: dict[str, Any] = shown(content, Pipeline)
    return told
