"""Typed rows equal what Spark's own parser makes of the same images, or there are none."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.lake.columns import type_of
from tailrace.sinks.lake.fold import Reading, with_row
from tailrace.testing.feed import schema_of
from tests.capture.postgres.values import VALUES, Case

Kinds = Mapping[str, str]
"""Column → the source's type."""
FULL_NAMES = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bool": "boolean",
    "timestamp": "timestamp without time zone",
    "timestamp(3)": "timestamp(3) without time zone",
    "timestamptz": "timestamp with time zone",
}
REFUSED = {
    *(("float8", text) for text in ("NaN", "Infinity", "-Infinity")),
    *(("date", text) for text in ("5874897-12-31", "4714-11-24 BC", "infinity", "-infinity")),
    *(("timestamp", text) for text in ("infinity", "-infinity", "0044-03-15 10:00:00.5 BC", "4714-11-24 00:00:00 BC")),
    *(("timestamptz", text) for text in ("infinity", "-infinity", "0044-03-15 10:00+00 BC")),
    *(("timestamptz", text) for text in ("294276-12-31 23:59:59.999999+00", "9999-12-31 23:59:59-01")),
    *(("timestamp", text) for text in ("10000-01-01 00:00:00.000001", "294276-12-31 23:59:59.999999")),
}
"""Values that are left to the slow way, by what the source was given."""
STANDARD = {
    "id": "bigint",
    "small": "integer",
    'price "net"': "numeric(12,2)",
    "höhe": "numeric(38,10)",
    "a b": "text",
    "flag": "boolean",
    "at": "timestamp with time zone",
    "local": "timestamp without time zone",
    "day": "date",
    "ratio": "double precision",
    "doc": "jsonb",
    "old\\doc": "json",
}


def reading_of(kinds: Kinds) -> Reading:
    table = schema_of(1, "t", dict(kinds))
    return Reading.of(table, {column.name: type_of(column.kind, variant=False) for column in table.columns})


def typed(kinds: Kinds, images: Sequence[str | None]) -> list[dict[str, Any]]:
    rows = reading_of(kinds).typed_rows
    assert rows is not None
    changes = pa.record_batch({"after": pa.array([None, *images], pa.string()).slice(1)})
    [found] = rows.of([changes])
    return found.to_pylist()


def slowly(spark: SparkSession, kinds: Kinds, images: Sequence[str]) -> list[dict[str, Any]]:
    """The same from Spark's parser, as `typed` has it: in the order of the images."""
    reading = reading_of(kinds).as_strict()
    changes = spark.createDataFrame(list(enumerate(images)), "seq int, after string").selectExpr("*", "'' AS key")
    rows = with_row(changes.repartition(1), reading).selectExpr("seq", *reading.strict_columns())
    found = rows.toArrow().sort_by("seq").drop_columns("seq")
    return found.to_pylist()


