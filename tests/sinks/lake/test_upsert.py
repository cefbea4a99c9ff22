"""Lake tables that equal their source, in every format."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from tailrace.sinks.lake.target import Target
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import schema_of
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})


def test_a_merge_looks_only_where_its_keys_can_be(lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key's columns come in another order than the table's."""
    schema = schema_of(8, "lines", {"n": "integer", "v": "text", "day": "date"}, ("day", "n"))
    table, merges = lake(), []
    execute = Target.execute

    def noted(self: Target, statement: str, mark: int | None = None) -> None:
        merges.extend([statement] if statement.startswith("MERGE") else [])
        execute(self, statement, mark)

    monkeypatch.setattr(Target, "execute", noted)
    rows = [{"n": number, "v": "a", "day": f"2024-01-{number:02}"} for number in range(1, 6)]
    for row in rows:
        table.feed.add(schema, "c", row)
    table.keep()
    table.feed.add(schema, "u", {**rows[3], "v": "b"}).add(schema, "d", {"n": 2, "day": "2024-01-02"})
    table.keep()
    assert [(row["n"], row["v"]) for row in table.rows("public__lines", "n")] == [
        (1, "a"),
        (3, "a"),
        (4, "b"),
        (5, "a"),
    ]
    [merge] = merges
    assert "t.`n` >= cast('2' as int) AND t.`n` <= cast('4' as int)" in merge
    assert "t.`day` >= cast('2024-01-02' as date) AND t.`day` <= cast('2024-01-04' as date)" in merge


def test_a_repeat_makes_no_commit(lake: MakeLake) -> None:
    table = lake()
    table.feed.add(ORDERS, "c", {"id": 1, "n": 1, "note": "a"})
    table.keep()
    before = table.target().state()
    table.keep(0)
    assert table.target().state() == before


def test_a_table_that_was_rolled_back_catches_up(lake: MakeLake) -> None:
    """At the next start, also where that is killed on its way, and with the next batch."""
    table = lake()
    table.feed.add(ORDERS, "c", {"id": 1, "n": 1, "note": "a"})
    table.keep()
    first = table.target().state()
    for number in (2, 3, 4, 5):
        table.feed.add(ORDERS, "c", {"id": number, "n": number, "note": "b"})
    table.keep()
    roll_back(table, first)
    assert len(table.rows()) == 1
    with dies_at("lake.catch_up.between_reads"):
        table.again()
    table.again()
    assert [row["id"] for row in table.rows()] == [1, 2, 3, 4, 5]
    roll_back(table, first)
    table.feed.add(ORDERS, "u", {"id": 3, "n": 4, "note": "c"})
    table.keep()
    assert [row["n"] for row in table.rows()] == [1, 2, 4, 4, 5]
    table.again()
    table.keep(0)
    assert [row["n"] for row in table.rows()] == [1, 2, 4, 4, 5]


def roll_back(table: Lake, state: int | None) -> None:
    name = table.target().sql_name
    if table.sink.__class__.__name__ == "DeltaSink":
        table.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {state}")
    else:
        plain = name.replace("`", "")
        table.sql(f"CALL {plain.split('.')[0]}.system.rollback_to_snapshot('{plain}', {state})")


def test_types_are_exact(lake: MakeLake) -> None:
    kinds = {
        "id": "bigint", "b": "boolean", "i": "integer", "d": "numeric(12,2)", "big": "numeric", "day": "date",
        "at": "timestamp with time zone", "local": "timestamp(3) without time zone", "x": "bytea",
        "f": "double precision", "tags": "text[]", "ns": "integer[]", "j": "jsonb", "doc": "document",
        "u": "uuid",
        "t": "time without time zone",
    }  # fmt: skip
    schema = schema_of(7, "kinds", kinds)
    table = lake()
    table.feed.add(
        schema,
        "c",
        {
            "id": 9223372036854775807, "b": True, "i": -2147483648, "d": "-1234567890.10", "big": "1e400",
            "day": "2024-02-29", "at": "2024-02-29T23:59:59.123456Z", "local": "1969-12-31T23:59:59.123000",
            "x": "AAH/", "f": "Infinity", "tags": ["a", None, 'q"'], "ns": [1, None, -3], "j": {"a": [1.10, None]},
            "doc": {"b": [0.1, 12345678901234567890123]},
            "u": "c0ffee00-0000-0000-0000-000000000000", "t": "12:00:00.000001",
        },
    ).add(schema, "c", {name: 1 if name == "id" else None for name in kinds})  # fmt: skip
    table.keep()
    empty, full = table.rows("public__kinds")
    assert empty == {name: 1 if name == "id" else None for name in kinds}
    at = full.pop("at")
    assert at.astimezone(UTC) == datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
    assert full == {
        "id": 9223372036854775807, "b": True, "i": -2147483648, "d": Decimal("-1234567890.10"), "big": "1e400",
        "day": date(2024, 2, 29), "local": datetime(1969, 12, 31, 23, 59, 59, 123000), "x": bytearray(b"\x00\x01\xff"),
        "f": float("inf"), "tags": ["a", None, 'q"'], "ns": [1, None, -3], "j": '{"a": [1.1, null]}',
        "doc": '{"b": [0.1, 12345678901234567890123]}',
        "u": "c0ffee00-0000-0000-0000-000000000000", "t": "12:00:00.000001",
    }  # fmt: skip


