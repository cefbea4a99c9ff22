"""A hot standby of a PostgreSQL: a base backup that follows its primary, and can be promoted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tailrace.testing.servers.postgres import PostgresServer
from tailrace.testing.servers.postgres_binaries import give

SLOT = "standby"
"""The physical slot it makes on its primary, so that its WAL is kept while it is away."""


class PostgresStandby(PostgresServer):
    """Follows `primary` from its first start on. Its users and passwords are the primary's."""

    def __init__(
        self,
        primary: PostgresServer,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        follow = {
            "primary_conninfo": make_conninfo(primary.dsn(), application_name=SLOT),
            "primary_slot_name": SLOT,
            "hot_standby_feedback": "on",
        }
        super().__init__(primary.major, directory, {**primary.settings, **follow, **(settings or {})}, primary.password)
        self._primary = primary

    def promote(self) -> None:
        """Make it a primary of its own; returns when it takes writes."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def received(self) -> bool:
        """Whether it has replayed everything its primary has flushed by now."""
        with psycopg.connect(self._primary.dsn()) as primary, psycopg.connect(self.dsn()) as standby:
            [position] = primary.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
            query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            return standby.execute(query, [position]).fetchone() == (True,)

    def _initialise(self) -> None:
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(self._primary.password)
        if self._account is not None:
            give(self.directory, self._account)
        self._run_program(
            *("pg_basebackup", "-d", self._primary.dsn(), "-D", str(self.data), "-X", "stream"),
            *("-C", "-S", SLOT, "--checkpoint=fast", "--no-sync"),
        )
        signal = self.data / "standby.signal"
        signal.touch()
        if self._account is not None:
            give(signal.parent, self._account)
