"""What each database says its own way: inserts that meet a row which is there already, and what a text may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert


def insert_missing(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert `rows`; where the primary key is taken, what is there stays."""
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), rows)


def put(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Insert `row`, in place of the one with the same primary key."""
    others = {column.name: row[column.name] for column in table.columns if not column.primary_key}
    connection.execute(insert_or(connection, table, row, others))


def insert_or(
    connection: sa.Connection,
    table: sa.Table,
    row: Mapping[str, Any],
    change: Mapping[str, Any],
    where: sa.ColumnElement[bool] | None = None,
) -> Insert:
    """The statement that inserts `row`; where the primary key is taken, it makes this `change` of what is there, if
    that fulfils `where`."""
    keys = list(table.primary_key)
    return _insert(connection, table).values(**row).on_conflict_do_update(index_elements=keys, set_=change, where=where)


def printable(message: str) -> str:
    """A message of somebody else's without what a database cannot keep in a text: the character U+0000, and halves of
    surrogate pairs."""
    return message.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


def _insert(connection: sa.Connection, table: sa.Table) -> Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
