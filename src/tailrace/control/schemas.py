"""The schema registry: every version of every captured table, where in the log it begins, and when that was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tailrace.control.store import Store
from tailrace.control.tables import schema_versions
from tailrace.control.upsert import insert_missing
from tailrace.schema import TableSchema

_AT = schema_versions.c
_SELECT = sa.select(_AT.content, _AT.fingerprint, _AT.position, _AT.log_offset, _AT.at_us)


@dataclass(frozen=True)
class SchemaVersion:
    """A version and where it begins: at a position of the source, and at or after an offset of the log."""

    schema: TableSchema
    fingerprint: str
    position: str
    log_offset: int
    at_us: int


class SchemaRegistry:
    """An index of what a source's log says; entering the same again changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def enter(self, source: str, log_id: str, versions: Iterable[SchemaVersion]) -> None:
        """Add versions; those of another log of the source, which this one replaced, go."""
        rows = [_row(source, log_id, version) for version in versions]
        with self._store.transaction() as connection:
            connection.execute(sa.delete(schema_versions).where(_AT.source == source, _AT.log_id != log_id))
            insert_missing(connection, schema_versions, rows)

    def known(self, source: str, log_id: str) -> frozenset[int]:
        """The ids that are entered."""
        query = sa.select(_AT.version).where(_AT.source == source, _AT.log_id == log_id)
        return frozenset(row.version for row in self._rows(query))

    def sources(self) -> tuple[str, ...]:
        return tuple(row.source for row in self._rows(sa.select(_AT.source).distinct().order_by(_AT.source)))

    def versions(self, source: str) -> tuple[SchemaVersion, ...]:
        """Every version of every table, tables in order of their names, each one's oldest version first."""
        of_source = _SELECT.where(_AT.source == source)
        found = self._rows(of_source.order_by(_AT.schema_name, _AT.table_name, _AT.version))
        return tuple(_version(*row) for row in found)

    def valid_at(self, source: str, schema: str, table: str, offset: int) -> SchemaVersion | None:
        """The version that a change at `offset` of the log was decoded with."""
        of_table = _SELECT.where(_AT.source == source, _AT.schema_name == schema, _AT.table_name == table)
        before = of_table.where(_AT.log_offset <= offset)
        found = self._rows(before.order_by(_AT.version.desc()).limit(1))
        return _version(*found[0]) if found else None

    def _rows(self, query: sa.Select[Any]) -> list[Any]:
        with self._store.transaction() as connection:
            return list(connection.execute(query))


def _row(source: str, log_id: str, version: SchemaVersion) -> dict[str, Any]:
    schema = version.schema
    return {
        "source": source,
        "log_id": log_id,
        "version": schema.id,
        "schema_name": schema.schema,
        "table_name": schema.table,
        "content": json.dumps(schema.as_dict()),
        "fingerprint": version.fingerprint,
        "position": version.position,
        "log_offset": version.log_offset,
        "at_us": version.at_us,
    }


def _version(content: str, fingerprint: str, position: str, log_offset: int, at_us: int) -> SchemaVersion:
    return SchemaVersion(TableSchema.from_dict(json.loads(content)), fingerprint, position, log_offset, at_us)
