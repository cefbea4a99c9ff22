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
from tailrace.schema import Column, TableSchema

TABLE = TableSchema(3, "shop", "public", "größe\n", (Column("id", "bigint", False), Column("v", "text")), ("id",))
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
    assert manifest.decode(data[:-1]) == entry


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


def test_another_format_is_refused() -> None:
    body = json.dumps({"header": {"log_id": "a", "source": "b", "epoch": 1, "base": 0, "format": 99}}).encode()
    with pytest.raises(LogError) as caught:
        manifest.decode(b"%08x %s" % (zlib.crc32(body), body))
    assert caught.value.code == "log.format"
