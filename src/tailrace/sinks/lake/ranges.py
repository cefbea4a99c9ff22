"""Which part of a table a batch can concern: the lowest and the highest value of each column of its keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

Ranges = dict[str, tuple[str, str]]

_NUMBER, _TEXT = "(?P<{}>-?[0-9]+)", '"(?P<{}>[^"\\\\]*)"'
"""How a value is spelled in a key. A text with an escape is not looked into."""


def ranges(keys: Iterable[pa.Array[Any]], names: Iterable[str], types: Mapping[str, DataType]) -> Ranges:
    """By column, as text that a cast reads back; columns whose range is not known are left out.

    `keys` are JSON objects with members `names`, in that order, which is that of the table's columns."""
    kinds = {name: _kind(types[name]) for name in names}
    pattern = _pattern(kinds)
    found: dict[str, list[Any]] = {name: [] for name, kind in kinds.items() if kind is not None}
    number = next(iter(kinds)) if list(kinds.values()) == [pa.int64()] else ""
    for each in keys:
        if number in found and (texts := _inner(each, number)) is not None:
            _extend(found, number, texts, pa.int64())
            continue
        parts = pc.extract_regex(each, pattern)
        if parts.null_count > each.null_count:
            return {}
        for place, (name, kind) in enumerate(kinds.items()):
            if name in found and kind is not None:
                _extend(found, name, parts.field(f"k{place}"), kind)
    return {name: (_text(min(bounds)), _text(max(bounds))) for name, bounds in found.items() if bounds}


def _inner(keys: pa.Array[Any], name: str) -> pa.Array[Any] | None:
    """The values of keys with one member, much faster than by a pattern; None where they are spelled otherwise."""
    start = f"{{{json.dumps(name, ensure_ascii=False)}:"
    if not pc.all(pc.starts_with(keys, start)).as_py():
        return None
    inner = pc.SliceOptions(len(start.encode()), -1)
    sliced: pa.Array[Any] = pc.call_function("binary_slice", [keys.cast(pa.binary())], inner).cast(pa.string())
    return sliced


def _extend(found: dict[str, list[Any]], name: str, texts: pa.Array[Any], kind: pa.DataType) -> None:
    try:
        bounds: Any = pc.min_max(texts.cast(kind)).as_py()
    except pa.ArrowInvalid:  # such as a date before Christ
        del found[name]
        return
    found[name] += [bounds[side] for side in ("min", "max") if bounds[side] is not None]


def _pattern(kinds: Mapping[str, pa.DataType | None]) -> str:
    members = (
        re.escape(json.dumps(name, ensure_ascii=False)) + ": ?" + _spelled(kind).format(f"k{place}")
        for place, (name, kind) in enumerate(kinds.items())
    )
    return "^\\{" + ", ?".join(members) + "\\}$"


def _spelled(kind: pa.DataType | None) -> str:
    return _NUMBER if kind == pa.int64() else _TEXT


def _kind(target: DataType) -> pa.DataType | None:
    """What values are compared as; None: they are not."""
    match target:
        case IntegerType() | LongType():
            return pa.int64()
        case StringType():
            return pa.string()
        case DateType():
            return pa.date32()
        case DecimalType():
            return pa.decimal128(target.precision, target.scale)
        case TimestampType():
            return pa.timestamp("us", "UTC")
        case TimestampNTZType():
            return pa.timestamp("us")
        case _:
            return None


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
