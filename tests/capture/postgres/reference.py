"""A slow, obvious pgoutput decoder: what the compiled one must agree with, text for text."""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from tailrace.capture.postgres.json_text import JsonKind
from tailrace.capture.postgres.relations import KINDS, TypeInfo
from tests.capture.postgres.wire import SAME, ColumnSpec, Value

EPOCH_US = 946_684_800_000_000


@dataclass
class Table:
    """What the decoder knows of a relation: its columns, their types and its key."""

    name: str
    columns: list[ColumnSpec]
    key: set[str]


@dataclass
class Reference:
    """Feed it messages; `rows` are the changes of finished transactions, `open` those of the running one."""

    types: dict[int, TypeInfo]
    primary_keys: dict[int, tuple[str, ...]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    open: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[int, Table] = field(default_factory=dict)
    transaction: dict[str, Any] = field(default_factory=dict)
    origin: str | None = None

    def feed(self, message: bytes) -> None:
        match chr(message[0]):
            case "B":
                lsn, ts, xid = struct.unpack("!QqI", message[1:])
                self.transaction, self.origin = {"xid": xid, "lsn": lsn, "ts_us": ts + EPOCH_US}, None
            case "C":
                self.rows, self.open = self.rows + self.open, []
            case "R":
                self._relation(message)
            case "O":
                self.origin = _text(message, 9)[0]
            case "T":
                self._truncate(message)
            case "M":
                self._message(message)
            case "Y":
                pass
            case kind:
                self._change(kind, message)

    def _relation(self, message: bytes) -> None:
        (oid,) = struct.unpack_from("!I", message, 1)
        _, at = _text(message, 5)
        name, at = _text(message, at)
        identity, (count,) = chr(message[at]), struct.unpack_from("!H", message, at + 1)
        at += 3
        columns: list[ColumnSpec] = []
        for _ in range(count):
            flag = bool(message[at])
            column, at = _text(message, at + 1)
            columns.append((column, struct.unpack_from("!I", message, at)[0], flag))
            at += 8
        key = {name for name, _, flag in columns if flag}
        if identity == "f":
            primary = set(self.primary_keys[oid])
            key = primary if primary <= {name for name, _, _ in columns} else set()
        self.tables[oid] = Table(name, columns, key)

    def _truncate(self, message: bytes) -> None:
        count, options = struct.unpack_from("!IB", message, 1)
        headers = {"cascade": str(bool(options & 1)).lower(), "restart_identity": str(bool(options & 2)).lower()}
        for oid in struct.unpack_from(f"!{count}I", message, 6):
            self._add("t", self.tables[oid].name, headers=headers)

    def _message(self, message: bytes) -> None:
        prefix, at = _text(message, 10)
        self._add("m", prefix, after=json.dumps({"content": message[at + 4 :].decode()}, ensure_ascii=False))

    def _change(self, kind: str, message: bytes) -> None:
        (oid,) = struct.unpack_from("!I", message, 1)
        table, at, old, old_kind = self.tables[oid], 5, None, ""
        if kind in "UD" and chr(message[at]) in "KO":
            old_kind = chr(message[at])
            old, at = _tuple(message, at + 1)
        if kind == "D":
            self._row("d", table, table.key, old, None, old_kind)
            return
        new, _ = _tuple(message, at + 1)
        if kind == "I":
            self._row("c", table, table.key, None, new, "")
            return
        new = [self._filled(n, o, c, old_kind) for n, o, c in zip(new, old or new, table.columns, strict=True)]
        old_key, new_key = self._object(table, old, table.key), self._object(table, new, table.key)
        if old is None or _key_values(table, old) == _key_values(table, new):
            self._row("u", table, table.key, old, new, old_kind)
            return
        self._row("d", table, table.key, old, None, old_kind, {"new_key": new_key})
        self._row("c", table, table.key, None, new, "", {"old_key": old_key})

    @staticmethod
    def _filled(new: Value, old: Value, column: ColumnSpec, old_kind: str) -> Value:
        known = old_kind == "O" or (old_kind == "K" and column[2])
        return old if new is SAME and known else new

    def _row(
        self,
        op: str,
        table: Table,
        key: set[str],
        old: list[Value] | None,
        new: list[Value] | None,
        old_kind: str,
        headers: dict[str, Any] | None = None,
    ) -> None:
        identity = {name for name, _, flag in table.columns if flag}
        before = self._object(table, old, None if old_kind == "O" else identity) if old else None
        same = [name for (name, _, _), value in zip(table.columns, new or (), strict=False) if value is SAME]
        self._add(
            op,
            table.name,
            key=self._object(table, new if new is not None else old, key),
            before=before if op == "d" or old_kind == "O" else None,
            after=self._object(table, new, None) if new is not None else None,
            unchanged=_json(same) if same else None,
            headers=headers,
        )

    def _add(self, op: str, table: str, headers: dict[str, Any] | None = None, **texts: str | None) -> None:
        headers = {**(headers or {}), **({"origin": self.origin} if self.origin is not None else {})}
        empty = {"key": None, "before": None, "after": None, "unchanged": None}
        row = {"op": op, "table": table, "ordinal": len(self.open), **self.transaction, **empty, **texts}
        self.open.append({**row, "headers": headers or None})

    def _object(self, table: Table, values: list[Value] | None, only: set[str] | None) -> str | None:
        parts = [
            f"{_json(name)}:{self._value(oid, value)}"
            for (name, oid, _), value in zip(table.columns, values or (), strict=False)
            if value is not SAME and (only is None or name in only)
        ]
        return "{" + ",".join(parts) + "}" if parts else None

    def _value(self, oid: int, value: Value) -> str:
        if not isinstance(value, bytes):
            return "null"
        info, text = self.types[oid], value.decode()
        if info.element:
            return array_json(text, KINDS.get(info.element, JsonKind.TEXT), info.delimiter)
        return scalar_json(text, KINDS.get(info.oid, JsonKind.TEXT))


def scalar_json(text: str, kind: JsonKind) -> str:
    match kind:
        case JsonKind.NUMBER:
            return text
        case JsonKind.FLOAT:
            return _json(text) if text in ("NaN", "Infinity", "-Infinity") else text
        case JsonKind.BOOL:
            return {"t": "true", "f": "false"}[text]
        case JsonKind.JSON:
            return re.sub(r"[\r\n]", " ", text)
        case JsonKind.BYTES:
            return _json(base64.b64encode(bytes.fromhex(text[2:])).decode())
        case JsonKind.TIMESTAMP | JsonKind.TIMESTAMPTZ | JsonKind.TIME | JsonKind.TIMETZ:
            return _json(_iso(text, kind))
        case _:
            return _json(text)


def array_json(text: str, element: JsonKind, delimiter: str) -> str:
    """Tokens of an array literal, each turned on its own."""
    body = text[text.index("{") :]
    token = re.compile(r'[{}]|"((?:[^"\\]|\\.)*)"|[^{}"' + re.escape(delimiter) + "]+|" + re.escape(delimiter), re.S)
    out = []
    for found in token.finditer(body):
        whole, quoted = found.group(), found.group(1)
        if quoted is not None:
            out.append(scalar_json(re.sub(r"\\(.)", r"\1", quoted, flags=re.S), element))
        elif whole in ("{", "}", delimiter):
            out.append({"{": "[", "}": "]"}.get(whole, ","))
        else:
            out.append("null" if whole == "NULL" else scalar_json(whole, element))
    return "".join(out)


def _iso(text: str, kind: JsonKind) -> str:
    found = re.fullmatch(r"((?:\d+-\d\d-\d\d )?\d\d:\d\d:\d\d)(?:\.(\d+))?([+-][\d:]+)?", text)
    if found is None:
        return text
    moment, fraction, zone = found.group(1).replace(" ", "T"), (found.group(2) or "").ljust(6, "0"), found.group(3)
    if kind is JsonKind.TIMESTAMPTZ:
        zone = "Z"
    elif kind is JsonKind.TIMETZ and re.fullmatch(r"[+-]\d\d", zone):
        zone += ":00"
    return f"{moment}.{fraction}{zone or ''}"


def _key_values(table: Table, values: list[Value]) -> list[Value]:
    return [value for (name, _, _), value in zip(table.columns, values, strict=True) if name in table.key]


def _tuple(message: bytes, at: int) -> tuple[list[Value], int]:
    (count,) = struct.unpack_from("!H", message, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        tag, at = chr(message[at]), at + 1
        if tag == "t":
            (size,) = struct.unpack_from("!I", message, at)
            values.append(message[at + 4 : at + 4 + size])
            at += 4 + size
        else:
            values.append(None if tag == "n" else SAME)
    return values, at


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
