"""Inserts that meet a row which is there already. The one place that knows how each database says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_missing(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert `rows`; where the primary key is taken, what is there stays."""
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), rows)


def put(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Insert `row`, in place of the one with the same primary key."""
    insert = _insert(connection, table)
    others = {column.name: insert.excluded[column.name] for column in table.columns if not column.primary_key}
    connection.execute(insert.on_conflict_do_update(index_elements=table.primary_key, set_=others), row)


def _insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
