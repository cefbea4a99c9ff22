"""Random pgoutput streams, and the decoder run on them without a server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.numbers import Attribute
from tailrace.capture.postgres.relations import Relations, TypeInfo
from tailrace.capture.postgres.rows import DecodedRows
from tailrace.capture.postgres.setup import ServerIdentity
from tailrace.capture.postgres.stream import PostgresStream
from tailrace.change import LANES, OPS
from tailrace.contracts import Capture, Frame
from tailrace.schema import SchemaBook
from tests.capture.postgres import wire
from tests.capture.postgres.reference import Reference, Table
from tests.capture.postgres.wire import SAME, Value

ALPHABET = "ab\"\\{},; \n\r\t\x01\x1f'é😀€NULL"


def text(chance: random.Random) -> str:
    return "".join(chance.choices(ALPHABET, k=chance.choice([0, 1, 5, 40])))


def moment(chance: random.Random, zone: str) -> str:
    if chance.random() < 0.1:
        return chance.choice(["infinity", "-infinity", f"0044-03-15 10:00:00{zone} BC"])
    fraction = "." + "".join(chance.choices("0123456789", k=chance.randint(1, 6)))
    return f"20{chance.randint(10, 99)}-01-02 03:04:05{chance.choice(['', fraction])}{zone}"


def array(chance: random.Random, element: Callable[[random.Random], str], delimiter: str) -> str:
    def quoted(each: str) -> str:
        escaped = each.replace("\\", "\\\\").replace('"', '\\"')
        return chance.choice(["NULL", f'"{escaped}"'])

    def level(depth: int) -> str:
        items = [level(depth - 1) if depth else quoted(element(chance)) for _ in range(chance.randint(0, 3))]
        return "{" + delimiter.join(items) + "}"

    return chance.choice(["", "[0:3]="]) + level(chance.randint(0, 2))


Make = Callable[[random.Random], str]
TYPES: dict[int, tuple[TypeInfo, Make]] = {
    20: (TypeInfo("bigint", 20, 0, ","), lambda chance: str(chance.randint(-(2**63), 2**63 - 1))),
    25: (TypeInfo("text", 25, 0, ","), text),
    701: (TypeInfo("double precision", 701, 0, ","), lambda c: c.choice(["1.5", "-2e-10", "NaN", "-Infinity"])),
    16: (TypeInfo("boolean", 16, 0, ","), lambda chance: chance.choice("tf")),
    3802: (TypeInfo("jsonb", 3802, 0, ","), lambda chance: json.dumps({"k": text(chance)}, indent=1)),
    17: (TypeInfo("bytea", 17, 0, ","), lambda chance: "\\x" + chance.randbytes(chance.randint(0, 9)).hex()),
    1114: (TypeInfo("timestamp", 1114, 0, ","), lambda chance: moment(chance, "")),
    1184: (TypeInfo("timestamptz", 1184, 0, ","), lambda chance: moment(chance, "+00")),
    1266: (TypeInfo("timetz", 1266, 0, ","), lambda chance: chance.choice(["12:00:01+02", "00:00:00.5-03:30"])),
    1009: (TypeInfo("text[]", 1009, 25, ","), lambda chance: array(chance, text, ",")),
    1016: (TypeInfo("bigint[]", 1016, 20, ","), lambda c: array(c, lambda c: str(c.randint(-9, 9)), ",")),
    1020: (TypeInfo("box[]", 1020, 603, ";"), lambda c: array(c, lambda c: "(1,1),(0,0)", ";")),
    90001: (TypeInfo("mood", 90001, 0, ","), lambda chance: chance.choice(["sad", "ok"])),
}
PRIMARY_KEYS: dict[int, tuple[str, ...]] = {}


class FixedCatalog:
    """The catalog look-ups of a stream, answered from the tables above."""

    def type_info(self, oid: int, modifier: int) -> TypeInfo:
        return TYPES[oid][0]

    def primary_key(self, oid: int) -> tuple[str, ...]:
        return PRIMARY_KEYS[oid]

    def attributes(self, oid: int) -> tuple[Attribute, ...]:
        return ()


@dataclass
class Script:
    """Writes random transactions, always of relations it has announced."""

    chance: random.Random
    messages: list[bytes] = field(default_factory=list)
    tables: dict[int, tuple[str, Table]] = field(default_factory=dict)
    lsn: int = 1000

    def transaction(self, changes: int) -> None:
        lsn, ts = self._next(), self.chance.randint(0, 10**15)
        self.messages.append(wire.begin(lsn, ts, self.chance.randint(1, 2**32 - 1)))
        if self.chance.random() < 0.2:
            self.messages.append(wire.origin('elsewhere "1"'))
        for _ in range(changes):
            self._change()
        self.messages.append(wire.commit(lsn, self._next(), ts))

    def _next(self) -> int:
        self.lsn += self.chance.randint(1, 10**6)
        return self.lsn

    def _change(self) -> None:
        if not self.tables or self.chance.random() < 0.1:
            self._announce()
        oid = self.chance.choice(list(self.tables))
        identity, table = self.tables[oid]
        dice = self.chance.random()
        if dice < 0.02:
            self.messages.append(wire.truncate([oid], cascade=dice < 0.01, restart=dice < 0.005))
        elif dice < 0.04:
            self.messages.append(wire.message("note", text(self.chance).encode(), self.lsn))
        elif dice < 0.45:
            self.messages.append(wire.insert(oid, self._values(table)))
        elif dice < 0.8:
            self.messages.append(self._update(oid, identity, table))
        elif identity != "n":
            self.messages.append(self._delete(oid, identity, table))

    def _announce(self) -> None:
        oid = self.chance.randint(16_384, 16_390)
        identity = self.chance.choice("ddfin")
        names = self.chance.sample(["id", "ключ", 'quo"te', "a", "b", "c", "d", "e"], self.chance.randint(1, 8))
        key = {name for name in names if self.chance.random() < 0.4} if identity != "n" else set()
        PRIMARY_KEYS[oid] = tuple(key)
        kinds = [self.chance.choice(list(TYPES)) for _ in names]
        columns = [(n, kind, identity == "f" or n in key) for n, kind in zip(names, kinds, strict=True)]
        if not key and identity != "f":
            identity = "n"
        name = f"t{oid}_{len(self.messages)}"  # another name is another table: a new version would be a change
        self.tables[oid] = (identity, Table(name, columns, key))
        self.messages.append(wire.type_name(90001, "public", "mood"))
        self.messages.append(wire.relation(oid, "public", name, identity, columns))

    def _values(self, table: Table) -> list[Value]:
        return [self._value(kind, nullable=name not in table.key) for name, kind, _ in table.columns]

    def _value(self, kind: int, *, nullable: bool) -> Value:
        if nullable and self.chance.random() < 0.15:
            return None
        return TYPES[kind][1](self.chance).encode()

    def _update(self, oid: int, identity: str, table: Table) -> bytes:
        new = self._values(table)
        old = self._values(table) if self.chance.random() < 0.5 else list(new)
        with_old = identity == "f" or (identity != "n" and self.chance.random() < 0.5)
        for place, (name, _, _) in enumerate(table.columns):
            if self.chance.random() < 0.2 and (with_old or name not in table.key):
                new[place] = SAME
        if not with_old:
            return wire.update(oid, new)
        return wire.update(oid, new, self._old(table, old, identity), "O" if identity == "f" else "K")

    def _delete(self, oid: int, identity: str, table: Table) -> bytes:
        old = self._old(table, self._values(table), identity)
        return wire.delete(oid, old, "O" if identity == "f" else "K")

    @staticmethod
    def _old(table: Table, values: list[Value], identity: str) -> list[Value]:
        """The server sends an old key as a row whose other columns are null."""
        return [
            value if identity == "f" or flag else None
            for value, (_, _, flag) in zip(values, table.columns, strict=True)
        ]


def offline(arena_bytes: int) -> PostgresStream:
    """An open source without a connection: what it decodes comes from the test."""
    source = PostgresSource.model_validate({"id": "s", "dsn": "postgresql://nowhere/db", "tables": ["*"]})
    stream = PostgresStream(source, 1, 0.0)
    stream._rows = DecodedRows(arena_bytes)
    stream._server = ServerIdentity("1", "1", "db", 0)
    stream._catalog = FixedCatalog()  # type: ignore[assignment]
    stream._relations = Relations("db", SchemaBook(), FixedCatalog(), lambda schema, table: True)
    return stream


def decoded(stream: PostgresStream, messages: Iterable[bytes], chunk: int) -> list[Capture]:
    """The captures of the messages, read `chunk` at a time."""
    each, captures = list(messages), []
    for start in range(0, len(each), chunk):
        captures += list(stream._decode(*wire.copy_data(each[start : start + chunk])))
    return captures + list(stream._finished())


def expected(messages: Iterable[bytes]) -> list[dict[str, Any]]:
    reference = Reference({oid: info for oid, (info, _) in TYPES.items()}, PRIMARY_KEYS)
    for message in messages:
        reference.feed(message)
    return reference.rows


def rows_of(captures: list[Capture]) -> list[dict[str, Any]]:
    """The rows of captures in source order, in the reference's shape; checks what a frame promises."""
    names = {schema.id: schema.table for capture in captures for schema in capture.schemas}
    found: list[dict[str, Any]] = []
    open_part = False
    for capture in captures:
        for row in [] if capture.frame is None else _frame_rows(capture.frame, open_part):
            row["table"] = names[row.pop("schema_id")]
            found.append(row)
        open_part = capture.resume is None
    assert not open_part, "the last transaction has no end"
    return found


