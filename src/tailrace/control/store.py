"""Opening the store: a SQLite file, its settings, its transactions."""

from __future__ import annotations

import fcntl
import os
import shlex
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from tailrace.control.migrations import migrate
from tailrace.errors import SetupError
from tailrace.machine.durable import make_directory, private
from tailrace.machine.space import no_space

BUSY_MS = 30_000


class Store:
    """A handle on the store at `path`, made when missing and brought up to date. Usable from several threads."""

    def __init__(self, path: Path) -> None:
        make_directory(path.parent)
        self.path = path
        self._engine = sa.create_engine(f"sqlite:///{path}")
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)
        with _alone_in(path.parent):
            _make(path)
            with self.transaction() as connection:
                migrate(connection)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """All of it or nothing; transactions are one after another. Raises `store.busy` where its turn did not come,
        `disk.full` where there is no space for it."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (sa.exc.OperationalError, sqlite3.OperationalError) as error:
            if _code(error) == sqlite3.SQLITE_FULL:
                raise no_space(f"the control store says: {error}", str(self.path)) from error
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            raise SetupError(
                "store.busy",
                f"another process holds the control store for more than {BUSY_MS / 1000:g} s",
                hint="end what reads or copies the file, or move the data directory to a faster disk; it is retried",
                where=str(self.path),
            ) from error

    def close(self) -> None:
        self._engine.dispose()


def refuse_lost(path: Path, logs: Iterable[Path]) -> None:
    """Raise `store.lost` where logs are there without the store they were written beside. A new one would not know
    which tables were read: all would be read again, without a word.

    A store is made before the first log. Whoever wants a new one puts an empty file in its place."""
    left = [log.name for log in logs if any((log / "manifest").glob("[0-9]*"))]
    if left and not path.exists():
        raise SetupError(
            "store.lost",
            f"{path} is gone, but not what was written beside it: the log of {', '.join(sorted(left))}",
            hint=f"put it back from a backup; or go on with a new one, by which every table of a source with a "
            f"`snapshot` is read again: touch {shlex.quote(str(path))}",
            where=str(path),
        )


def _make(path: Path) -> None:
    """An empty file for this user alone; SQLite gives the files beside it the same permissions. One that is there is
    never opened here: to close it would give back the locks that SQLite holds on it in this process, and with them the
    store to whoever thinks that nobody else has it."""
    with suppress(FileExistsError):
        os.close(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other processes that open a store here: SQLite fails, rather than waits, where two make a file WAL."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _code(error: sa.exc.OperationalError | sqlite3.OperationalError) -> int:
    """SQLite's code, without what it is extended by."""
    cause = error.orig if isinstance(error, sa.exc.OperationalError) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _configure(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's `begin` event begins, so that DDL is transactional too
    for pragma in (f"busy_timeout = {BUSY_MS}", "journal_mode = WAL", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # a reader that becomes a writer could not wait for its turn
