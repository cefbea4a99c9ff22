"""The relations a stream has announced, as the arrays the kernel reads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tailrace.capture.postgres.buffers import Tables
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

DROPPED = "???"
"""How the database spells a type that is gone; what the log knows of the column is better."""


@dataclass(frozen=True)
class TypeInfo:
    """What the catalog says of a type: its spelling, the oid behind a domain, an array's element."""

    name: str
    oid: int
    element: int
    delimiter: str


@dataclass(frozen=True)
class Attribute:
    """A column as the catalog has it now, which may be later than where the stream is.

    `listed`: a publication says which of the table's columns it has. `missing`: the text of the value that rows from
    before the column have.
    """

    number: int
    name: str
    type_oid: int
    type_modifier: int
    dropped: bool
    generated: bool
    listed: bool
    missing: str | None


class Catalog(Protocol):
    """What the stream asks the database beside the stream."""

    def type_info(self, oid: int, modifier: int) -> TypeInfo: ...

    def primary_key(self, oid: int) -> tuple[str, ...]: ...

    def attributes(self, oid: int) -> tuple[Attribute, ...]: ...


@dataclass(frozen=True)
class _Entry:
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
        self._entries: dict[int, _Entry] = {}
        self._heard: dict[int, Relation] = {}
        self._build()

    def hear(self, relation: Relation) -> None:
        """Keep a relation message until a row needs it: a partition is announced with its root and has none."""
        self._heard[relation.oid] = relation
        if self._entries.pop(relation.oid, None) is not None:
            self._build()

    def heard(self, oid: int) -> Relation | None:
        """The message kept for a row that needs it now."""
        return self._heard.pop(oid, None)

    def announce(self, relation: Relation, since: str = "") -> TableSchema | None:
        """Take a relation message; returns the table's schema where the table is captured."""
        types = tuple(self._catalog.type_info(column.type_oid, column.type_modifier) for column in relation.columns)
        schema = self.describe(relation, since)
        wanted = self._wanted(relation.schema, relation.table)
        if wanted:
            schema = self.enter(schema, relation)
        self._entries[relation.oid] = _Entry(relation, schema, types, wanted)
        self._build()
        return schema if wanted else None

    def describe(self, relation: Relation, since: str = "") -> TableSchema:
        """The version that a relation message stands for; it has no id yet."""
        known = self.newest(relation.schema, relation.table)
        spelled = {column.name: column.type for column in known.columns} if known is not None else {}
        columns = []
        for column in relation.columns:
            name = self._catalog.type_info(column.type_oid, column.type_modifier).name
            columns.append(Column(column.name, spelled.get(column.name, name) if name == DROPPED else name))
        key = self._key(relation)
        return TableSchema(
            -1, self._database, relation.schema, relation.table, tuple(columns), key, relation.oid, since
        )

    def enter(self, schema: TableSchema, relation: Relation) -> TableSchema:
        """`schema` as the book has it; a version that is new there gets the numbers of its columns."""
        known = self.newest(schema.schema, schema.table)
        if known is None or schema.follows(known):
            there = self._catalog.attributes(relation.oid)
            found = numbered(schema, relation, there) or counted(schema, known, there)
            schema = found or inherited(schema, known)
        return self._book.enter(schema)

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


def numbered(schema: TableSchema, relation: Relation, attributes: tuple[Attribute, ...]) -> TableSchema | None:
    """`schema` with its columns' numbers, if the catalog still has the table exactly as it was described."""
    if all(column.number for column in relation.columns):
        told = (replace(c, number=r.number) for c, r in zip(schema.columns, relation.columns, strict=True))
        return replace(schema, columns=tuple(told))
    announced = {column.name for column in relation.columns}
    live = [each for each in attributes if not each.dropped]
    there = [each for each in live if each.name in announced or not (each.generated or each.listed)]
    if [(a.name, a.type_oid, a.type_modifier) for a in there] != [
        (c.name, c.type_oid, c.type_modifier) for c in relation.columns
    ]:
        return None
    columns = (replace(c, number=a.number) for c, a in zip(schema.columns, there, strict=True))
    return replace(schema, columns=tuple(columns))


def counted(schema: TableSchema, known: TableSchema | None, attributes: tuple[Attribute, ...]) -> TableSchema | None:
    """`schema` with its columns' numbers where the catalog is further than the stream, if only these are possible.

    Numbers are never given twice and stand for the order of columns. So the columns of `known` that are still there
    were there then, and only of those that came or went since may it be open which were: their count can tell.
    """
    had = (
        {column.number for column in known.columns} if known is not None and known.relation == schema.relation else {0}
    )
    if 0 in had or any(each.generated or each.listed for each in attributes):  # then some are not in the stream
        return None
    since = [each for each in attributes if each.number in had or each.number > max(had)]
    kept = [each.number for each in since if each.number in had and not each.dropped]
    others = [each for each in since if each.number not in kept]
    wanted = len(schema.columns) - len(kept)
    sure = wanted in (0, len(others)) or not any(each.dropped for each in others)  # new columns come one by one
    if not sure or not 0 <= wanted <= len(others):
        return None
    numbers = sorted([*kept, *(each.number for each in others[:wanted])])
    columns = (replace(column, number=number) for column, number in zip(schema.columns, numbers, strict=True))
    return replace(schema, columns=tuple(columns))


def inherited(schema: TableSchema, known: TableSchema | None) -> TableSchema:
    """`schema` with the numbers that its columns had in the version before, as far as their names and order tell.

    New columns come last in a table. Where one stands before an older name, that name may be another column by now.
    """
    if known is None or schema.relation != known.relation:
        return schema
    numbers = {column.name: column.number for column in known.columns}
    columns = tuple(replace(column, number=numbers.get(column.name, 0)) for column in schema.columns)
    places = [column.number for column in columns if column.name in numbers]
    fresh = [column.name in numbers for column in columns]
    in_order = places == sorted(places) and fresh == sorted(fresh, reverse=True)
    return replace(schema, columns=columns) if in_order else schema


def table_seed(schema: TableSchema) -> int:
    """Where the lane hash of a table's keys starts: part of the log's format."""
    return zlib.crc32(f"{schema.schema}.{schema.table}".encode()) | (0x9E37 << 32)


def kinds_of(info: TypeInfo) -> tuple[int, int, int]:
    """(kind, element kind, delimiter) for the kernel."""
    if info.element:
        return Kind.ARRAY, KINDS.get(info.element, Kind.TEXT), ord(info.delimiter)
    return KINDS.get(info.oid, Kind.TEXT), Kind.TEXT, ord(",")
