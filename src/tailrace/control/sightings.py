"""What a tap last saw of its tables in the database's catalog: how it finds what happened while it was down."""

from __future__ import annotations

import sqlalchemy as sa

from tailrace.control.store import Store
from tailrace.control.tables import catalog_sightings

Name = tuple[str, str]
_SEEN = catalog_sightings.c


class Sightings:
    """The sightings of one source: (schema, table) → a text only the source reads. `aspect` says of what, where it is
    not of the tables themselves."""

    def __init__(self, store: Store, source: str, aspect: str = "") -> None:
        self._store, self._source = store, f"{source}/{aspect}" if aspect else source  # no source's id has a slash

    def load(self) -> dict[Name, str]:
        of_source = sa.select(_SEEN.schema_name, _SEEN.table_name, _SEEN.seen).where(_SEEN.source == self._source)
        with self._store.transaction() as connection:
            return {(schema, table): seen for schema, table, seen in connection.execute(of_source)}

    def replace(self, sightings: dict[Name, str]) -> None:
        """These and no others."""
        rows = [
            {"source": self._source, "schema_name": schema, "table_name": table, "seen": seen}
            for (schema, table), seen in sightings.items()
        ]
        with self._store.transaction() as connection:
            connection.execute(sa.delete(catalog_sightings).where(_SEEN.source == self._source))
            if rows:
                connection.execute(sa.insert(catalog_sightings), rows)
