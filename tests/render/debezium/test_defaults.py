"""Defaults as Debezium was seen to tell them (`tests/test_beside_debezium.py` looks again)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tailrace import spellings
from tailrace.kinds import Kind
from tailrace.render.debezium.defaults import default_of
from tailrace.render.debezium.images import Images
from tailrace.schema import Column, TableSchema

SEEN: list[tuple[str, str, Any]] = [
    ("integer", "nextval('orders_id_seq'::regclass)", 0),
    ("integer", "'-7'::integer", -7),
    ("integer", "7", 7),
    ("integer", "NULL::integer", None),
    ("smallint", "(1 + 2)", None),
    ("text", "'it''s'::text", "it"),
    ("text", "upper('x'::text)", ""),
    ("text", "CURRENT_USER", "CURRENT_USER"),
    ("text", "NULL::text", None),
    ("character varying(5)", "'abc'::character varying", "abc"),
    ("character(3)", "'ab'::bpchar", "ab"),
    ("numeric(10,2)", "1.5", "AJY="),
    ("numeric", "2.25", None),
    ("boolean", "true", True),
    ("real", "1.5", 1.5),
    ("double precision", "0.5", 0.5),
    ("date", "'2024-02-29'::date", 19782),
    ("date", "CURRENT_DATE", 0),
    ("time without time zone", "'12:34:56'::time without time zone", 45_296_000_000),
    ("time(3) without time zone", "'01:02:03.5'::time without time zone", 3_723_500),
    ("timestamp without time zone", "'2024-02-29 12:00:00'::timestamp without time zone", 1_709_208_000_000_000),
    ("timestamp(0) without time zone", "CURRENT_TIMESTAMP", 0),
    ("timestamp with time zone", "now()", "1970-01-01T00:00:00.000000Z"),
    ("timestamp with time zone", "(now() AT TIME ZONE 'utc'::text)", "1970-01-01T00:00:00.000000Z"),
    ("timestamp(3) with time zone", "'2024-02-29 10:00:00.5+00'::timestamp with time zone", "2024-02-29T10:00:00.500Z"),
    ("time with time zone", "'01:02:03+00'::time with time zone", None),
    ("interval", "'1 day'::interval", 86_400_000_000),
    ("uuid", "gen_random_uuid()", "00000000-0000-0000-0000-000000000000"),
    ("jsonb", "'{\"a\": 1}'::jsonb", '{"a": 1}'),
    ("bit(1)", "'1'::\"bit\"", True),
    ("bit(5)", "'10101'::\"bit\"", "FQ=="),
    ("bytea", "'\\x00ff'::bytea", None),
    ("integer[]", "'{}'::integer[]", None),
    ("inet", "'10.0.0.1'::inet", None),
    ("price", "1.5", None),
]


@pytest.mark.parametrize(("spelled", "expression", "expected"), SEEN)
def test_a_default_is_what_debezium_tells(spelled: str, expression: str, expected: Any) -> None:
    found = default_of(Column("v", spelled, default=expression, kind=spellings.kind_of(spelled)))
    assert (found and json.loads(found)) == expected if found else expected is None


def test_an_enums_default_is_its_label() -> None:
    for expression, expected in (("'very \"sad\"'::mood", '"very \\"sad\\""'), ("first_mood()", None)):
        assert default_of(Column("v", "mood", default=expression, kind=Kind("enum"))) == expected


def test_a_column_that_a_processor_made_another_has_none() -> None:
    assert default_of(Column("v", "integer", default="7", kind=Kind("text"))) is None


def test_a_default_stands_in_place_of_nulls_and_of_what_an_image_lacks() -> None:
    columns = (
        Column("id", "integer", nullable=False),
        Column("n", "integer", default="7"),
        Column("must", "integer", nullable=False, default="8"),
        Column("t", "text", default="'x'::text"),
        Column("j", "jsonb", default="'[1]'::jsonb"),
    )
    layout = Images(TableSchema(1, "shop", "public", "things", columns, ("id",)), columns)
    texts = ['{"id":1,"n":null,"must":0,"t":null,"j":null}', '{"id":1,"n":0,"t":"null"}']
    unsent = pa.array([None, ["j"]], pa.list_(pa.string()))
    made = [json.loads(text or "") for text in layout.rewritten(pa.array(texts), unsent).to_pylist()]
    assert made == [
        {"id": 1, "n": 7, "must": 0, "t": "x", "j": "[1]"},
        {"id": 1, "n": 0, "must": 8, "t": "null", "j": "__debezium_unavailable_value"},
    ]
