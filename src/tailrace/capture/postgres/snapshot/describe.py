"""A table as a snapshot reads it: the columns the stream publishes, its key, the publication's row filter."""

from __future__ import annotations

import json
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from tailrace.capture.postgres.catalog import GENERATED_PUBLISHED
from tailrace.capture.postgres.messages import Relation, RelationColumn
from tailrace.errors import SourceError


@dataclass(frozen=True)
class KeyColumn:
    """A column of the key, in the index's order; `type` is as a cast spells it, `collation` the catalog's number."""

    name: str
    type: str
    collation: int


@dataclass(frozen=True)
class Described:
    """What is read of a table. `relation` is what the stream would announce."""

    relation: Relation
    key: tuple[KeyColumn, ...]
    row_filter: str | None
    partitioned: bool

    @property
    def rows(self) -> sql.Composed:
        """What stands behind FROM: the rows that the stream names by this table. Those of tables that inherit from it
        are changes of their own tables; those of partitions are its own."""
        name = sql.Identifier(self.relation.schema, self.relation.table)
        return sql.SQL("{}" if self.partitioned else "ONLY {}").format(name)

    @property
    def order(self) -> str:
        """What the table's keys are and how they are compared, as `Extent.order` has it."""
        return json.dumps([[column.name, column.type, column.collation] for column in self.key])

    @property
    def columns(self) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier(column.name) for column in self.relation.columns)


_RELATION = """
SELECT c.oid, c.relreplident::text, i.indkey::int2[], c.relkind = 'p'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate AND CASE c.relreplident
    WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""

_PUBLISHED = """
SELECT attnames::text[], rowfilter FROM pg_publication_tables
WHERE pubname = ANY (%s) AND schemaname = %s AND tablename = %s
"""

_COLUMNS = """
SELECT attnum, attname, atttypid, atttypmod, format_type(atttypid, -1), attgenerated = '', attcollation::int8
FROM pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped
AND (attgenerated = '' OR attgenerated = 's' AND current_setting('server_version_num')::int >= %s) ORDER BY attnum
"""
"""Before 18 a publication lists generated columns that it never sends."""


def describe(
    connection: psycopg.Connection[TupleRow], schema: str, table: str, publications: tuple[str, ...]
) -> Described:
    """The table as this connection's transaction sees it. One without columns has nothing to read."""
    found = connection.execute(_RELATION, (schema, table)).fetchall()
    if not found:
        raise table_missing(schema, table)
    [(oid, identity, index, partitioned)] = found
    published, row_filter = _published(connection, schema, table, publications)
    columns = connection.execute(_COLUMNS, (oid, GENERATED_PUBLISHED)).fetchall()
    kept = [row for row in columns if (row[1] in published if published is not None else row[5])]
    if not kept:
        raise SourceError(
            "source.table_missing",
            f"the table {schema}.{table} has no columns",
            hint="the snapshot goes on without it; it is read when it has some",
            where=f"{schema}.{table}",
        )
    key = tuple(index or ())
    relation = Relation(oid, schema, table, identity, tuple(_column(row, identity, key) for row in kept))
    spelled = {row[0]: KeyColumn(row[1], row[4], row[6]) for row in columns}
    return Described(relation, tuple(spelled[number] for number in key), row_filter, partitioned)


def table_missing(schema: str, table: str) -> SourceError:
    return SourceError(
        "source.table_missing",
        f"the table {schema}.{table} is gone",
        hint="it was dropped or renamed: the snapshot goes on without it",
        where=f"{schema}.{table}",
    )


def _column(row: TupleRow, identity: str, key: tuple[int, ...]) -> RelationColumn:
    number, name, oid, modifier, *_ = row
    # Under FULL the server flags every column; the key is then the primary key's columns.
    return RelationColumn(name, oid, modifier, identity == "f" or number in key, number)


def _published(
    connection: psycopg.Connection[TupleRow], schema: str, table: str, publications: tuple[str, ...]
) -> tuple[set[str] | None, str | None]:
    """(names of the published columns or None for all, row filter). A table in two publications is published as
    far as either has it."""
    found = connection.execute(_PUBLISHED, (list(publications), schema, table)).fetchall()
    if not found:
        return None, None
    filters = [row_filter for _, row_filter in found]
    names = {name for attnames, _ in found for name in attnames or ()}
    return names, None if None in filters else " OR ".join(f"({each})" for each in filters)
