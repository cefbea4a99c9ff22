"""The relations a stream has announced, as the arrays the kernel reads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tailrace.capture.postgres.buffers import Tables
from tailrace.capture.postgres.json_text import JsonKind
from tailrace.capture.postgres.messages import Relation
from tailrace.capture.postgres.numbers import DROPPED, Attribute, Told, numbers_of
from tailrace.kinds import OTHER, Kind
from tailrace.schema import Column, SchemaBook, TableSchema

KINDS = {
    16: JsonKind.BOOL,
    17: JsonKind.BYTES,
    20: JsonKind.NUMBER,
    21: JsonKind.NUMBER,
    23: JsonKind.NUMBER,
    26: JsonKind.NUMBER,
    114: JsonKind.JSON,
    700: JsonKind.FLOAT,
    701: JsonKind.FLOAT,
    1083: JsonKind.TIME,
    1114: JsonKind.TIMESTAMP,
    1184: JsonKind.TIMESTAMPTZ,
    1266: JsonKind.TIMETZ,
    3802: JsonKind.JSON,
}
"""Built-in types by oid; every other scalar is its text."""


@dataclass(frozen=True)
class TypeInfo:
    """What the catalog says of a type: its spelling, the oid behind a domain, an array's element, its kind."""

    name: str
    oid: int
    element: int
    delimiter: str
    kind: Kind = OTHER


class Catalog(Protocol):
    """What the stream asks the database beside the stream."""

    def type_info(self, oid: int, modifier: int) -> TypeInfo: ...

    def primary_key(self, oid: int) -> tuple[str, ...]: ...

    def attributes(self, oid: int) -> tuple[Attribute, ...]: ...


@dataclass(frozen=True)
class _KnownRelation:
    relation: Relation
    schema: TableSchema
    types: tuple[TypeInfo, ...]
    wanted: bool