def plain(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """With every difference that Python's equality leaves out, such as -0 and 0, and an instant's zone."""
    return [{name: repr(value) for name, value in row.items()} for row in rows]


def image(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in members.items()) + "}"


def is_taken(case: Case) -> bool:
    return reading_of({"v": FULL_NAMES.get(case.type, case.type)}).typed_rows is not None


CASES = [case for group in VALUES.values() for case in group if is_taken(case)]


def test_every_boundary_of_every_type(spark: SparkSession) -> None:
    kinds = {f"c{place}": FULL_NAMES.get(case.type, case.type) for place, case in enumerate(CASES)}
    members = {f"c{place}": case.json for place, case in enumerate(CASES)}
    refused = set()
    for place, case in enumerate(CASES):
        name = f"c{place}"
        try:
            typed({name: kinds[name]}, [image({name: members[name]})])
        except ValueError:
            refused.add((case.type, case.text))
            del kinds[name], members[name]
    assert refused == REFUSED
    assert len(kinds) > 100
    assert plain(typed(kinds, [image(members)])) == plain(slowly(spark, kinds, [image(members)]))


def test_random_rows(spark: SparkSession) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    images = [image(_members(chance)) for _ in range(500)]
    found = typed(STANDARD, images)
    assert plain(found) == plain(slowly(spark, STANDARD, images))
    assert all(any(row[name] is not None for row in found) for name in STANDARD)


def _members(chance: random.Random) -> dict[str, str]:
    """A row as a tap writes it, but in any order, with members missing, null, or unknown."""
    made = {name: _value(chance, kind) for name, kind in STANDARD.items()} | {"other": '{"id": [1, "}"]}', "ID": "7"}
    names = [name for name in made if chance.random() < 0.9]
    if chance.random() < 0.3:
        chance.shuffle(names)
    return {name: "null" if chance.random() < 0.1 else made[name] for name in names}


def _value(chance: random.Random, kind: str) -> str:
    year, month, day = chance.choice((1, 1582, 1900, 2024, 9999)), chance.randint(1, 12), chance.randint(1, 28)
    date, digits = f"{year:04}-{month:02}-{day:02}", chance.randrange(10**12)
    time = f"{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}.{digits % 10**6:06}"
    match kind:
        case "bigint":
            return str(chance.choice((-1, 1)) * chance.randrange(1 << chance.randrange(1, 64)))
        case "integer":
            return str(chance.randrange(-(1 << 31), 1 << 31))
        case "numeric(12,2)":
            return f'"{chance.choice(("", "-"))}{digits // 100}.{digits % 100:02}"'
        case "numeric(38,10)":
            return f'"{chance.randrange(10 ** chance.randrange(1, 28))}.{digits % 10**10:010}"'
        case "boolean":
            return chance.choice(("true", "false"))
        case "date":
            return f'"{date}"'
        case "timestamp with time zone" | "timestamp without time zone":
            return f'"{date}T{time}{"Z" if "with time" in kind else ""}"'
        case "double precision":
            return chance.choice(("0", "-0", "1e+20", "5e-324", repr(chance.random()), repr(chance.gauss(0, 1e30))))
        case _:
            text = "".join(chance.choices('ab" \\/\b\f\n\r\t\x01é鍵😀\u2028\x7f}],:', k=chance.randrange(12)))
            return json.dumps(text, ensure_ascii=chance.random() < 0.5) if kind == "text" else _document(chance, text)


def _document(chance: random.Random, text: str) -> str:
    return chance.choice(
        (json.dumps({"b": [1, {text: None}], "a": text}), "-0.10e+400", '{"b":1, "b" : 2}', "[ 1.10 ]")
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("bigint", text) for text in ("1.0", "1e3", '"1"', "01", "+1", "-", "0x1F", "9223372036854775808", "true")),
        *(("bigint", text) for text in ("-9223372036854775809", "99999999999999999999", "18446744073709551617", "[1]")),
        *(("integer", text) for text in ("2147483648", "-2147483649", "1.5", '""')),
        *(("boolean", text) for text in ("1", '"true"', "True", "tru", "truely")),
        *(("double precision", text) for text in ("1e400", "-1e400", '"1"', "NaN", "Infinity", "1.", ".5", "01", "1e")),
        *(("numeric(10,2)", text) for text in ("1.00", '"1e2"', '"1.005"', '"123456789.00"', '"NaN"', '" 1"', '""')),
        *(("date", text) for text in ('"2024-02-30"', '"2024-2-03"', '"2024-02-29Z"', '"20240229"', "1", '""')),
        ("timestamp with time zone", '"2024-02-29T12:00:00Z"'),
        ("timestamp with time zone", '"2024-02-29T12:00:00.000001"'),
        ("timestamp with time zone", '"2024-02-29T12:00:00.00+00:0"'),
        ("timestamp with time zone", '"2024-02-30T12:00:00.000001Z"'),
        ("timestamp with time zone", '"2024-02-29T24:00:00.000000Z"'),
        ("timestamp without time zone", '"2024-02-29T12:00:00.00001Z"'),
        ("timestamp without time zone", '"2024-02-29T12:00:00.0000001"'),
        *(
            ("text", text)
            for text in ("1", "{}", "true", '"\x01"', '"\\ud83d"', '"\\ude00"', '"\\ud83d\\u0041"', '"\\x"')
        ),
        *(("text", text) for text in ('"\\u12g4"', '"', '"a', '"a"b', "", "nul", "nulls", '"a",', '"a"} ')),
        ("text", '"a", "v": "b"'),
        ("text", 'null, "v": "b"'),
        ("text", '"a", "\\u0076": "b"'),
        ("text", '"a" "b"'),
        ("text", '"a", 1'),
    ],
)
def test_what_is_not_a_value_of_the_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError):
        typed({"v": kind}, [image({"v": text})])


@pytest.mark.parametrize("text", [None, "", "null", "[]", '{"v": 1', '{"v" 1}', '{"v": 1}}', '{,"v": 1}', ' {"v": 1}'])
def test_what_is_not_an_object_is_refused(text: str | None) -> None:
    with pytest.raises(ValueError, match="row"):
        typed({"v": "bigint"}, ['{"v": 1}', text])


def test_rows_without_values() -> None:
    assert typed({"v": "bigint", "w": "text"}, []) == []
    assert typed({"v": "double precision", "w": "jsonb"}, ["{}", '{"w": null}']) == [{"v": None, "w": None}] * 2


@pytest.mark.parametrize("kind", ["real", "bytea", "integer[]", "jsonb[]", "public.ratio", "double precision[]"])
def test_types_that_only_spark_makes(kind: str) -> None:
    assert reading_of({"id": "bigint", "v": kind}).typed_rows is None
