"""What a tap last saw of its tables in the database's catalog: how it finds what happened while it was down."""

from __future__ import annotations

import sqlalchemy as sa

from tailrace.control.store import Store

Name = tuple[str, str]


class Sightings:
    """The sightings of one source: (schema, table) → a text only the source reads."""

    def __init__(self, store: Store, source: str) -> None:
        self._store, self._source = store, source

    def load(self) -> dict[Name, str]:
        query = sa.text("SELECT schema_name, table_name, seen FROM catalog_sightings WHERE source = :source")
        with self._store.transaction() as connection:
            return {
                (schema, table): seen for schema, table, seen in connection.execute(query, {"source": self._source})
            }

    def replace(self, sightings: dict[Name, str]) -> None:
        """These and no others."""
        rows = [
            {"source": self._source, "schema": schema, "table": table, "seen": seen}
            for (schema, table), seen in sightings.items()
        ]
        with self._store.transaction() as connection:
            connection.execute(
                sa.text("DELETE FROM catalog_sightings WHERE source = :source"), {"source": self._source}
            )
            if rows:
                connection.execute(
                    sa.text("INSERT INTO catalog_sightings VALUES (:source, :schema, :table, :seen)"), rows
                )
