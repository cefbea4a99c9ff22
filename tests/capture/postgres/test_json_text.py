"""Values: every kind of PostgreSQL text and the JSON it becomes, on its boundaries and against the reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.postgres.json_text import Kind, put_value, room
from tests.capture.postgres.reference import array_json

GUARD = 170


def mapped(text: str, kind: Kind, element: Kind = Kind.TEXT, delimiter: str = ",") -> str:
    """The kernel's text, written with exactly the room it asked for; fails where it writes beyond."""
    source = np.frombuffer(b"<" + text.encode() + b">", dtype=np.uint8)
    length = len(source) - 2
    size = int(room(source, 1, length))
    out = np.full(size + 64, GUARD, dtype=np.uint8)
    end = put_value(source, 1, length, int(kind), int(element), ord(delimiter), out, 0)
    assert end <= size
    assert (out[size:] == GUARD).all()
    return bytes(out[:end]).decode()


SCALARS = [
    (Kind.NUMBER, "-9223372036854775808", "-9223372036854775808"),
    (Kind.NUMBER, "0", "0"),
    (Kind.FLOAT, "1.5e+300", "1.5e+300"),
    (Kind.FLOAT, "-0", "-0"),
    (Kind.FLOAT, "NaN", '"NaN"'),
    (Kind.FLOAT, "Infinity", '"Infinity"'),
    (Kind.FLOAT, "-Infinity", '"-Infinity"'),
    (Kind.BOOL, "t", "true"),
    (Kind.BOOL, "f", "false"),
    (Kind.BYTES, "\\x", '""'),
    (Kind.BYTES, "\\x00", '"AA=="'),
    (Kind.BYTES, "\\x00ff", '"AP8="'),
    (Kind.BYTES, "\\x00ffAB", '"AP+r"'),
    (Kind.JSON, '{"b": 1,\n "b":\r\n[1.0, 2e5]}', '{"b": 1,  "b":  [1.0, 2e5]}'),
    (Kind.TIMESTAMP, "2020-01-02 03:04:05", '"2020-01-02T03:04:05.000000"'),
    (Kind.TIMESTAMP, "2020-01-02 03:04:05.1", '"2020-01-02T03:04:05.100000"'),
    (Kind.TIMESTAMP, "2020-01-02 03:04:05.123456", '"2020-01-02T03:04:05.123456"'),
    (Kind.TIMESTAMP, "294276-12-31 23:59:59.999999", '"294276-12-31T23:59:59.999999"'),
    (Kind.TIMESTAMP, "4713-01-01 00:00:00 BC", '"4713-01-01 00:00:00 BC"'),
    (Kind.TIMESTAMP, "infinity", '"infinity"'),
    (Kind.TIMESTAMP, "-infinity", '"-infinity"'),
    (Kind.TIMESTAMPTZ, "2020-01-02 03:04:05+00", '"2020-01-02T03:04:05.000000Z"'),
    (Kind.TIMESTAMPTZ, "2020-01-02 03:04:05.5+00", '"2020-01-02T03:04:05.500000Z"'),
    (Kind.TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC", '"0044-03-15 00:00:00+00 BC"'),
    (Kind.TIMESTAMPTZ, "infinity", '"infinity"'),
    (Kind.TIMESTAMPTZ, "-infinity", '"-infinity"'),
    (Kind.TIME, "24:00:00", '"24:00:00.000000"'),
    (Kind.TIME, "00:00:00.000001", '"00:00:00.000001"'),
    (Kind.TIMETZ, "12:00:01+02", '"12:00:01.000000+02:00"'),
    (Kind.TIMETZ, "12:00:01.25-03:30", '"12:00:01.250000-03:30"'),
    (Kind.TIMETZ, "12:00:01-00:19:32", '"12:00:01.000000-00:19:32"'),
    (Kind.TEXT, "", '""'),
    (Kind.TEXT, 'a"b\\c\n\r\t\b\f\x01\x1f\x7f', '"a\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\\u001f\x7f"'),
    (Kind.TEXT, "größe 😀 \u2028", '"größe 😀 \u2028"'),
]

ARRAYS = [
    (Kind.NUMBER, ",", "{}", "[]"),
    (Kind.NUMBER, ",", "{1,NULL,-3}", "[1,null,-3]"),
    (Kind.NUMBER, ",", "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
    (Kind.NUMBER, ",", "[0:1]={7,8}", "[7,8]"),
    (Kind.NUMBER, ",", "[-1:0][2:3]={{1,2},{3,4}}", "[[1,2],[3,4]]"),
    (Kind.TEXT, ",", '{a,"b c","",NULL,"NULL",null}', '["a","b c","",null,"NULL","null"]'),
    (Kind.TEXT, ",", '{"q\\"x","back\\\\slash","{,}","\n"}', '["q\\"x","back\\\\slash","{,}","\\n"]'),
    (Kind.TEXT, ";", "{(1,1),(0,0);(2,2),(1,1)}", '["(1,1),(0,0)","(2,2),(1,1)"]'),
    (Kind.BOOL, ",", "{t,f,NULL}", "[true,false,null]"),
    (Kind.FLOAT, ",", "{1.5,NaN,-Infinity}", '[1.5,"NaN","-Infinity"]'),
    (Kind.JSON, ",", '{"{\\"a\\": [1, 2]}",1}', '[{"a": [1, 2]},1]'),
    (Kind.BYTES, ",", '{"\\\\x00ff","\\\\x"}', '["AP8=",""]'),
    (Kind.TIMESTAMPTZ, ",", '{"2020-01-01 00:00:00+00",infinity}', '["2020-01-01T00:00:00.000000Z","infinity"]'),
    (Kind.TIMETZ, ",", "{00:00:00+00}", '["00:00:00.000000+00:00"]'),
]


@pytest.mark.parametrize(("kind", "text", "expected"), SCALARS)
def test_scalars(kind: Kind, text: str, expected: str) -> None:
    assert mapped(text, kind) == expected
    json.loads(expected)


@pytest.mark.parametrize(("element", "delimiter", "text", "expected"), ARRAYS)
def test_arrays(element: Kind, delimiter: str, text: str, expected: str) -> None:
    assert mapped(text, Kind.ARRAY, element, delimiter) == expected
    json.loads(expected)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_any_text_is_a_json_string(text: str) -> None:
    assert json.loads(mapped(text, Kind.TEXT)) == text


@given(st.binary(max_size=100))
def test_any_bytes_are_base64(data: bytes) -> None:
    assert mapped("\\x" + data.hex(), Kind.BYTES) == array_json(f'{{"\\\\x{data.hex()}"}}', Kind.BYTES, ",")[1:-1]


@pytest.mark.parametrize(
    ("element", "piece"),
    [
        (Kind.TIMETZ, "00:00:00+00"),
        (Kind.TIMESTAMPTZ, '"2020-01-01 00:00:00+00"'),
        (Kind.BOOL, "t"),
        (Kind.TEXT, "\x01"),
        (Kind.TEXT, '"\\"\\""'),
        (Kind.TEXT, "a"),
        (Kind.TEXT, '""'),
        (Kind.NUMBER, "NULL"),
        (Kind.BYTES, '"\\\\x"'),
    ],
)
@pytest.mark.parametrize("count", [1, 10, 5000])
def test_the_room_for_an_array_suffices_however_it_grows(element: Kind, piece: str, count: int) -> None:
    text = "{" + ",".join([piece] * count) + "}"
    assert mapped(text, Kind.ARRAY, element) == array_json(text, element, ",")


@pytest.mark.parametrize("text", ['"' * 5000, "\x01" * 5000, "\\" * 4097, "," * 5000, "é" * 5000])
def test_the_room_for_a_long_text_suffices(text: str) -> None:
    assert json.loads(mapped(text, Kind.TEXT)) == text
