"""The proof: the files, folded by key, are the tables. PostgreSQL itself reads the rows back and compares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.json_members import split

CHUNK = 2_000

Row = dict[str, str]
"""Column name → its value as JSON text, exactly as it stands in the file."""


@dataclass(frozen=True)
class TableProof:
    """One table: its rows at the source, the changes in the files, and the rows in which the two differ."""

    table: str
    rows: int
    changes: int
    differing: int


def compare(dsn: str, files: Path, tables: Iterable[str]) -> list[TableProof]:
    """Fold what the files hold of each table, and compare the result with the table, row by row."""
    with psycopg.connect(dsn, autocommit=True) as connection, closing(PostgresCatalog(dsn)) as catalog:
        found = []
        for table in tables:
            [(oid,)] = catalog.rows("SELECT %s::regclass::oid", f"public.{table}")
            records = list(changes(files / f"public.{table}"))
            rows = fold(records, catalog.primary_key(oid))
            found.append(_compare(connection, table, len(records), rows.values()))
        return found


def changes(directory: Path) -> Iterator[Row]:
    """The records of a table's JSON-lines files, in the order of delivery."""
    for file in sorted(directory.glob("*/*.jsonl"), key=lambda file: file.name):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield split(line)


def fold(records: Iterable[Row], key: tuple[str, ...]) -> dict[tuple[str, ...], Row]:
    """The rows that exist after all changes. A value that was not sent is the one the row had before."""
    rows: dict[tuple[str, ...], Row] = {}
    removed: dict[tuple[str, ...], Row] = {}
    for record in records:
        if record["op"] == '"t"':
            rows.clear()
        elif record["op"] == '"d"':
            place = _key(split(record["before"]), key)
            removed[place] = rows.pop(place, {})
        elif record["op"] in ('"c"', '"u"', '"r"'):
            row = split(record["after"])
            place = _key(row, key)
            known = rows.get(place) or removed.get(_old_key(record, key) or place, {})
            unsent = json.loads(record.get("unchanged", "[]"))
            rows[place] = row | {name: known[name] for name in unsent if name in known}
    return rows


def _old_key(record: Row, key: tuple[str, ...]) -> tuple[str, ...] | None:
    """The key the row had before a change of its key."""
    headers = json.loads(record.get("headers", "{}"))
    return _key(split(headers["old_key"]), key) if "old_key" in headers else None


def _key(row: Row, key: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(row[name] for name in key)


def _compare(connection: psycopg.Connection, table: str, count: int, rows: Iterable[Row]) -> TableProof:
    source, folded = sql.Identifier("public", table), sql.Identifier(f"folded_{table}")
    connection.execute(sql.SQL("CREATE TEMP TABLE {} (LIKE {})").format(folded, source))
    insert = sql.SQL("INSERT INTO {} SELECT * FROM json_populate_recordset(NULL::{}, %s::json)")
    for chunk in _chunks(rows):
        connection.execute(insert.format(folded, source), (chunk,))
    one, other = (sql.SQL("SELECT r::text FROM {} r").format(name) for name in (source, folded))
    differ = sql.SQL("SELECT count(*) FROM (({a} EXCEPT ALL {b}) UNION ALL ({b} EXCEPT ALL {a})) d")
    [(differing,)] = connection.execute(differ.format(a=one, b=other)).fetchall()
    [(total,)] = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(source)).fetchall()
    return TableProof(table, total, count, differing)


def _chunks(rows: Iterable[Row]) -> Iterator[str]:
    """JSON arrays of at most `CHUNK` rows."""
    waiting: list[str] = []
    for row in rows:
        waiting.append("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in row.items()) + "}")
        if len(waiting) == CHUNK:
            yield f"[{','.join(waiting)}]"
            waiting = []
    if waiting:
        yield f"[{','.join(waiting)}]"
