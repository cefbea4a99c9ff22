"""The schema registry: every version of every captured table, where in the log it begins, and when that was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tailrace.control.store import Store
from tailrace.schema import TableSchema

_COLUMNS = "content, fingerprint, position, log_offset, at_us"


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
            connection.execute(
                sa.text("DELETE FROM schema_versions WHERE source = :source AND log_id <> :log_id"),
                {"source": source, "log_id": log_id},
            )
            if rows:
                connection.execute(sa.text(_INSERT), rows)

    def known(self, source: str, log_id: str) -> frozenset[int]:
        """The ids that are entered."""
        query = "SELECT version FROM schema_versions WHERE source = :source AND log_id = :log_id"
        return frozenset(row[0] for row in self._select(query, source=source, log_id=log_id))

    def sources(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self._select("SELECT DISTINCT source FROM schema_versions ORDER BY 1"))

    def versions(self, source: str) -> tuple[SchemaVersion, ...]:
        """Every version of every table, tables in order of their names, each one's oldest version first."""
        query = (
            f"SELECT {_COLUMNS} FROM schema_versions WHERE source = :source ORDER BY schema_name, table_name, version"
        )
        return tuple(_version(*row) for row in self._select(query, source=source))

    def valid_at(self, source: str, schema: str, table: str, offset: int) -> SchemaVersion | None:
        """The version that a change at `offset` of the log was decoded with."""
        query = (
            f"SELECT {_COLUMNS} FROM schema_versions WHERE source = :source AND schema_name = :schema "
            "AND table_name = :table AND log_offset <= :offset ORDER BY version DESC LIMIT 1"
        )
        found = self._select(query, source=source, schema=schema, table=table, offset=offset)
        return _version(*found[0]) if found else None

    def _select(self, query: str, **parameters: Any) -> list[Any]:
        with self._store.transaction() as connection:
            return list(connection.execute(sa.text(query), parameters))


_INSERT = """
INSERT INTO schema_versions VALUES
    (:source, :log_id, :version, :schema, :table, :content, :fingerprint, :position, :log_offset, :at_us)
ON CONFLICT DO NOTHING
"""


def _row(source: str, log_id: str, version: SchemaVersion) -> dict[str, Any]:
    schema = version.schema
    return {
        "source": source,
        "log_id": log_id,
        "version": schema.id,
        "schema": schema.schema,
        "table": schema.table,
        "content": json.dumps(schema.as_dict()),
        "fingerprint": version.fingerprint,
        "position": version.position,
        "log_offset": version.log_offset,
        "at_us": version.at_us,
    }


def _version(content: str, fingerprint: str, position: str, log_offset: int, at_us: int) -> SchemaVersion:
    return SchemaVersion(TableSchema.from_dict(json.loads(content)), fingerprint, position, log_offset, at_us)
