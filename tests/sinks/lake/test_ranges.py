"""Ranges of keys: never too narrow, and none where a key is not understood."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.sinks.lake.ranges import Ranges, ranges


def found(kind: DataType, *values: Any) -> Ranges:
    """Of keys in two frames."""
    texts = [json.dumps({"k": value}, ensure_ascii=False, separators=(",", ":")) for value in values]
    return ranges([pa.array(texts[:1]), pa.array(texts[1:], pa.string())], ["k"], {"k": kind})


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (LongType(), [5, -3, 9223372036854775807], ("-3", "9223372036854775807")),
        (IntegerType(), [10, 9], ("9", "10")),
        (StringType(), ["b", "a", "é"], ("a", "é")),
        (StringType(), ["", "x,}"], ("", "x,}")),
        (DateType(), ["2024-02-29", "0001-01-01"], ("0001-01-01", "2024-02-29")),
        (DecimalType(20, 2), ["9.5", "10.25", "-1"], ("-1.00", "10.25")),
        (
            TimestampType(),
            ["2024-02-29T12:00:00.000001Z", "2024-02-29T12:00:00Z"],
            ("2024-02-29T12:00:00+00:00", "2024-02-29T12:00:00.000001+00:00"),
        ),
        (
            TimestampNTZType(),
            ["2024-02-29T12:00:00", "1969-01-01T00:00:00"],
            ("1969-01-01T00:00:00", "2024-02-29T12:00:00"),
        ),
    ],
)
def test_lowest_and_highest(kind: DataType, values: list[Any], expected: tuple[str, str]) -> None:
    assert found(kind, *values) == {"k": expected}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StringType(), ["a", 'with "quotes"']),
        (StringType(), ["a", "line\n"]),
        (DateType(), ["2024-02-29", "0044-03-15 BC"]),
        (DateType(), ["2024-02-29", "infinity"]),
        (DecimalType(4, 2), ["9.5", "1.234"]),
        (LongType(), [1, 92233720368547758070]),
        (LongType(), [1, "2"]),
        (BooleanType(), [True, False]),
        (DoubleType(), [1.5, 2.5]),
    ],
)
def test_none_where_a_key_is_not_understood(kind: DataType, values: list[Any]) -> None:
    assert found(kind, *values) == {}


def test_keys_of_several_columns() -> None:
    types: dict[str, DataType] = {"größe (m)": LongType(), 'a"b': StringType(), "day": DateType()}
    rows = [(1, "x", "2024-02-29"), (-5, "z", "10000-01-01")]
    keys = [json.dumps(dict(zip(types, row, strict=True)), ensure_ascii=False) for row in rows]
    assert ranges([pa.array(keys)], list(types), types) == {"größe (m)": ("-5", "1"), 'a"b': ("x", "z")}
    assert ranges([], list(types), types) == {}
