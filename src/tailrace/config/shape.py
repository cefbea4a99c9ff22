"""Finding the type that a place in a document must have, by walking a model's annotations."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from tailrace.config.document import Path
from tailrace.config.model import Model


def members(kind: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """The plain types an annotation allows, each with the markers that `Annotated` puts on it."""
    if get_origin(kind) is Annotated:
        inner, *markers = get_args(kind)
        return [(plain, (*found, *markers)) for plain, found in members(inner)]
    if get_origin(kind) in (Union, UnionType):
        return [pair for member in get_args(kind) for pair in members(member)]
    return [(kind, ())]


def child(kind: Any, key: str | int, data: object) -> Any:
    """The annotation of one entry of `kind`, or None for an unknown key. `data` is the value at `kind`."""
    for plain, _ in _fitting(kind, data):
        args = get_args(plain)
        if plain in (Any, object):
            return Any
        if _is_model(plain):
            found = plain.kind_of(str(key), data if isinstance(data, Mapping) else {})
        elif isinstance(key, int):
            found = args[0] if args and get_origin(plain) in (list, tuple) else None
        else:
            found = args[1] if len(args) == 2 and get_origin(plain) is not tuple else None  # noqa: PLR2004
        if found is not None:
            return found
    return None


def keys_at(kind: Any, path: Path, data: Any) -> list[str]:
    """The keys that the mapping at `path` may have."""
    for part in path:
        kind = child(kind, part, data)
        data = data[part]
    names: dict[str, None] = {}
    for plain, _ in _fitting(kind, data):
        if _is_model(plain):
            names |= dict.fromkeys(plain.keys_of(data if isinstance(data, Mapping) else {}))
    return list(names)


def _fitting(kind: Any, data: object) -> list[tuple[Any, tuple[Any, ...]]]:
    """The members of a union that `data` can be: those of its own `type`, or all when it names none."""
    all_members = members(kind)
    tag = data.get("type") if isinstance(data, Mapping) else None
    tagged = [pair for pair in all_members if _is_model(pair[0]) and _tag(pair[0]) == tag]
    return tagged if tag is not None and tagged else all_members


def _tag(model: type[Model]) -> object:
    field = model.model_fields.get("type")
    literals = get_args(field.annotation) if field else ()
    return literals[0] if len(literals) == 1 else None


def _is_model(plain: Any) -> bool:
    return isinstance(plain, type) and issubclass(plain, Model)
