"""pgoutput messages built by hand, as the server sends them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import Enum


class Same(Enum):
    """An unchanged TOAST value, which the server leaves out."""

    SAME = "u"


SAME = Same.SAME
Value = bytes | None | Same
ColumnSpec = tuple[str, int, bool]
"""(name, type oid, part of the replica identity)"""


def begin(lsn: int, ts: int, xid: int) -> bytes:
    """`ts`: microseconds since 2000."""
    return b"B" + struct.pack("!QqI", lsn, ts, xid)


def commit(lsn: int, end: int, ts: int) -> bytes:
    return b"C\0" + struct.pack("!QQq", lsn, end, ts)


def relation(oid: int, schema: str, table: str, identity: str, columns: Sequence[ColumnSpec]) -> bytes:
    head = b"R" + struct.pack("!I", oid) + _text(schema) + _text(table) + identity.encode()
    specs = (bytes([flag]) + _text(name) + struct.pack("!Ii", kind, -1) for name, kind, flag in columns)
    return head + struct.pack("!H", len(columns)) + b"".join(specs)


def insert(oid: int, new: Sequence[Value]) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + row(new)


def update(oid: int, new: Sequence[Value], old: Sequence[Value] | None = None, kind: str = "K") -> bytes:
    before = b"" if old is None else kind.encode() + row(old)
    return b"U" + struct.pack("!I", oid) + before + b"N" + row(new)


def delete(oid: int, old: Sequence[Value], kind: str = "K") -> bytes:
    return b"D" + struct.pack("!I", oid) + kind.encode() + row(old)


def truncate(oids: Sequence[int], *, cascade: bool = False, restart: bool = False) -> bytes:
    return b"T" + struct.pack(f"!IB{len(oids)}I", len(oids), cascade | restart << 1, *oids)


def message(prefix: str, content: bytes, lsn: int, *, transactional: bool = True) -> bytes:
    head = b"M" + struct.pack("!BQ", transactional, lsn) + _text(prefix)
    return head + struct.pack("!I", len(content)) + content


def origin(name: str, lsn: int = 0) -> bytes:
    return b"O" + struct.pack("!Q", lsn) + _text(name)


def type_name(oid: int, schema: str, name: str) -> bytes:
    return b"Y" + struct.pack("!I", oid) + _text(schema) + _text(name)


def row(values: Sequence[Value]) -> bytes:
    return struct.pack("!H", len(values)) + b"".join(map(_value, values))


def copy_data(messages: Iterable[bytes]) -> tuple[bytearray, array[int]]:
    """The messages as `ReplicationStream.read` hands them over: (bytes, where each ends)."""
    data, ends = bytearray(), array("q")
    for each in messages:
        data += b"w" + struct.pack("!QQq", 1, 2, 3) + each
        ends.append(len(data))
    return data, ends


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Same):
        return b"u"
    return b"t" + struct.pack("!I", len(value)) + value


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
