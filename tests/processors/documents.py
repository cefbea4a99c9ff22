"""Random JSON documents, spelled in odd ways, for tests that compare with a slow oracle."""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = ("a", "b", "ab", "é", 'q"', "back\\slash", "dot.ted", "", "tab\t", "_rest", "😀", "a__b")
SCALARS = ("1", "-0.0", "1.10", "12345678901234567890", "1e5", "true", "false", "null", '"x"', '""', '"12.50"', '"é😀"')
ESCAPED = (r'"a\"b,}"', r'"\u00e9\n\t\\"', r'"\ud83d\ude00"', r'"\/"', r'"{\"a\":1}"')


def value(chance: random.Random, depth: int, blank: bool) -> str:
    """A JSON value, nested up to `depth`. `blank`: with blanks between tokens."""
    kind = chance.random()
    if depth and kind < 0.25:
        return document(chance, depth - 1, blank=blank)
    if depth and kind < 0.4:
        comma = chance.choice([",", ", ", " ,\t"]) if blank else ","
        return "[" + comma.join(value(chance, depth - 1, blank) for _ in range(chance.randrange(4))) + "]"
    return number(chance) if kind > 0.9 else chance.choice(SCALARS + ESCAPED)


def number(chance: random.Random) -> str:
    """A JSON number, of up to 60 digits."""
    digits = str(chance.randrange(10 ** chance.randrange(1, 30)))
    fraction = f".{chance.randrange(10 ** chance.randrange(1, 30))}" if chance.random() < 0.5 else ""
    exponent = f"{chance.choice('eE')}{chance.randrange(-30, 30):{chance.choice(['', '+'])}}"
    return chance.choice(["", "-"]) + digits + fraction + (exponent if chance.random() < 0.3 else "")


def document(chance: random.Random, depth: int, *, blank: bool = False, names: tuple[str, ...] = NAMES) -> str:
    """A JSON object. Its names are there once."""
    chosen = chance.sample(names, chance.randrange(len(names)))
    comma, colon = (chance.choice([",", ", "]), chance.choice([":", ": ", " : "])) if blank else (",", ":")
    return "{" + comma.join(f"{_name(chance, each)}{colon}{value(chance, depth, True)}" for each in chosen) + "}"


def _name(chance: random.Random, name: str) -> str:
    return json.dumps(name, ensure_ascii=chance.random() < 0.2)


def plain(text: str) -> Any:
    """What a text means, with numbers as their digits."""
    return json.loads(text, parse_float=Digits, parse_int=Digits)


class Digits(str):
    """A number's digits, which no text equals."""

    digits = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digits) and str(self) == str(other)

    __hash__ = str.__hash__
