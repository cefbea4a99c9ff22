"""A store in a SQLite file: how it is opened, its turns, and what its errors mean."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from tailrace.control.turns import turn_of
from tailrace.errors import SetupError, TailraceError
from tailrace.machine.durable import make_directory, private
from tailrace.machine.space import no_space

BUSY_MS = 30_000


class SqliteFile:
    """The file at `path`, for processes of one host. Its time is this host's."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        make_directory(path.parent)
        self._path, self._clock = path, clock
        self.where = str(path)

    def connect(self) -> sa.Engine:
        engine = sa.create_engine(f"sqlite:///{self._path}")
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin)
        return engine

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for other processes that open a store here: SQLite fails, rather than waits, where two make a file
        WAL."""
        handle = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            _make(self._path)
            yield
        finally:
            os.close(handle)

    def release(self, engine: sa.Engine) -> None:
        engine.dispose()

    def now_us(self, _: sa.Connection) -> int:
        return int(self._clock() * 1e6)

    def meaning(self, error: Exception) -> TailraceError | None:
        """What an error is for us, where it is more than a defect."""
        if _code(error) == sqlite3.SQLITE_FULL:
            return no_space(f"the control store says: {error}", self.where)
        if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SetupError(
                "store.busy",
                f"another process holds the control store for more than {BUSY_MS / 1000:g} s",
                hint="end what reads or copies the file, or move the data directory to a faster disk; it is retried",
                where=self.where,
            )
        return None


def _make(path: Path) -> None:
    """An empty file for this user alone; SQLite gives the files beside it the same permissions. One that is there is
    never opened here: to close it would give back the locks that SQLite holds on it in this process, and with them the
    store to whoever thinks that nobody else has it."""
    with suppress(FileExistsError):
        os.close(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def _code(error: Exception) -> int:
    """SQLite's code, without what it is extended by."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _configure(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's `begin` event begins, so that DDL is transactional too
    for pragma in (f"busy_timeout = {BUSY_MS}", "journal_mode = WAL", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    # A reader that becomes a writer could not wait for its turn.
    connection.exec_driver_sql("BEGIN" if turn_of(connection) == "read" else "BEGIN IMMEDIATE")
