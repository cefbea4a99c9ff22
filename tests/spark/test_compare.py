"""Both sides of a comparison are spelled alike, whoever wrote the value."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, DoubleType, IntegerType, LongType, StringType

from tailrace.contracts import Extent
from tailrace.schema import TableSchema
from tailrace.sinks.lake.target import lake_session
from tailrace.spark.compare import Comparison
from tailrace.testing.feed import column_of

SCHEMA = TableSchema(
    1,
    "shop",
    "public",
    "t",
    (
        column_of("id", "bigint"),
        column_of("ratio", "double precision"),
        column_of("n", "integer"),
        column_of("tags", "text[]"),
        column_of("doc", "jsonb"),
    ),
    ("id",),
)
LAKE = (
    "id long, ratio string, n int, tags array<string>, doc string, dropped int, "
    "_unfit map<string, string>, _is_deleted boolean"
)


def found(spark: SparkSession, source: list[str], lake: list[tuple[Any, ...]], touched: tuple[str, ...] = ()) -> Any:
    session = lake_session(spark, {})
    table = session.createDataFrame(lake, LAKE)
    comparison = Comparison(session, SCHEMA, {each.name: each.dataType for each in table.schema.fields})
    images = comparison.images((f'{{"id":{json.loads(row)["id"]}}}', row) for row in source)
    sides = comparison.source(images), comparison.lake(table.filter("not coalesce(_is_deleted, false)"))
    compared = comparison.compare(*sides, comparison.touched(touched))
    differing = [(each.key, each.kind) for each in compared.differences(10)]
    moving = [each.key for each in compared.touched()]
    compared.close()
    return differing, moving


def test_equal_values_are_equal_whatever_wrote_them(spark: SparkSession) -> None:
    source = [
        '{"id":1,"ratio":1e+10,"n":5,"tags":["a",null],"doc":{"a":1.10}}',  # a column that became text
        '{"id":2,"ratio":"NaN","n":99999999999,"tags":null,"doc":null}',  # a value that does not fit
    ]
    lake = [
        (1, "1.0E10", 5, ["a", None], '{"a":1.10}', 3, None, None),
        (2, "NaN", None, None, None, None, {"n": "99999999999"}, False),
        (3, None, None, None, None, None, None, True),  # deleted, and kept
    ]
    assert found(spark, source, lake) == ([], [])


def test_nulls_that_change_places_and_digits_of_json_are_differences(spark: SparkSession) -> None:
    row = '{"id":%d,"ratio":1,"n":null,"tags":["a",null],"doc":{"a":1.10}}'
    lake = [
        (1, "1", None, [None, "a"], '{"a":1.10}', None, None, False),
        (2, "1", None, ["a", None], '{"a":1.1}', None, None, False),
        (3, "1", None, ["a", None], '{"a":1.10}', None, {"n": "7"}, False),
        (4, "1", None, ["a", None], '{"a":1.10}', None, None, True),
        (5, "1", None, ["a", None], '{"a":1.10}', None, None, None),
        (5, "1", None, ["a", None], '{"a":1.10}', None, None, None),
        (6, "1", None, ["a", None], '{"a":1.10}', None, None, None),
    ]
    differing, moving = found(spark, [row % number for number in range(1, 6)], lake, ('{"id":2}',))
    kinds = {json.loads(key)["id"]: kind for key, kind in differing}
    assert kinds == {"1": "changed", "3": "changed", "4": "missing", "5": "duplicate", "6": "extra"}
    assert moving == ['{"id":"2"}']


def test_ranges_of_keys_are_the_databases(spark: SparkSession) -> None:
    session = lake_session(spark, {})
    types: dict[str, DataType] = {"id": LongType(), "ratio": DoubleType(), "n": IntegerType()}
    table = session.createDataFrame([(each,) for each in range(10)], "id long")
    comparison = Comparison(session, SCHEMA, types)
    rows = comparison.within(table, Extent(low=("2",), high=("4",)), Extent(low=("4",), high=("7",)))
    assert sorted(row.id for row in rows.collect()) == [3, 4, 5, 6, 7]
    assert comparison.orders_keys
    assert not Comparison(session, SCHEMA, {**types, "id": StringType()}).orders_keys
