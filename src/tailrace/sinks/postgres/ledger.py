"""What a sink keeps in the database beside the rows: how far it is, changed in the transaction that brings them.

`marks`   one row for each sink and log, and for a mirror one for each table: the offset reached, and why a table halted
`tables`  the mirrors: which table of the source each is, and which version its columns follow
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from tailrace.schema import TableSchema
from tailrace.sinks.postgres.connection import Session, refused

_MARKS = """
CREATE TABLE {schema}.marks (
    pipeline text, sink text, log text, source_table text, mark bigint NOT NULL, halted text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink, log, source_table)
)"""
_TABLES = """
CREATE TABLE {schema}.tables (
    schema_name text, table_name text, pipeline text NOT NULL, sink text NOT NULL, source_table text NOT NULL,
    version text NOT NULL, dropped text NOT NULL,
    PRIMARY KEY (schema_name, table_name)
)"""
_MADE = {"marks": _MARKS, "tables": _TABLES}
_LOCK = int.from_bytes(hashlib.sha256(b"tailrace").digest()[:7], "big")


@dataclass(frozen=True)
class Entry:
    """How far a table is, and why it halted, if it did."""

    mark: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Mirrored:
    """What is known of a table that mirrors one of the source. `dropped`: columns that the source dropped and the table
    still has → their numbers at the source. `owner`: the pipeline and the sink."""

    version: TableSchema
    dropped: dict[str, int] = field(default_factory=dict)
    owner: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Ledger:
    """Of one sink of a pipeline; `schema` has the two tables. Nothing is committed here."""

    schema: str
    pipeline: str
    sink: str

    def make(self, session: Session) -> None:
        """Make what is missing, and commit."""
        try:
            session.execute(sql.SQL("SELECT pg_advisory_xact_lock(%s)"), (_LOCK,))
            if not self.exists(session, "marks") or not self.exists(session, "tables"):
                self._make(session)
            session.commit()
        except psycopg.Error as error:
            raise refused(error, f"cannot make the schema {self.schema}", self.sink) from None

    def _make(self, session: Session) -> None:
        found = session.rows(sql.SQL("SELECT FROM pg_namespace WHERE nspname = %s"), (self.schema,))
        if not found:
            session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
        for name, statement in _MADE.items():
            if not self.exists(session, name):
                session.execute(sql.SQL(statement).format(schema=sql.Identifier(self.schema)))

    def exists(self, session: Session, name: str) -> bool:
        """Whether the schema has a table of that name."""
        query = sql.SQL("SELECT to_regclass(%s) IS NOT NULL")
        return bool(session.rows(query, (session.text(self.name(name)),))[0][0])

    def name(self, table: str) -> sql.Identifier:
        return sql.Identifier(self.schema, table)

    # -- marks -----------------------------------------------------------------------------------------------

    def mark(self, session: Session, log_id: str, *, lock: bool = False) -> int | None:
        """How far the sink is; None where it never was. With `lock` nobody else delivers until the transaction ends."""
        query = "SELECT mark FROM {} WHERE (pipeline, sink, log, source_table) = (%s, %s, %s, '')"
        found = session.rows(self._marks(query + (" FOR UPDATE" if lock else "")), (self.pipeline, self.sink, log_id))
        return int(found[0][0]) if found else None

    def entries(self, session: Session, log_id: str) -> dict[str, Entry]:
        """Every table of which something is known."""
        query = (
            "SELECT source_table, mark, halted FROM {} WHERE (pipeline, sink, log) = (%s, %s, %s) AND source_table > ''"
        )
        found = session.rows(self._marks(query), (self.pipeline, self.sink, log_id))
        return {name: Entry(mark, reason) for name, mark, reason in found}

    def move(self, session: Session, log_id: str, mark: int, table: str = "", reason: str = "") -> None:
        """The sink, or one of its tables, has every change below `mark`."""
        query = (
            "INSERT INTO {} (pipeline, sink, log, source_table, mark, halted) VALUES (%s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (pipeline, sink, log, source_table) DO UPDATE SET mark = EXCLUDED.mark, "
            "halted = EXCLUDED.halted, changed_at = now()"
        )
        session.execute(self._marks(query), (self.pipeline, self.sink, log_id, table, mark, reason))

    def _marks(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(self.name("marks"))

    # -- tables ----------------------------------------------------------------------------------------------

    def mirrored(self, session: Session, schema: str, table: str) -> Mirrored | None:
        """What is known of a table; None where it is none of ours."""
        query = sql.SQL("SELECT version, dropped, pipeline, sink FROM {} WHERE (schema_name, table_name) = (%s, %s)")
        found = session.rows(query.format(self.name("tables")), (schema, table))
        if not found:
            return None
        version, dropped, pipeline, sink = found[0]
        return Mirrored(TableSchema.from_dict(json.loads(version)), json.loads(dropped), (pipeline, sink))

    def note(self, session: Session, schema: str, table: str, known: Mirrored) -> None:
        """Remember which version the columns of a table follow."""
        query = sql.SQL(
            "INSERT INTO {} (schema_name, table_name, pipeline, sink, source_table, version, dropped) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (schema_name, table_name) DO UPDATE SET "
            "(pipeline, sink, source_table, version, dropped) = (EXCLUDED.pipeline, EXCLUDED.sink, "
            "EXCLUDED.source_table, EXCLUDED.version, EXCLUDED.dropped)"
        )
        version, dropped = json.dumps(known.version.as_dict()), json.dumps(known.dropped)
        values = (schema, table, self.pipeline, self.sink, known.version.name, version, dropped)
        session.execute(query.format(self.name("tables")), values)

    def forget(self, session: Session, schema: str, table: str) -> None:
        """A table that is there no more mirrors nothing."""
        query = sql.SQL("DELETE FROM {} WHERE (schema_name, table_name) = (%s, %s)")
        session.execute(query.format(self.name("tables")), (schema, table))
