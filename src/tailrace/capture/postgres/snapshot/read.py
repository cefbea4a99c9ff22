"""Reading one chunk: a short transaction, what it saw, and its rows through the stream's own mapper into a file.

The table is locked like any SELECT locks it, and before the transaction's snapshot is taken: a rewriting ALTER in
between would leave an old snapshot with an empty table.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psycopg
from psycopg import pq, sql
from psycopg.rows import TupleRow

from tailrace.capture.postgres.buffers import Stop
from tailrace.capture.postgres.catalog import PostgresCatalog, refused
from tailrace.capture.postgres.messages import lsn_number, lsn_text
from tailrace.capture.postgres.publications import published_names
from tailrace.capture.postgres.relations import Relations
from tailrace.capture.postgres.rows import DecodedRows
from tailrace.capture.postgres.snapshot.describe import Described, describe, table_missing
from tailrace.capture.postgres.snapshot.plan import range_condition
from tailrace.capture.staging import StagedFile
from tailrace.contracts import ChunkId, Extent, Frame, Staged
from tailrace.schema import SchemaBook, TableSchema

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource

ARENA_BYTES = 16 << 20
READ_BYTES = 1 << 20
PAGE_BYTES = 8192
PAGE_HEADER_BYTES = 40


class Session:
    """A connection that is kept for the next chunk, with what it has learned of types. Closed when something fails."""

    _kept: ClassVar[dict[str, list[PostgresCatalog]]] = {}

    @classmethod
    @contextmanager
    def of(cls, source: PostgresSource) -> Iterator[PostgresCatalog]:
        kept = cls._kept.setdefault(source.conninfo(), [])
        try:
            catalog = kept.pop()
        except IndexError:
            catalog = PostgresCatalog(source.conninfo())
        try:
            yield catalog
        except BaseException:
            catalog.close()
            raise
        kept.append(catalog)


class Buffers:
    """Rows' memory that is kept for the next chunk: making it anew costs as much as filling it."""

    _kept: ClassVar[list[DecodedRows]] = []

    @classmethod
    @contextmanager
    def lent(cls) -> Iterator[DecodedRows]:
        rows = cls._kept.pop() if cls._kept else DecodedRows(ARENA_BYTES)
        rows.reset()
        yield rows
        cls._kept.append(rows)


@contextmanager
def opened(source: PostgresSource, schema: str, table: str) -> Iterator[tuple[PostgresCatalog, Described]]:
    """A transaction with the table locked as a SELECT does, before its snapshot is taken, and the table as it sees
    it."""
    with Session.of(source) as catalog, refused():
        connection = catalog.connection()
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute("SET LOCAL row_security = off")  # an error instead of rows that are silently left out
        try:
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(schema, table)))
        except psycopg.errors.UndefinedTable:
            raise table_missing(schema, table) from None
        yield catalog, describe(connection, schema, table, published_names(source.publication_name))
        connection.execute("COMMIT")


def read(source: PostgresSource, chunk: ChunkId, extent: Extent, folder: Path) -> Staged:
    """Read the chunk and stage it in `folder`. Whoever reads it again later makes another file."""
    with Session.of(source) as catalog, refused():
        since = _position(catalog.connection())
    with opened(source, chunk.schema, chunk.table) as (catalog, table):
        connection = catalog.connection()
        seen, after, origin = _saw(connection)
        relations = Relations(catalog.database(), SchemaBook(), catalog, lambda *_: True)
        schema = relations.announce(table.relation)
        assert schema is not None
        name = folder / f"{chunk.run}-{chunk.number}-{uuid.uuid4().hex[:8]}.arrow"
        with Buffers.lent() as rows, StagedFile(name) as file:
            _copy(connection, table, extent, _CopyReader(rows, relations, schema, file, reset=extent.whole))
            staged = Staged(
                chunk,
                str(name),
                file.rows,
                file.bytes,
                lsn_text(since),
                lsn_text(after),
                seen,
                schema,
                int(time.time() * 1e6),
                extent.whole,
                extent.keys,
                origin,
            )
            file.describe(staged)
    return staged


class _CopyReader:
    """COPY's lines to staged frames."""

    def __init__(
        self, rows: DecodedRows, relations: Relations, schema: TableSchema, file: StagedFile, *, reset: bool
    ) -> None:
        self._rows, self._relations, self._file = rows, relations, file
        rows.begin(0, 0)
        if reset:
            rows.add("t", schema, None, None)

    def take(self, lines: bytearray) -> None:
        place = 0
        while True:
            stop, place = self._rows.decode_copy(lines, place, self._relations)
            if stop is Stop.END:
                return
            if self._rows.count:
                self._put(self._rows.take_open()[0])
            else:
                self._rows.grow()

    def end(self) -> None:
        self._rows.commit(0)
        self._put(self._rows.take_finished()[0])

    def _put(self, frame: Frame | None) -> None:
        if frame is not None:
            self._file.put(frame)


_SEEN = """
SELECT pg_current_snapshot()::text, pg_is_in_recovery(), system_identifier::text, CASE WHEN pg_is_in_recovery() THEN ''
ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int::text END FROM pg_control_system()
"""
"""The timeline is what a file of the WAL begins with; a standby does not say."""


def _saw(connection: psycopg.Connection[TupleRow]) -> tuple[str, int, str]:
    """(what the transaction sees, a position behind everything it sees, where). In this order: the position after."""
    [(snapshot, standby, system, timeline)] = connection.execute(_SEEN).fetchall()
    position = _position(connection)
    # At the start of a page the next record comes behind the page's header, where an idle server never gets.
    behind = position - (inside if (inside := position % PAGE_BYTES) <= PAGE_HEADER_BYTES else 0)
    return f"standby {snapshot}" if standby else snapshot, behind, f"{system}/{timeline}"


def _position(connection: psycopg.Connection[TupleRow]) -> int:
    """Where the server's WAL ends, as far as this server has it."""
    function = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
    [(lsn,)] = connection.execute(f"SELECT ({function})::text").fetchall()
    return lsn_number(lsn)


def _copy(connection: psycopg.Connection[TupleRow], table: Described, extent: Extent, reader: _CopyReader) -> None:
    query = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT").format(
        table.columns, table.rows, range_condition(table, extent)
    )
    raw = connection.pgconn
    result = raw.exec_params(query.as_bytes(connection), [])  # never more than one statement
    if result.status != pq.ExecStatus.COPY_OUT:
        raise _error(result)
    lines = bytearray()
    while True:
        size, line = raw.get_copy_data(0)
        if size <= 0:
            break
        lines += line
        if len(lines) >= READ_BYTES:
            reader.take(lines)
            lines = bytearray()
    reader.take(lines)
    reader.end()
    while (ended := raw.get_result()) is not None:
        if ended.status != pq.ExecStatus.COMMAND_OK:
            raise _error(ended)


def _error(result: pq.abc.PGresult) -> psycopg.Error:
    return psycopg.errors.error_from_result(result)
