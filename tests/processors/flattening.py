"""A slow oracle for `flatten`: plain Python, one value at a time, as the text it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
_BLANKS = " \t\n\r"


@dataclass(frozen=True)
class Options:
    separator: str = "__"
    max_depth: int | None = None
    on_collision: str = "last"
    empty_object: str = "preserve"
    lists: str = "preserve"
    empty_list: str = "preserve"


class CollisionError(Exception):
    """Two columns have one name."""


def parts(text: str) -> list[tuple[str, str]]:
    """The members of an object, or the elements of a list by number, each value as the text it has."""
    found: list[tuple[str, str]] = []
    at, is_object = 1, text[0] == "{"
    while True:
        while text[at] in _BLANKS + ",":
            at += 1
        if text[at] in "}]":
            return found
        name: str = str(len(found))
        if is_object:
            name, at = _DECODER.raw_decode(text, at)
            while text[at] in _BLANKS + ":":
                at += 1
        _, end = _DECODER.raw_decode(text, at)
        found.append((name, text[at:end]))
        at = end


def flattened(image: str, options: Options, closed: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """The columns of a row, in order. `closed`: those that stay whole."""
    columns: dict[str, str] = {}
    for top, value in parts(image):
        leaves = [(top, value)] if top in closed else _leaves(top, value, 0, options)
        for name, text in leaves:
            if name in columns and options.on_collision == "error":
                raise CollisionError(name)
            if name in columns and options.on_collision == "first":
                continue
            columns.pop(name, None)
            columns[name] = text
    return list(columns.items())


def _leaves(name: str, value: str, depth: int, options: Options) -> Iterator[tuple[str, str]]:
    opened = options.max_depth is None or depth < options.max_depth
    inner = parts(value) if value[0] in "{[" else []
    if value[0] == "{" and not inner:
        yield from _empty(name, value, options.empty_object)
    elif value[0] == "[" and not inner:
        yield from _empty(name, value, options.empty_list)
    elif opened and (value[0] == "{" or (value[0] == "[" and options.lists == "index")):
        for part, text in inner:
            yield from _leaves(name + options.separator + part, text, depth + 1, options)
    else:
        yield name, value


def _empty(name: str, value: str, policy: str) -> Iterator[tuple[str, str]]:
    if policy != "drop":
        yield name, "null" if policy == "null" else value
