"""Values with a unit: durations and sizes, as documents write them and as code uses them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024**4}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(value: object) -> timedelta:
    """`"50ms"`, `"5s"`, `"7d"`; a bare number counts seconds."""
    if isinstance(value, timedelta):
        return value
    seconds = _quantity(value, _SECONDS)
    if seconds is None:
        raise PydanticCustomError(
            "config.invalid_value",
            "not a duration",
            {"hint": 'write it like "50ms", "5s", "10m", "2h" or "7d"'},
        )
    return timedelta(seconds=seconds)


def parse_size(value: object) -> int:
    """`"64MiB"`, `"64MB"` (decimal); a bare number counts bytes."""
    size = _quantity(value, _BYTES)
    if size is None or size != int(size):
        raise PydanticCustomError(
            "config.invalid_value",
            "not a size in bytes",
            {"hint": 'write it like "64MiB", "10GiB" or 1048576'},
        )
    return int(size)


def show_duration(value: timedelta) -> str:
    """The shortest exact way to write it: `timedelta(days=7)` is `"7d"`."""
    micros = value // timedelta(microseconds=1)
    for unit in ("d", "h", "m", "s", "ms"):
        step = round(_SECONDS[unit] * 1_000_000)
        if micros and micros % step == 0:
            return f"{micros // step}{unit}"
    return f"{micros}us" if micros else "0s"


def show_size(value: int) -> str:
    """The shortest exact way to write it: `67108864` is `"64MiB"`."""
    for unit in sorted(_BYTES, key=lambda name: -_BYTES[name]):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B"


def _quantity(value: object, units: dict[str, float] | dict[str, int]) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if value >= 0 else None
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        return None
    return float(match[1]) * units[match[2]]


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(show_duration, return_type=str),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^\d+(\.\d+)?\s*(us|ms|s|m|h|d)$", "minimum": 0}),
]
"""A `timedelta`, written `50ms`, `5s`, `10m`, `2h`, `7d`; a bare number counts seconds."""

ByteSize = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(show_size, return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "pattern": r"^\d+(\.\d+)?\s*([KMGT]i?)?B$", "minimum": 0}),
]
"""A number of bytes, written `64MiB` or `64MB`; a bare number counts bytes."""