def test_a_negative_zero_stays_one(lake: MakeLake) -> None:
    """A parser of JSON takes it for the integer 0. One in a document is no column's."""
    kinds = {"id": "bigint", "f": "real", "g g": "double precision", "d": "numeric(4,2)"}
    edges = schema_of(8, "edges", {**kinds, "j": "json"})
    table = lake(evolution="adapt")

    def add(op: str, key: int, members: str) -> None:
        table.feed.add(edges, op, {"id": key}, after=f'{{"id":{key},{members}}}')

    add("c", 1, '"f":-0,"g g":-0,"d":"1","j":{"f":-0}')
    add("c", 2, '"f":0,"g g":0,"d":"1","j":{"f":-0,"g g":-0}')
    add("c", 4, '"f":0,"g g":0,"d":"1","j":"\\"f\\":-0,"')
    add("c", 5, '"f":0,"g g":0,"d":"1","j":{"f":-0,"g g": -0}')
    table.keep()
    add("u", 2, '"f":-0.5,"g g":-0,"d":"NaN","j":-0')  # in the slower way
    add("c", 3, '"g g":-0,"d":"1","j":{"f":-0},"f":0')
    table.keep()
    rows = [(str(row["f"]), str(row["g g"]), row["j"]) for row in table.rows("public__edges")]
    assert rows == [
        ("-0.0", "-0.0", '{"f":-0}'),
        ("-0.5", "-0.0", "-0"),
        ("0.0", "-0.0", '{"f":-0}'),
        ("0.0", "0.0", '"\\"f\\":-0,"'),
        ("0.0", "0.0", '{"f":-0,"g g": -0}'),
    ]


def test_an_array_keeps_its_negative_zeros(lake: MakeLake) -> None:
    points = schema_of(8, "points", {"id": "bigint", "fs": "real[]", "gs": "double precision[]"})
    table = lake()
    for number, numbers in enumerate(("[-0]", "[0,-0,-0.5,null]", '[1e+20, -0, "NaN"]'), 1):
        table.feed.add(points, "c", {"id": number}, after=f'{{"id":{number},"fs":{numbers},"gs":{numbers}}}')
    table.keep()
    rows = [(str(row["fs"]), str(row["gs"])) for row in table.rows("public__points")]
    expected = ["[-0.0]", "[0.0, -0.0, -0.5, None]"]
    assert rows[:2] == [(each, each) for each in expected]
    assert rows[2][1] == "[1e+20, -0.0, nan]"


def test_json_in_arrays_keeps_every_digit(lake: MakeLake) -> None:
    documents = '[12345678901234567890.5,{"a":1.10},null]'
    table, schema = lake(), schema_of(8, "papers", {"id": "bigint", "js": "jsonb[]"})
    table.feed.add(schema, "c", {"id": 1}, after=f'{{"id":1,"js":{documents}}}')
    table.keep()
    table.feed.add(schema, "u", {"id": 1}, after=f'{{"id":1,"js":{documents}}}')
    table.keep()
    assert table.rows("public__papers") == [{"id": 1, "js": documents}]


def test_json_as_variants(spark: SparkSession, tmp_path: Path) -> None:
    """Values are there as what they are; a column that the source did not send keeps its own."""
    docs = schema_of(8, "docs", {"id": "bigint", "n": "integer", "j": "jsonb"})
    table = Lake(spark, sink_of("iceberg3", tmp_path, json_as="variant"), tmp_path)
    table.feed.add(docs, "c", {"id": 1, "n": 1, "j": {"a": [1.25, None, "x"]}}).add(
        docs, "c", {"id": 2, "n": 1, "j": None}
    )
    table.feed.add(docs, "c", {"id": 3, "n": 1, "j": [12345678901234567890123]})
    table.keep()
    table.feed.add(docs, "u", {"id": 1, "n": 2}, unchanged=["j"]).add(docs, "u", {"id": 2, "n": 2, "j": {"b": True}})
    table.feed.move(docs, {"id": 3}, {"id": 30, "n": 2}, unchanged=["j"])
    table.keep()
    found = table.sql(
        "SELECT id, n, to_json(j) j, variant_get(j, '$.a[0]', 'decimal(5,2)') a FROM {} ORDER BY id", "public__docs"
    )
    assert found == [
        {"id": 1, "n": 2, "j": '{"a":[1.25,null,"x"]}', "a": Decimal("1.25")},
        {"id": 2, "n": 2, "j": '{"b":true}', "a": None},
        {"id": 30, "n": 2, "j": "[12345678901234567890123]", "a": None},
    ]


def test_variants_need_a_format_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no variants"):
        sink_of("iceberg2", tmp_path, json_as="variant")
