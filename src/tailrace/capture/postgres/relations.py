"""The relations a stream has announced, as the arrays the kernel reads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tailrace.capture.postgres.json_text import Kind
from tailrace.capture.postgres.messages import Relation
from tailrace.schema import Column, SchemaBook, TableSchema

KINDS = {
    16: Kind.BOOL,
    17: Kind.BYTES,
    20: Kind.NUMBER,
    21: Kind.NUMBER,
    23: Kind.NUMBER,
    26: Kind.NUMBER,
    114: Kind.JSON,
    700: Kind.FLOAT,
    701: Kind.FLOAT,
    1083: Kind.TIME,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
    1266: Kind.TIMETZ,
    3802: Kind.JSON,
}
"""Built-in types by oid; every other scalar is its text."""


@dataclass(frozen=True)
class TypeInfo:
    """What the catalog says of a type: its spelling, the oid behind a domain, an array's element."""

    name: str
    oid: int
    element: int
    delimiter: str


class Catalog(Protocol):
    """What the stream asks the database beside the stream."""

    def type_info(self, oid: int, modifier: int) -> TypeInfo: ...

    def primary_key(self, oid: int) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class _Entry:
    relation: Relation
    schema: TableSchema
    types: tuple[TypeInfo, ...]
    wanted: bool


class Relations:
    """Keeps the newest announcement of each table; `arrays` is what the kernel gets."""

    def __init__(self, database: str, book: SchemaBook, catalog: Catalog, wanted: Callable[[str, str], bool]) -> None:
        self._database = database
        self._book = book
        self._catalog = catalog
        self._wanted = wanted
        self._entries: dict[int, _Entry] = {}
        self._build()

    def announce(self, relation: Relation) -> TableSchema | None:
        """Take a relation message; returns the table's schema where the table is captured."""
        types = tuple(self._catalog.type_info(column.type_oid, column.type_modifier) for column in relation.columns)
        key = self._key(relation)
        columns = tuple(Column(c.name, t.name) for c, t in zip(relation.columns, types, strict=True))
        schema = TableSchema(-1, self._database, relation.schema, relation.table, columns, key)
        wanted = self._wanted(relation.schema, relation.table)
        self._entries[relation.oid] = _Entry(relation, self._book.enter(schema) if wanted else schema, types, wanted)
        self._build()
        return self._entries[relation.oid].schema if wanted else None

    def get(self, oid: int) -> TableSchema | None:
        """The schema of a captured table."""
        entry = self._entries.get(oid)
        return entry.schema if entry and entry.wanted else None

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
                cols.append((*_kinds(kind), *flags, len(names), len(name)))
                names += name
        self.rel = np.array(rel, dtype=np.int64).reshape(-1, 6)
        self.cols = np.array(cols, dtype=np.int64).reshape(-1, 7)
        self.names = np.frombuffer(bytes(names) or b" ", dtype=np.uint8)
        if not len(self.rel):
            self.rel = np.array([[-1, 0, 0, 0, 0, 1]], dtype=np.int64)


def table_seed(schema: TableSchema) -> int:
    """Where the lane hash of a table's keys starts: part of the log's format."""
    return zlib.crc32(f"{schema.schema}.{schema.table}".encode()) | (0x9E37 << 32)


def _kinds(info: TypeInfo) -> tuple[int, int, int]:
    """(kind, element kind, delimiter) for the kernel."""
    if info.element:
        return Kind.ARRAY, KINDS.get(info.element, Kind.TEXT), ord(info.delimiter)
    return KINDS.get(info.oid, Kind.TEXT), Kind.TEXT, ord(",")
