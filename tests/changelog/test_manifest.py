"""Manifest lines: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.changelog import manifest
from tailrace.changelog.manifest import Claim, FrameRef, Header, Line
from tailrace.errors import LogError
from tailrace.kinds import Kind
from tailrace.schema import Column, TableSchema

COLUMNS = (
    Column("id", "bigint", False, 1, Kind("int64")),
    Column("v", "prices", kind=Kind.parse("array<decimal(9,2)>")),
)
TABLE = TableSchema(3, "shop", "public", "größe\n", COLUMNS, ("id",))
FRAME = FrameRef("segments/1.seg", 10, 20, 2**64 - 1, 0, 3, ((0, 1), (63, 2)))
ENTRIES = [
    Header("abc", "shop", 4, 1 << 40, {"lsn": "0/1"}, (TABLE,)),
    Header("abc", "shop", 1, 0),
    Claim(5),
    Line(1, 5, 0, 7, {"lsn": "0/2"}),
    Line(1, 5, 3, 7, {"lsn": "0/2"}, (FRAME,), (3, 4), (TABLE,), (8, 9), 2, True),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_round_trip(entry: manifest.Entry) -> None:
    data = manifest.encode(entry)
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    assert repr(manifest.decode(data[:-1])) == repr(entry)


@given(entry=st.sampled_from(ENTRIES), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(entry: manifest.Entry, place: int, bit: int) -> None:
    data = bytearray(manifest.encode(entry)[:-1])
    place %= len(data)
    data[place] ^= 1 << bit
    separator = 8
    assert manifest.decode(bytes(data)) is None or place == separator


@given(st.binary(max_size=200))
def test_other_bytes_are_no_entry(data: bytes) -> None:
    assert manifest.decode(data) is None


def test_lane_offsets() -> None:
    offsets = FRAME.lane_offsets()
    assert (len(offsets), offsets[0], offsets[1], offsets[63], offsets[64]) == (65, 0, 1, 1, 3)


def test_a_log_from_before_columns_had_kinds() -> None:
    fields = {"name": "n", "type": "numeric(9,2)[]", "nullable": True, "number": 1}
    schema = {"id": 3, "database": "shop", "schema": "public", "table": "t", "columns": [fields], "key": []}
    body = json.dumps(
        {"header": {"log_id": "a", "source": "b", "epoch": 1, "base": 0, "format": 1, "schemas": [schema]}}
    ).encode()
    found = manifest.decode(b"%08x %s" % (zlib.crc32(body), body))
    assert isinstance(found, Header)
    [column] = found.schemas[0].columns
    assert str(column.kind) == "array<decimal(9,2)>"


def test_another_format_is_refused() -> None:
    body = json.dumps({"header": {"log_id": "a", "source": "b", "epoch": 1, "base": 0, "format": 99}}).encode()
    with pytest.raises(LogError) as caught:
        manifest.decode(b"%08x %s" % (zlib.crc32(body), body))
    assert caught.value.code == "log.format"
