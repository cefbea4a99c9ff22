"""Opening the store: connection settings and migrations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from tailrace.control.migrations import MIGRATIONS
from tailrace.errors import SetupError

BUSY_MS = 30_000


class Store:
    """A handle on the store at `path`, made when missing and brought up to date. Usable from several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._engine = sa.create_engine(f"sqlite:///{path}")
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)
        self._migrate()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """All of it or nothing; transactions are one after another."""
        with self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _migrate(self) -> None:
        with self.transaction() as connection:
            version = connection.execute(sa.text("PRAGMA user_version")).scalar_one()
            if version > len(MIGRATIONS):
                raise SetupError(
                    "store.newer",
                    f"the control store {self.path} has version {version}, this Tailrace knows {len(MIGRATIONS)}",
                    hint="run the Tailrace version that wrote it",
                )
            for step in MIGRATIONS[version:]:
                for statement in step:
                    connection.execute(sa.text(statement))
            connection.execute(sa.text(f"PRAGMA user_version = {len(MIGRATIONS)}"))


def _configure(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's `begin` event begins, so that DDL is transactional too
    for pragma in ("journal_mode = WAL", f"busy_timeout = {BUSY_MS}", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # a reader that becomes a writer could not wait for its turn