class Relations:
    """Keeps the newest announcement of each table; `arrays` is what the decoders get."""

    def __init__(self, database: str, book: SchemaBook, catalog: Catalog, wanted: Callable[[str, str], bool]) -> None:
        self._database = database
        self._book = book
        self._catalog = catalog
        self._wanted = wanted
        self._entries: dict[int, _KnownRelation] = {}
        self._heard: dict[int, Relation] = {}
        self.doubtful: list[tuple[str, str]] = []
        """Tables of which a message may have meant other columns than it was taken for. Whoever has them read anew
        takes the entry out."""
        self._truncates: dict[tuple[str, str], set[int]] = {}
        self._build()

    def hear(self, relation: Relation) -> None:
        """Keep a relation message until a row needs it: a partition is announced with its root and has none."""
        self._heard[relation.oid] = relation
        if self._entries.pop(relation.oid, None) is not None:
            self._build()

    def heard(self, oid: int) -> Relation | None:
        """The message kept for a row that needs it now."""
        return self._heard.pop(oid, None)

    def announce(self, relation: Relation, since: str = "", xid: int = 0) -> TableSchema | None:
        """Take a relation message that came in the transaction `xid`; returns the table's schema where the table is
        captured."""
        types = tuple(self._catalog.type_info(column.type_oid, column.type_modifier) for column in relation.columns)
        schema = self.describe(relation, since)
        wanted = self._wanted(relation.schema, relation.table)
        if wanted:
            schema = self._book.enter(self._numbered(schema, relation, xid))
        self._entries[relation.oid] = _KnownRelation(relation, schema, types, wanted)
        self._build()
        return schema if wanted else None

    def describe(self, relation: Relation, since: str = "") -> TableSchema:
        """The version that a relation message stands for; it has no id yet, and the numbers that the message has."""
        types = [self._catalog.type_info(each.type_oid, each.type_modifier) for each in relation.columns]
        columns = tuple(
            Column(each.name, info.name, number=each.number, kind=info.kind)
            for each, info in zip(relation.columns, types, strict=True)
        )
        key = self._key(relation)
        return TableSchema(-1, self._database, relation.schema, relation.table, columns, key, relation.oid, since)

    def enter(self, schema: TableSchema) -> TableSchema:
        """`schema`, which has its columns' numbers, as the book has it."""
        return self._book.enter(_as_in_catalog(schema, self._catalog.attributes(schema.relation)))

    def _numbered(self, schema: TableSchema, relation: Relation, xid: int) -> TableSchema:
        """`schema` with the numbers of its columns. A type that is gone is spelled as the log knows it."""
        known = self.newest(schema.schema, schema.table)
        before = known.columns if known is not None and known.relation == schema.relation else ()
        told = Told(relation.columns, [column.type for column in schema.columns], xid)
        attributes = self._catalog.attributes(relation.oid)
        found = numbers_of(told, before, attributes)
        if not found.sure:
            self.doubtful.append((schema.schema, schema.table))
        known_types = {column.number: column for column in before if column.number}
        numbered = (replace(column, number=n) for column, n in zip(schema.columns, found.each, strict=True))
        columns = tuple(_typed(column, known_types.get(column.number)) for column in numbered)
        return _as_in_catalog(replace(schema, columns=columns), attributes)

    def drop(self, known: TableSchema, since: str) -> TableSchema:
        """The version of a table that is gone."""
        return self._book.enter(replace(known, columns=(), key=(), since=since))

    def newest(self, schema: str, table: str) -> TableSchema | None:
        """The version the log met last."""
        return self._book.newest(schema, table)

    def tables(self) -> tuple[TableSchema, ...]:
        """The newest version of each captured table the log knows."""
        return tuple(each for each in self._book.tables() if each.schema and self._wanted(each.schema, each.table))

    def knows(self, oid: int) -> bool:
        """Whether the kernel has this relation."""
        return oid in self._entries

    def get(self, oid: int) -> TableSchema | None:
        """The schema of a captured table."""
        entry = self._entries.get(oid)
        return entry.schema if entry and entry.wanted else None

    def hear_truncate(self, table: TableSchema, xid: int) -> None:
        """The stream has a truncate of the whole table, in this transaction."""
        self._truncates.setdefault((table.schema, table.table), set()).add(xid)

    def truncates(self, before: int) -> dict[tuple[str, str], frozenset[int]]:
        """The transactions with truncates of each table. Those that began before the transaction `before` are told for
        the last time."""
        found = {name: frozenset(xids) for name, xids in self._truncates.items()}
        later = {name: {xid for xid in xids if not _is_older(xid, before)} for name, xids in found.items()}
        self._truncates = {name: xids for name, xids in later.items() if xids}
        return found

    def message_schema(self, prefix: str) -> TableSchema:
        """Logical messages travel as changes of a table named by their prefix."""
        return self._book.enter(TableSchema(-1, self._database, "", prefix, (), ()))

    def _key(self, relation: Relation) -> tuple[str, ...]:
        """The primary key under DEFAULT and FULL, the index's columns under USING INDEX; never a part of a key."""
        if relation.identity == "f":
            key = self._catalog.primary_key(relation.oid)
            return key if set(key) <= {column.name for column in relation.columns} else ()
        return tuple(column.name for column in relation.columns if column.identity)

    def _build(self) -> None:
        rel: list[tuple[int, ...]] = []
        cols: list[tuple[int, ...]] = []
        names = bytearray()
        for oid in sorted(self._entries):
            entry = self._entries[oid]
            schema = entry.schema
            rel.append((oid, len(cols), len(schema.columns), schema.id, table_seed(schema), not entry.wanted))
            for column, kind in zip(entry.relation.columns, entry.types, strict=True):
                name = json.dumps(column.name, ensure_ascii=False).encode()
                flags = (column.identity, column.name in schema.key)
                cols.append((*kinds_of(kind), *flags, len(names), len(name)))
                names += name
        nothing = [(-1, 0, 0, 0, 0, 1)]
        self.arrays = Tables(
            np.array(rel or nothing, dtype=np.int64).reshape(-1, 6),
            np.array(cols, dtype=np.int64).reshape(-1, 7),
            np.frombuffer(bytes(names) or b" ", dtype=np.uint8),
        )


def _typed(column: Column, known: Column | None) -> Column:
    """`column`, with the type that the log knows where its own is gone."""
    return column if known is None or column.type != DROPPED else replace(column, type=known.type, kind=known.kind)


def _as_in_catalog(schema: TableSchema, attributes: tuple[Attribute, ...]) -> TableSchema:
    """With what the catalog says of columns now, which may be ahead of the stream."""
    known = {each.number: each for each in attributes}
    return replace(schema, columns=tuple(_described(column, known.get(column.number)) for column in schema.columns))


def _described(column: Column, now: Attribute | None) -> Column:
    if now is None:
        return replace(column, nullable=True)
    return replace(
        column, nullable=not now.required, default=now.default, primary=now.primary, labels=tuple(now.labels)
    )


def _is_older(xid: int, other: int) -> bool:
    """Transactions of the stream have 32 bits, and begin anew."""
    return (xid - other) % (1 << 32) >= 1 << 31


def table_seed(schema: TableSchema) -> int:
    """Where the lane hash of a table's keys starts: part of the log's format."""
    return zlib.crc32(f"{schema.schema}.{schema.table}".encode()) | (0x9E37 << 32)


def kinds_of(info: TypeInfo) -> tuple[int, int, int]:
    """(kind, element kind, delimiter) for the kernel."""
    if info.element:
        return JsonKind.ARRAY, KINDS.get(info.element, JsonKind.TEXT), ord(info.delimiter)
    return KINDS.get(info.oid, JsonKind.TEXT), JsonKind.TEXT, ord(",")
