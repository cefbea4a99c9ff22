"""Logical types: what the values of a column are, whatever the database calls its type.

Sources say them; lake columns, encoders and processors look at nothing else, so that each of them knows every source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

KindName = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "decimal",
    "float32",
    "float64",
    "text",
    "bytes",
    "date",
    "time",
    "time_tz",
    "timestamp",
    "timestamp_tz",
    "interval",
    "json",
    "uuid",
    "enum",
    "array",
    "other",
]
"""`timestamp_tz` and `time_tz` have a time zone, the others have none. `other`: the database's own text."""

NAMES: tuple[KindName, ...] = get_args(KindName)
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_NESTED = re.compile(r"(array|domain)<(.+)>")


@dataclass(frozen=True)
class Kind:
    """A logical type. A `decimal` without `precision` has as many digits as it likes; an `array` has an `element`."""

    name: KindName = "other"
    precision: int | None = None
    scale: int | None = None
    element: Kind | None = None
    domain: bool = field(default=False, compare=False)
    """Whether the column's type is a domain over this, a type with a name of the user's own; of `other`: whether it may
    be one over anything. Its values are those of the kind all the same. Lake tables keep them as text."""

    def __str__(self) -> str:
        """As documents and schemas spell it: `int64`, `decimal(12,2)`, `array<text>`, `domain<int32>`."""
        if self.domain:
            return f"domain<{replace(self, domain=False)}>"
        if self.element is not None:
            return f"array<{self.element}>"
        return self.name if self.precision is None else f"{self.name}({self.precision},{self.scale})"

    @classmethod
    def parse(cls, text: str) -> Kind:
        """The inverse. Raises ValueError for anything else."""
        nested, decimal = _NESTED.fullmatch(text), _DECIMAL.fullmatch(text)
        if nested:
            inner = cls.parse(nested[2])
            return cls("array", element=inner) if nested[1] == "array" else replace(inner, domain=True)
        if decimal:
            return cls("decimal", int(decimal[1]), int(decimal[2]))
        for name in NAMES:
            if text == name and name != "array":
                return cls(name)
        raise ValueError(f"there is no kind '{text}'; kinds are {', '.join(NAMES)}, decimal(P,S) and array<KIND>")


OTHER = Kind()
