"""A document as it may be shown: secrets that stand in it in clear are blanked, references to variables stay.

Whoever changes what was shown and sends it back means the secrets that are there already: `restored` puts them back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import SecretStr

from tailrace.config.document import Path
from tailrace.config.model import Model
from tailrace.config.secret import MASK, Dsn, redact
from tailrace.config.shape import child, members

_REFERENCES = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+")
"""Nothing but variables; a default would be in clear."""


def shown(data: Any, kind: type[Model]) -> Any:
    """`data`, a parsed document of this kind, without its secrets."""
    return _shown(data, kind)


def restored(sent: Any, known: Any, kind: type[Model]) -> Any:
    """What was `sent` back, with the secrets of `known` wherever it has what is shown of them. A mask that nothing
    stands behind stays: see `masked`."""
    return _restored(sent, known, _shown(known, kind))


def masked(data: Any, kind: type[Model]) -> list[Path]:
    """The places where a secret should stand, and a mask does."""
    return list(_masked(data, kind, ()))


def _shown(value: Any, kind: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shown(each, None if kind is None else child(kind, key, value)) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each, None if kind is None else child(kind, n, value)) for n, each in enumerate(value)]
    return _text(value, kind) if isinstance(value, str) else value


def _text(text: str, kind: Any) -> str:
    plain = [member for member, _ in members(kind) if isinstance(member, type)]
    if _REFERENCES.fullmatch(text):
        return text
    if any(issubclass(member, SecretStr) and not issubclass(member, Dsn) for member in plain):
        return MASK
    return redact(text)


def _masked(value: Any, kind: Any, path: Path) -> Iterator[Path]:
    entries: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    elif isinstance(value, str) and MASK in value:
        probe = value.replace(MASK, "x")
        if _text(probe, kind) != probe:
            yield path
    for key, each in entries:
        yield from _masked(each, None if kind is None else child(kind, key, value), (*path, key))


def _restored(sent: Any, known: Any, told: Any) -> Any:
    if isinstance(sent, Mapping) and isinstance(known, Mapping):
        return {key: _restored(each, known.get(key), told.get(key)) for key, each in sent.items()}
    if isinstance(sent, list) and isinstance(known, list):
        return [_restored(each, *_counterpart(each, place, known, told)) for place, each in enumerate(sent)]
    return known if isinstance(sent, str) and sent == told and type(known) is str else sent


def _counterpart(item: Any, place: int, known: list[Any], told: list[Any]) -> tuple[Any, Any]:
    """What stands for an item of a list: the one with its id, or else the one in its place."""
    wanted = _id(item)
    if wanted is not None:
        for each, shown_as in zip(known, told, strict=True):
            if _id(each) == wanted:
                return each, shown_as
        return None, None
    return (known[place], told[place]) if place < len(known) else (None, None)


def _id(item: Any) -> object:
    if not isinstance(item, Mapping):
        return None
    config = item.get("config")
    return item.get("id") or (config.get("id") if isinstance(config, Mapping) else None)
