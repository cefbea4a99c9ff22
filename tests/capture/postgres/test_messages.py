"""Replication messages, byte by byte."""

from __future__ import annotations

import pytest

from tailrace.capture.postgres import messages
from tailrace.capture.postgres.messages import Keepalive, Message, Relation, RelationColumn, Truncate, message_text


def test_keepalive() -> None:
    data = bytes.fromhex("6b 0000000102030405 0002c3d4e5f60718 01")
    assert messages.keepalive(memoryview(data)) == Keepalive(0x0102030405, True)
    assert messages.keepalive(memoryview(data[:-1] + b"\0")).reply is False


def test_status_update_tells_what_is_durable() -> None:
    data = messages.status_update(0x10, 0x0F, 946_684_801.5)
    assert data == bytes.fromhex("72 0000000000000010 000000000000000f 000000000000000f 000000000016e360 00")


def test_relation() -> None:
    data = (
        bytes.fromhex("52 00004002")
        + b"public\0items\0d"
        + bytes.fromhex("0002")
        + b"\x01id\0"
        + bytes.fromhex("00000014 ffffffff")
        + "\0größe\0".encode()
        + bytes.fromhex("00000413 00000024")
    )
    columns = (RelationColumn("id", 20, -1, True), RelationColumn("größe", 1043, 36, False))
    assert messages.relation(data) == Relation(0x4002, "public", "items", "d", columns)


def test_a_relation_without_a_schema_is_in_pg_catalog() -> None:
    assert messages.relation(b"R\0\0\0\1\0t\0n\0\0").schema == "pg_catalog"


def test_truncate() -> None:
    data = bytes.fromhex("54 00000002 03 00000001 00000002")
    assert messages.truncate(data) == Truncate((1, 2), cascade=True, restart_identity=True)


def test_logical_message() -> None:
    data = bytes.fromhex("4d 01 0000000000000010") + b"note\0" + bytes.fromhex("00000003") + b"abcTRAILING"
    assert messages.message(data) == Message(True, 16, "note", b"abc")


def test_origin() -> None:
    assert messages.origin(b"O" + bytes(8) + b"elsewhere\0") == "elsewhere"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0/0"), (0x16B374D848, "16/B374D848"), (2**64 - 1, "FFFFFFFF/FFFFFFFF")]
)
def test_positions(number: int, text: str) -> None:
    assert messages.lsn_text(number) == text
    assert messages.lsn_number(text) == number


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"a": 1}', '{"a": 1}'),
        (b' {"a":\n [1]}\r\n', '{"a":  [1]}'),
        (b"[1]", '{"content": "[1]"}'),
        (b"hey", '{"content": "hey"}'),
        (b"", '{"content": ""}'),
        (b'{"a": NaN}', '{"content": "{\\"a\\": NaN}"}'),
        (b"\xff\x00", '{"content_base64": "/wA="}'),
    ],
)
def test_the_image_of_a_logical_message_is_a_json_object(content: bytes, text: str) -> None:
    assert message_text(content) == text


def test_a_message_too_deep_to_parse_is_text() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert message_text(deep).startswith('{"content": "{')
