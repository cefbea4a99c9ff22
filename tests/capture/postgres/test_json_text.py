"""Values: every kind of PostgreSQL text and the JSON it becomes, on its boundaries and against the reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.postgres.json_text import JsonKind, put_value, room
from tests.capture.postgres.reference import array_json

GUARD = 170


def mapped(text: str, kind: JsonKind, element: JsonKind = JsonKind.TEXT, delimiter: str = ",") -> str:
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
    (JsonKind.NUMBER, "-9223372036854775808", "-9223372036854775808"),
    (JsonKind.NUMBER, "0", "0"),
    (JsonKind.FLOAT, "1.5e+300", "1.5e+300"),
    (JsonKind.FLOAT, "-0", "-0"),
    (JsonKind.FLOAT, "NaN", '"NaN"'),
    (JsonKind.FLOAT, "Infinity", '"Infinity"'),
    (JsonKind.FLOAT, "-Infinity", '"-Infinity"'),
    (JsonKind.BOOL, "t", "true"),
    (JsonKind.BOOL, "f", "false"),
    (JsonKind.BYTES, "\\x", '""'),
    (JsonKind.BYTES, "\\x00", '"AA=="'),
    (JsonKind.BYTES, "\\x00ff", '"AP8="'),
    (JsonKind.BYTES, "\\x00ffAB", '"AP+r"'),
    (JsonKind.JSON, '{"b": 1,\n "b":\r\n[1.0, 2e5]}', '{"b": 1,  "b":  [1.0, 2e5]}'),
    (JsonKind.TIMESTAMP, "2020-01-02 03:04:05", '"2020-01-02T03:04:05.000000"'),
    (JsonKind.TIMESTAMP, "2020-01-02 03:04:05.1", '"2020-01-02T03:04:05.100000"'),
    (JsonKind.TIMESTAMP, "2020-01-02 03:04:05.123456", '"2020-01-02T03:04:05.123456"'),
    (JsonKind.TIMESTAMP, "294276-12-31 23:59:59.999999", '"294276-12-31T23:59:59.999999"'),
    (JsonKind.TIMESTAMP, "4713-01-01 00:00:00 BC", '"4713-01-01 00:00:00 BC"'),
    (JsonKind.TIMESTAMP, "infinity", '"infinity"'),
    (JsonKind.TIMESTAMP, "-infinity", '"-infinity"'),
    (JsonKind.TIMESTAMPTZ, "2020-01-02 03:04:05+00", '"2020-01-02T03:04:05.000000Z"'),
    (JsonKind.TIMESTAMPTZ, "2020-01-02 03:04:05.5+00", '"2020-01-02T03:04:05.500000Z"'),
    (JsonKind.TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC", '"0044-03-15 00:00:00+00 BC"'),
    (JsonKind.TIMESTAMPTZ, "infinity", '"infinity"'),
    (JsonKind.TIMESTAMPTZ, "-infinity", '"-infinity"'),
    (JsonKind.TIME, "24:00:00", '"24:00:00.000000"'),
    (JsonKind.TIME, "00:00:00.000001", '"00:00:00.000001"'),
    (JsonKind.TIMETZ, "12:00:01+02", '"12:00:01.000000+02:00"'),
    (JsonKind.TIMETZ, "12:00:01.25-03:30", '"12:00:01.250000-03:30"'),
    (JsonKind.TIMETZ, "12:00:01-00:19:32", '"12:00:01.000000-00:19:32"'),
    (JsonKind.TEXT, "", '""'),
    (JsonKind.TEXT, 'a"b\\c\n\r\t\b\f\x01\x1f\x7f', '"a\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\\u001f\x7f"'),
    (JsonKind.TEXT, "größe 😀 \u2028", '"größe 😀 \u2028"'),
]

ARRAYS = [
    (JsonKind.NUMBER, ",", "{}", "[]"),
    (JsonKind.NUMBER, ",", "{1,NULL,-3}", "[1,null,-3]"),
    (JsonKind.NUMBER, ",", "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
    (JsonKind.NUMBER, ",", "[0:1]={7,8}", "[7,8]"),
    (JsonKind.NUMBER, ",", "[-1:0][2:3]={{1,2},{3,4}}", "[[1,2],[3,4]]"),
    (JsonKind.TEXT, ",", '{a,"b c","",NULL,"NULL",null}', '["a","b c","",null,"NULL","null"]'),
    (JsonKind.TEXT, ",", '{"q\\"x","back\\\\slash","{,}","\n"}', '["q\\"x","back\\\\slash","{,}","\\n"]'),
    (JsonKind.TEXT, ";", "{(1,1),(0,0);(2,2),(1,1)}", '["(1,1),(0,0)","(2,2),(1,1)"]'),
    (JsonKind.BOOL, ",", "{t,f,NULL}", "[true,false,null]"),
    (JsonKind.FLOAT, ",", "{1.5,NaN,-Infinity}", '[1.5,"NaN","-Infinity"]'),
    (JsonKind.JSON, ",", '{"{\\"a\\": [1, 2]}",1}', '[{"a": [1, 2]},1]'),
    (JsonKind.BYTES, ",", '{"\\\\x00ff","\\\\x"}', '["AP8=",""]'),
    (JsonKind.TIMESTAMPTZ, ",", '{"2020-01-01 00:00:00+00",infinity}', '["2020-01-01T00:00:00.000000Z","infinity"]'),
    (JsonKind.TIMETZ, ",", "{00:00:00+00}", '["00:00:00.000000+00:00"]'),
]


@pytest.mark.parametrize(("kind", "text", "expected"), SCALARS)
def test_scalars(kind: JsonKind, text: str, expected: str) -> None:
    assert mapped(text, kind) == expected
    json.loads(expected)


@pytest.mark.parametrize(("element", "delimiter", "text", "expected"), ARRAYS)
def test_arrays(element: JsonKind, delimiter: str, text: str, expected: str) -> None:
    assert mapped(text, JsonKind.ARRAY, element, delimiter) == expected
    json.loads(expected)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_any_text_is_a_json_string(text: str) -> None:
    assert json.loads(mapped(text, JsonKind.TEXT)) == text


@given(st.binary(max_size=100))
def test_any_bytes_are_base64(data: bytes) -> None:
    assert (
        mapped("\\x" + data.hex(), JsonKind.BYTES) == array_json(f'{{"\\\\x{data.hex()}"}}', JsonKind.BYTES, ",")[1:-1]
    )


@pytest.mark.parametrize(
    ("element", "piece"),
    [
        (JsonKind.TIMETZ, "00:00:00+00"),
        (JsonKind.TIMESTAMPTZ, '"2020-01-01 00:00:00+00"'),
        (JsonKind.BOOL, "t"),
        (JsonKind.TEXT, "\x01"),
        (JsonKind.TEXT, '"\\"\\""'),
        (JsonKind.TEXT, "a"),
        (JsonKind.TEXT, '""'),
        (JsonKind.NUMBER, "NULL"),
        (JsonKind.BYTES, '"\\\\x"'),
    ],
)
@pytest.mark.parametrize("count", [1, 10, 5000])
def test_the_room_for_an_array_suffices_however_it_grows(element: JsonKind, piece: str, count: int) -> None:
    text = "{" + ",".join([piece] * count) + "}"
    assert mapped(text, JsonKind.ARRAY, element) == array_json(text, element, ",")


@pytest.mark.parametrize("text", ['"' * 5000, "\x01" * 5000, "\\" * 4097, "," * 5000, "é" * 5000])
def test_the_room_for_a_long_text_suffices(text: str) -> None:
    assert json.loads(mapped(text, JsonKind.TEXT)) == text
