"""The shape of a table at a position: what a change was decoded with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tailrace import spellings
from tailrace.kinds import OTHER, Kind


@dataclass(frozen=True)
class Column:
    """A column as the source declares it; `type` is the database's own spelling."""

    name: str
    type: str
    nullable: bool = field(default=True, compare=False)
    """Whether it could be null when the log met the version. That may change without a version: it is no promise."""
    number: int = field(default=0, compare=False)
    """Which column of the table it is, whatever its name; 0: the source did not say."""
    kind: Kind = field(default=OTHER, compare=False)
    """What its values are, whatever the database calls the type."""
    default: str | None = field(default=None, compare=False)
    """The expression of its default, as the database spells it: no promise either."""
    primary: int = field(default=0, compare=False)
    """Its place in the primary key as that was declared, from 1; 0: not in it, or the source did not say."""
    labels: tuple[str, ...] = field(default=(), compare=False)
    """Of an enum, or of an array of one: what a value can be."""


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's columns and key. `id` is the log's. A version without columns: the table was dropped."""

    id: int
    database: str
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    relation: int = field(default=0, compare=False)
    """Which table it is, whatever its name: one that was dropped and made anew is another. 0: unknown."""
    since: str = field(default="", compare=False)
    """The source position it was first met at; "" where that is only known to the line that brought it."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of names, columns and key."""
        columns = [{"name": c.name, "type": c.type, **_FINGERPRINTED} for c in self.columns]
        content = [self.database, self.schema, self.table, columns, list(self.key)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        return table_name(self.schema, self.table)

    def follows(self, known: TableSchema) -> bool:
        """Whether it is another version than `known`: other content, another table under the same name, or another
        column under the same name."""
        other = _differ(self.relation, known.relation)
        return other or self.fingerprint != known.fingerprint or self._has_other_columns(known)

    def _has_other_columns(self, known: TableSchema) -> bool:
        pairs = zip(self.columns, known.columns, strict=True)
        return any(_differ(mine.number, other.number) for mine, other in pairs)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "columns": [_as_dict(each) for each in self.columns]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TableSchema:
        columns = tuple(_column(column) for column in data["columns"])
        return cls(**{**data, "columns": columns, "key": tuple(data["key"])})


_FINGERPRINTED = {"nullable": True}
"""A member of every column in every fingerprint so far."""


_RARE = ("default", "primary", "labels")
"""What most columns do not have, and is left out then."""


def _as_dict(column: Column) -> dict[str, Any]:
    whole = {**asdict(column), "kind": str(column.kind), "labels": list(column.labels)}
    return {name: value for name, value in whole.items() if value or name not in _RARE}


def _column(data: dict[str, Any]) -> Column:
    kind = Kind.parse(data["kind"]) if "kind" in data else spellings.kind_of(data["type"])
    return Column(**{**data, "kind": kind, "labels": tuple(data.get("labels", ()))})


class SchemaBook:
    """The table versions a log knows. The newest of a table is the one its next changes have, unless they say else."""

    def __init__(self, known: tuple[TableSchema, ...] = ()) -> None:
        self._by_id: dict[int, TableSchema] = {}
        self._newest: dict[tuple[str, str], TableSchema] = {}
        for schema in sorted(known, key=lambda each: each.id):
            self._put(schema)

    @property
    def versions(self) -> tuple[TableSchema, ...]:
        """Every version, oldest first."""
        return tuple(self._by_id.values())

    def ids(self, schema: str, table: str) -> frozenset[int]:
        """The ids of all versions of a table."""
        return frozenset(each.id for each in self.versions if (each.schema, each.table) == (schema, table))

    def ids_with_key(self, like: TableSchema) -> frozenset[int]:
        """The ids of a table's versions that have the key of this one."""
        return frozenset(
            each.id
            for each in self.versions
            if (each.schema, each.table, each.key) == (like.schema, like.table, like.key)
        )

    def newest(self, schema: str, table: str) -> TableSchema | None:
        """The version of a table that the log met last."""
        return self._newest.get((schema, table))

    def tables(self) -> tuple[TableSchema, ...]:
        """The newest version of every table that was not dropped."""
        return tuple(each for each in self._newest.values() if each.columns)

    def enter(self, schema: TableSchema) -> TableSchema:
        """`schema` with its id: the table's newest version where it is that one, a fresh one otherwise.

        A table that goes back to what it once was gets a fresh id too: a version is also a place in the log.
        """
        known = self.newest(schema.schema, schema.table)
        if known is not None and known.database == schema.database and not schema.follows(known):
            return known
        return self._put(replace(schema, id=max(self._by_id, default=-1) + 1))

    def _put(self, schema: TableSchema) -> TableSchema:
        self._by_id[schema.id] = schema
        self._newest[schema.schema, schema.table] = schema
        return schema


Difference = dict[str, Any]
"""One step from a version to the next: `kind`, and what it concerns."""


def table_name(schema: str, table: str) -> str:
    """`schema.table`, different for different tables: a part with a dot or a quote in it stands in quotes."""
    return ".".join(_quoted(part) if set(part) & {".", '"'} else part for part in (schema, table))


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


def differences(before: TableSchema, after: TableSchema) -> list[Difference]:
    """What happened between two versions of a table, all of it at once: `a` and `b` that change places are two renames.

    Kinds: `create`, `drop_table`, `recreate`, `drop`, `rename`, `retype`, `add`, `key`. A column is known by its
    number; where numbers are missing, by its name, and a rename is a `drop` and an `add`.
    """
    if not after.columns:
        return [{"kind": "drop_table"}]
    if not before.columns:
        return [{"kind": "create"}]
    anew = _differ(after.relation, before.relation)
    pairs = [(_was(column, before, anew=anew), column) for column in after.columns]
    found: list[Difference] = [{"kind": "recreate"}] if anew else []
    found += _columns(before, pairs)
    now = {was.name: column.name for was, column in pairs if was is not None}
    if tuple(now.get(name) for name in before.key) != after.key:
        found.append({"kind": "key", "from": list(before.key), "to": list(after.key)})
    return found


def _differ(one: int, other: int) -> bool:
    """Whether two numbers are of two things; 0 is not known."""
    return one != other and 0 not in (one, other)


def _columns(before: TableSchema, pairs: list[tuple[Column | None, Column]]) -> list[Difference]:
    kept = {was.name for was, _ in pairs if was is not None}
    found: list[Difference] = [{"kind": "drop", "column": c.name} for c in before.columns if c.name not in kept]
    for was, column in pairs:
        if was is None:
            found.append({"kind": "add", "column": column.name, "type": column.type})
            continue
        if was.name != column.name:
            found.append({"kind": "rename", "from": was.name, "to": column.name})
        if was.type != column.type:
            found.append({"kind": "retype", "column": column.name, "from": was.type, "to": column.type})
    return found


def _was(column: Column, before: TableSchema, *, anew: bool) -> Column | None:
    """The same column in the version before: by its number, or by its name where a number is missing."""
    for each in before.columns:
        if not anew and column.number and each.number:
            if column.number == each.number:
                return each
        elif column.name == each.name:
            return each
    return None


def document(schema: TableSchema) -> dict[str, Any]:
    """A version as an `s` change carries it."""
    return {
        "version": schema.id,
        "columns": columns_document(schema),
        "key": list(schema.key),
        "fingerprint": schema.fingerprint,
    }


def columns_document(schema: TableSchema) -> list[dict[str, Any]]:
    """A version's columns as people see them."""
    return [{"name": c.name, "type": c.type, "kind": str(c.kind), "nullable": c.nullable} for c in schema.columns]
