"""The replication protocol's messages that Python reads or writes itself. Pure: bytes in, values out."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from dataclasses import dataclass

EPOCH_S = 946_684_800


@dataclass(frozen=True)
class Keepalive:
    wal_end: int
    reply: bool


@dataclass(frozen=True)
class RelationColumn:
    """A column of a relation; `number` is the catalog's, which the stream does not tell."""

    name: str
    type_oid: int
    type_modifier: int
    identity: bool
    number: int = 0


@dataclass(frozen=True)
class Relation:
    """A table as pgoutput announces it. `identity`: d(efault), n(othing), f(ull), i(ndex)."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Truncate:
    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool

    def headers(self) -> dict[str, str]:
        """What a change tells of it."""
        return {"cascade": str(self.cascade).lower(), "restart_identity": str(self.restart_identity).lower()}


@dataclass(frozen=True)
class Message:
    """A `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


def keepalive(data: memoryview) -> Keepalive:
    _, wal_end, _, reply = struct.unpack_from("!cQQB", data)
    return Keepalive(wal_end, bool(reply))


def status_update(written: int, flushed: int, clock: float) -> bytes:
    """The standby's answer: `flushed` is what the server may forget (Law 1)."""
    micros = int((clock - EPOCH_S) * 1e6)
    return struct.pack("!cQQQQB", b"r", written, flushed, flushed, micros, 0)


def relation(data: bytes) -> Relation:
    oid = _int(data, 1, 4)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    identity, count = chr(data[at]), _int(data, at + 1, 2)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        name, at = _text(data, at + 1)
        type_oid, modifier = struct.unpack_from("!Ii", data, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def truncate(data: bytes) -> Truncate:
    count, options = _int(data, 1, 4), data[5]
    oids = struct.unpack_from(f"!{count}I", data, 6)
    return Truncate(tuple(oids), bool(options & 1), bool(options & 2))


def message(data: bytes) -> Message:
    flags, lsn = data[1], _int(data, 2, 8)
    prefix, at = _text(data, 10)
    size = _int(data, at, 4)
    return Message(bool(flags & 1), lsn, prefix, bytes(data[at + 4 : at + 4 + size]))


def origin(data: bytes) -> str:
    return _text(data, 9)[0]


def message_text(content: bytes) -> str:
    """A logical message's content as a row image: a JSON object as it is, anything else in one field."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return json.dumps({"content_base64": base64.b64encode(content).decode()})
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(json.loads(text, parse_constant=_refuse), dict):
            return text.replace("\n", " ").replace("\r", " ").strip()
    return json.dumps({"content": text}, ensure_ascii=False)


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def _refuse(constant: str) -> None:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(constant)


def _int(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
