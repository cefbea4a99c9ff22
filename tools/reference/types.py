"""What a key may hold, in words, from the annotation of a model's field."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BeforeValidator, SecretStr

from tailrace.config import Dsn, Model
from tailrace.config.shape import members
from tailrace.config.template import Expansion
from tailrace.config.values import parse_size, show_size
from tools.reference.markdown import code

PLAIN: dict[Any, str] = {
    str: "text",
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    Path: "path",
    SecretStr: "secret text",
    Dsn: "connection string",
    timedelta: "duration",
    Any: "any value",
}


def models_in(kind: Any) -> tuple[type[Model], ...]:
    """The models that an annotation leads to, directly or as the entries of a list or a mapping."""
    found: dict[type[Model], None] = {}
    for plain, _ in members(kind):
        if isinstance(plain, type) and issubclass(plain, Model):
            found[plain] = None
        elif get_origin(plain) in (tuple, list, dict):
            found |= dict.fromkeys(each for inner in get_args(plain) for each in models_in(inner))
    return tuple(found)


def type_words(kind: Any, inner: str) -> str:
    """What a value may be, and its bounds. `inner` stands for the models in it."""
    found = [(_words(plain, markers, inner), markers) for plain, markers in members(kind) if plain is not NoneType]
    words = list(dict.fromkeys(word for word, _ in found if word))
    bounds = dict.fromkeys(bound for word, markers in found for bound in _bounds(markers, word))
    return ", ".join([_either(words), *bounds])


def _either(words: list[str]) -> str:
    """`a, b or c`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _words(plain: Any, markers: tuple[Any, ...], inner: str) -> str:
    arguments = get_args(plain)
    if any(isinstance(each, BeforeValidator) and each.func is parse_size for each in markers):
        return "size"
    if Expansion.TEMPLATE in markers:
        return "template"
    if get_origin(plain) is Literal:
        return _either([code(str(value)) for value in arguments])
    if get_origin(plain) is tuple:
        return f"list of {type_words(arguments[0], inner)}" if arguments else "`[]`"
    if get_origin(plain) is dict:
        return f"mapping of text to {type_words(arguments[1], inner)}"
    if isinstance(plain, type) and issubclass(plain, Model):
        return inner
    return PLAIN[plain]


def _bounds(markers: tuple[Any, ...], word: str) -> Iterator[str]:
    for marker in markers:
        match marker:
            case Ge(bound):
                yield f"≥ {_amount(bound, word)}"
            case Gt(bound):
                yield f"> {_amount(bound, word)}"
            case Le(bound):
                yield f"≤ {_amount(bound, word)}"
            case Lt(bound):
                yield f"< {_amount(bound, word)}"
            case MinLen(1):
                yield "not empty"
            case MinLen(length):
                yield f"{length} or longer"
            case MaxLen(length):
                yield f"{length} characters at most"
            case _:
                pattern = getattr(marker, "pattern", None)
                yield from [f"matches {code(pattern)}"] if pattern else []


def _amount(bound: object, word: str) -> str:
    return show_size(bound) if word == "size" and isinstance(bound, int) else str(bound)