def _frame_rows(frame: Frame, continues: bool) -> Iterator[dict[str, Any]]:
    frame.rows.validate(full=True)
    rows, txs = frame.rows.to_pylist(), frame.txs.to_pylist()
    assert len(frame.lanes) == LANES + 1
    assert frame.lanes[-1] == len(rows)
    for lane in range(LANES):
        places = [row["row"] for row in rows[frame.lanes[lane] : frame.lanes[lane + 1]]]
        assert places == sorted(places)
    for number, tx in enumerate(txs):
        members = [row for row in rows if row["tx"] == number]
        if members and tx["end_row"] >= 0:
            assert tx["end_row"] == max(row["row"] for row in members) + 1
        first = min(members, key=lambda row: row["row"], default=None)
        if first is not None and not (continues and number == 0):
            assert first["ordinal"] == 0
    for row in sorted(rows, key=lambda row: row["row"]):
        tx = txs[row["tx"]]
        high, low = tx["position"].split("/")
        yield {
            "op": OPS[row["op"]],
            "schema_id": row["schema_id"],
            "ordinal": row["ordinal"],
            "xid": int(tx["tx_id"]),
            "lsn": (int(high, 16) << 32) | int(low, 16),
            "ts_us": tx["ts_us"],
            **{name: row[name] for name in ("key", "before", "after", "unchanged")},
            "headers": None if row["headers"] is None else json.loads(row["headers"]),
        }
