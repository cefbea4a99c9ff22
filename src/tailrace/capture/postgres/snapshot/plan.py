"""Cutting a table into ranges of its key. Keys are compared in the database only: collations are its business."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq, sql
from psycopg.rows import TupleRow

from tailrace.capture.postgres.catalog import PostgresCatalog, Table
from tailrace.capture.postgres.connection import quote_identifier
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.setup import matching_tables
from tailrace.capture.postgres.snapshot.describe import Described, KeyColumn
from tailrace.contracts import Extent
from tailrace.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource


_ESTIMATE = """
SELECT coalesce(sum(CASE WHEN c.reltuples > 0 THEN c.reltuples::int8 END), 0)::int8
FROM pg_class c WHERE c.relkind = 'r' AND c.oid IN (
    SELECT %s::regclass UNION SELECT relid FROM pg_partition_tree(%s::regclass))
"""

_READABLE = """
SELECT has_table_privilege(oid, 'SELECT'), CASE relkind WHEN 'p' THEN '' ELSE 'ONLY' END
FROM pg_class WHERE oid = %s::regclass
"""


def tables(source: PostgresSource) -> list[tuple[str, str, int | None]]:
    """(schema, table, estimated rows or None) of every table that is captured."""
    with closing(PostgresCatalog(source.conninfo())) as catalog:
        found = matching_tables(catalog, TablePatterns(source.tables), source.publication_name)
        estimates = (catalog.rows(_ESTIMATE, _quoted(table), _quoted(table))[0][0] for table in found)
        return [(table.schema, table.table, estimate or None) for table, estimate in zip(found, estimates, strict=True)]


def any_rows(source: PostgresSource) -> bool:
    """Whether a captured table that may be read has rows."""
    with closing(PostgresCatalog(source.conninfo())) as catalog:
        for table in matching_tables(catalog, TablePatterns(source.tables), source.publication_name):
            [(readable, only)] = catalog.rows(_READABLE, _quoted(table))
            name = sql.Identifier(table.schema, table.table)
            if readable and catalog.rows(sql.SQL("SELECT FROM {} {} LIMIT 1").format(sql.SQL(only), name)):
                return True
    return False


def plan(
    connection: psycopg.Connection[TupleRow], table: Described, after: Extent | None, size: int, count: int
) -> list[Extent]:
    """Up to `count` ranges of `size` rows after `after`; a range without an end is the last. It has few rows, those
    with keys above what this look at the table could see: a row may be there and in the log already. Raises
    `source.key_changed` where `after` is of another key."""
    check_order(table, after)
    if not table.key:
        return [Extent(whole=True)]
    low = after.high if after is not None else None
    found = connection.execute(_boundaries(table, low, size, count)).fetchall()
    highs = [tuple(str(value) for value in row) for row in found]
    order = table.order
    extents = [Extent(low=before, high=high, order=order) for before, high in zip([low, *highs], highs, strict=False)]
    return extents if len(extents) == count else [*extents, Extent(low=highs[-1] if highs else low, order=order)]


def check_order(table: Described, extent: Extent | None) -> None:
    """Raise `source.key_changed` where the bounds or keys of an extent are not those of the table's key."""
    if extent is None:
        return
    names = {column.name for column in table.key}
    if extent.order in ("", table.order) and all(set(json.loads(key)) == names for key in extent.keys):
        return
    name = f"{table.relation.schema}.{table.relation.table}"
    raise SourceError(
        "source.key_changed",
        f"the key of {name} has changed since its snapshot was planned",
        hint="its snapshot is planned anew; one of single rows has to be asked for again",
        where=name,
    )


def explain(connection: psycopg.Connection[TupleRow], table: Described, condition: str) -> None:
    """Raise `snapshot.filter` where the database does not take the condition."""
    query = sql.SQL("EXPLAIN SELECT FROM {} WHERE ({})").format(table.rows, _raw(condition))
    result = connection.pgconn.exec_params(query.as_bytes(connection), [])  # never more than one statement
    if result.status == pq.ExecStatus.TUPLES_OK:
        return
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
    raise ConfigError(
        "snapshot.filter",
        f"not a condition on {table.relation.schema}.{table.relation.table}: {message}",
        hint="write it as after WHERE, over the table's own columns",
    )


def range_condition(table: Described, extent: Extent) -> sql.Composable:
    """What a chunk's rows fulfil, row filter included."""
    check_order(table, extent)
    parts: list[sql.Composable] = []
    if extent.low is not None:
        parts.append(_compare(table.key, ">", extent.low))
    if extent.high is not None:
        parts.append(_compare(table.key, "<=", extent.high))
    if extent.keys:
        keys = [_key_values(table, json.loads(key)) for key in extent.keys]
        listed = sql.SQL(", ").join(_row(table.key, values) for values in keys)
        parts.append(sql.SQL("{} IN ({})").format(_names(table.key), listed))
    parts += [sql.SQL("({})").format(_raw(each)) for each in (table.row_filter, extent.filter) if each]
    return sql.SQL(" AND ").join(parts) if parts else sql.SQL("true")


def _quoted(table: Table) -> str:
    return f"{quote_identifier(table.schema)}.{quote_identifier(table.table)}"


def _boundaries(table: Described, low: tuple[str, ...] | None, size: int, count: int) -> sql.Composed:
    """Every `size`-th key, and the last one. One pass over the key's index."""
    where = _compare(table.key, ">", low) if low is not None else sql.SQL("true")
    order = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.key)
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in table.key)
    return sql.SQL(
        'SELECT {texts} FROM (SELECT {order}, row_number() OVER w AS "#", lead(true) OVER w IS NULL AS "#last" '
        "FROM (SELECT {order} FROM {table} WHERE {where} ORDER BY {order} LIMIT {limit}) AS part "
        'WINDOW w AS (ORDER BY {order})) AS numbered WHERE "#" % {size} = 0 OR "#last" ORDER BY "#"'
    ).format(texts=texts, order=order, table=table.rows, where=where, limit=size * count, size=size)


def _compare(key: tuple[KeyColumn, ...], operator: str, values: tuple[str, ...]) -> sql.Composed:
    return sql.SQL("{} {} {}").format(_names(key), sql.SQL(operator), _row(key, values))


def _names(key: tuple[KeyColumn, ...]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier(column.name) for column in key))


def _row(key: tuple[KeyColumn, ...], values: tuple[str, ...]) -> sql.Composed:
    typed = (
        sql.SQL("{}::{}").format(sql.Literal(value), _raw(column.type))
        for column, value in zip(key, values, strict=True)
    )
    return sql.SQL("({})").format(sql.SQL(", ").join(typed))


def _raw(text: str) -> sql.SQL:
    """SQL that the server itself spelled, or that its owner wrote for it."""
    return sql.SQL(text)


def _key_values(table: Described, key: dict[str, Any]) -> tuple[str, ...]:
    """A key of the log as texts the database reads back."""
    return tuple(_text(key[column.name], column.type) for column in table.key)


def _text(value: Any, kind: str) -> str:
    if isinstance(value, list):
        return _array(value, kind.removesuffix("[]"))
    if kind == "bytea":
        return "\\x" + base64.b64decode(value).hex()
    if isinstance(value, str) and kind not in ("json", "jsonb"):
        return value
    return json.dumps(value, ensure_ascii=False)


def _array(items: list[Any], kind: str) -> str:
    return "{" + ",".join(_element(item, kind) for item in items) + "}"


def _element(item: Any, kind: str) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return _array(item, kind)
    escaped = _text(item, kind).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
