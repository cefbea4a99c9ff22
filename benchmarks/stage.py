"""The database under test: its settings, the standard table, and walsenders that can be held and released."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks.waiting import until
from tailrace.testing.servers import PostgresServer

ROWS_PER_TRANSACTION = 1000

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "64GB",
    "checkpoint_timeout": "1d",
    "autovacuum": "off",
    # Longer than any walsender is held.
    "wal_sender_timeout": "1h",
}

_CREATE = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY, quantity int, price numeric(12, 2), title text, note text, active boolean,
    changed timestamptz, day date, token uuid, details jsonb
)"""

COLUMNS = ("id", "quantity", "price", "title", "note", "active", "changed", "day", "token", "details")

_INSERT = """
INSERT INTO {table}
SELECT n, n %% 1000, (n %% 10000000) / 100.0, 'item number ' || n, md5(n::text), n %% 3 = 0,
    timestamptz '2024-01-01' + n * interval '1.25 s', date '2024-01-01' + (n %% 700)::int, md5(n::text)::uuid,
    jsonb_build_object('size', n %% 50, 'colour', 'blue', 'tags', jsonb_build_array('a', n %% 7))
FROM generate_series(%s::bigint, %s::bigint) AS n"""

_UPDATE = "UPDATE {table} SET quantity = quantity + 1, changed = clock_timestamp() WHERE id = ANY(%s::bigint[])"
_DELETE = "DELETE FROM {table} WHERE id >= %s AND id < %s"


class Table:
    """The standard table: ten columns, filled with rows that no other call has written."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self.written = 0
        self.changed = 0
        """Changes since the rows were written that `change` made, without its inserts."""
        self._oldest = 1
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(self._statement(_CREATE))
        self._insert, self._update, self._delete = map(self._statement, (_INSERT, _UPDATE, _DELETE))

    def write(self, rows: int, per_transaction: int = ROWS_PER_TRANSACTION) -> None:
        """Commit `rows` new rows in transactions of `per_transaction`."""
        end = self.written + rows
        while self.written < end:
            last = min(self.written + per_transaction, end)
            self._connection.execute(self._insert, (self.written + 1, last), prepare=True)
            self.written = last

    def change(self, inserted: int, updated: int, deleted: int, chance: random.Random) -> None:
        """Commit one transaction of new rows, other values for rows chosen by chance, and the oldest rows' end."""
        first = self._oldest + deleted
        keys = chance.sample(range(first, self.written + 1), updated)
        with self._connection.transaction():
            self.write(inserted)
            self._connection.execute(self._update, (keys,), prepare=True)
            self._connection.execute(self._delete, (self._oldest, first), prepare=True)
        self._oldest = first
        self.changed += updated + deleted

    def close(self) -> None:
        self._connection.close()

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(table=sql.Identifier("public", self.name))


@dataclass
class Walsender:
    """The server's process that decodes WAL for one reader. Held, it does nothing; nothing is lost."""

    pid: int
    held: bool = field(default=False, init=False)

    def hold(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.held = True

    def release(self) -> None:
        if self.held:
            self.held = False
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)


@dataclass(frozen=True)
class Stage:
    """A running PostgreSQL and the folder everything else of a run lives in."""

    postgres: PostgresServer
    folder: Path
    connection: psycopg.Connection[psycopg.rows.TupleRow]

    @property
    def dsn(self) -> str:
        return self.postgres.dsn()

    def roles(self) -> dict[int, str]:
        return {self.postgres.pid: "postgres"}

    def current_lsn(self) -> str:
        [(lsn,)] = self.connection.execute("SELECT pg_current_wal_lsn()::text")
        return str(lsn)

    def walsender(self, slot: str) -> Walsender | None:
        """The one that serves `slot`, if one does."""
        query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL"
        found = self.connection.execute(query, (slot,)).fetchone()
        return None if found is None else Walsender(int(found[0]))

    @contextmanager
    def held(self, slot: str) -> Iterator[Walsender]:
        """The walsender of `slot`, held from a moment on at which it had nothing left to send."""
        until(lambda: self._waits(slot), f"slot {slot} has a reader that is caught up", seconds=60)
        sender = self.walsender(slot)
        assert sender is not None
        sender.hold()
        try:
            yield sender
        finally:
            sender.release()

    @contextmanager
    def slot(self, name: str, publication: str, table: Table) -> Iterator[None]:
        """A slot and a publication as `pg_recvlogical` needs them."""
        published = sql.SQL("CREATE PUBLICATION {} FOR TABLE {}")
        self.connection.execute(published.format(sql.Identifier(publication), sql.Identifier("public", table.name)))
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        try:
            yield
        finally:
            self.forget(name)

    def forget(self, slot: str) -> None:
        """Drop a slot, if it is there, once its reader is gone, so that its WAL can go."""
        until(lambda: self.walsender(slot) is None, f"slot {slot} is free", seconds=60)
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        self.connection.execute(drop, (slot,))

    def _waits(self, slot: str) -> bool:
        query = """
            SELECT 1 FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
            WHERE slot_name = %s AND wait_event ILIKE ANY (ARRAY['WalSenderWaitForWal', 'WalSenderMain'])"""
        return self.connection.execute(query, (slot,)).fetchone() is not None


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    """A PostgreSQL of its own, gone at the end."""
    with (
        PostgresServer(18, settings=SETTINGS) as postgres,
        psycopg.connect(postgres.dsn(), autocommit=True) as connection,
    ):
        yield Stage(postgres, folder, connection)
