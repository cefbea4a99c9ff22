"""The shape of a table at a position: what a change was decoded with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column as the source declares it; `type` is the database's own spelling."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's columns and key. `id` is the log's; equal content keeps its id across restarts."""

    id: int
    database: str
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything but the id."""
        content = asdict(replace(self, id=0))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TableSchema:
        columns = tuple(Column(**column) for column in data["columns"])
        return cls(**{**data, "columns": columns, "key": tuple(data["key"])})


class SchemaBook:
    """The table versions a log knows; hands out the id of an equal version, or the next one."""

    def __init__(self, known: tuple[TableSchema, ...] = ()) -> None:
        self._by_print = {schema.fingerprint: schema for schema in known}
        self._next = max((schema.id for schema in known), default=-1) + 1

    @property
    def versions(self) -> tuple[TableSchema, ...]:
        """Every version, oldest first."""
        return tuple(self._by_print.values())

    def ids(self, schema: str, table: str) -> frozenset[int]:
        """The ids of all versions of a table."""
        return frozenset(each.id for each in self.versions if (each.schema, each.table) == (schema, table))

    def enter(self, schema: TableSchema) -> TableSchema:
        """`schema` with its id: the known one where the content is equal, a fresh one otherwise."""
        found = self._by_print.get(schema.fingerprint)
        if found is not None:
            return found
        numbered = replace(schema, id=self._next)
        self._next += 1
        self._by_print[numbered.fingerprint] = numbered
        return numbered
