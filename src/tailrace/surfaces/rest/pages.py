"""Opaque cursors: where a list goes on, and for which filter alone."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from tailrace.errors import ConfigError


def cursor_of(place: str | int, filter: object) -> str:
    """A cursor behind `place`, of a list with this filter."""
    return base64.urlsafe_b64encode(json.dumps([place, _digest(filter)]).encode()).decode().rstrip("=")


def place_of(cursor: str | None, filter: object, kind: type[str] | type[int]) -> Any:
    """Where the list goes on; None: at its beginning. Raises `request.cursor` for one that was made for something
    else."""
    if cursor is None:
        return None
    try:
        place, digest = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError):
        place, digest = None, None
    if digest != _digest(filter) or type(place) is not kind:
        hint = "use a cursor with the filter that it came with, or begin without one"
        raise ConfigError("request.cursor", "the cursor does not belong to this list", hint=hint, where="cursor")
    return place


def _digest(filter: object) -> str:
    return hashlib.sha256(json.dumps(filter, sort_keys=True, default=str).encode()).hexdigest()[:16]
