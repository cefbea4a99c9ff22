"""How values are written: what the kernel is told of a column."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """How the kernel writes a value. `RARE`: it leaves each of them to Python."""

    VERBATIM = 0
    FLOAT = 1
    DECIMAL = 2
    VARIABLE_DECIMAL = 3
    DATE = 4
    TIME_MICROS = 5
    TIME_MILLIS = 6
    MICROS = 7
    MILLIS = 8
    ZONED = 9
    JSON = 10
    RARE = 11
    OMITTED = 12
