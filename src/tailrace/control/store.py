"""Opening the store, a SQLite file or a PostgreSQL database, and its transactions."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from tailrace.control.migrations import migrate
from tailrace.control.place import StorePlace
from tailrace.control.sqlite import SqliteFile
from tailrace.control.tables import store_version
from tailrace.control.turns import Turn, of_turn
from tailrace.errors import SetupError, TailraceError

if TYPE_CHECKING:
    from tailrace.control.postgres import PostgresDatabase


class StoreDatabase(Protocol):
    """What holds a store. `where` names it without secrets."""

    where: str

    def connect(self) -> sa.Engine: ...

    def release(self, engine: sa.Engine) -> None: ...

    def alone(self) -> AbstractContextManager[None]:
        """Held while a store is opened."""
        ...

    def now_us(self, connection: sa.Connection) -> int:
        """The time, for all who use the store."""
        ...

    def meaning(self, error: Exception) -> TailraceError | None:
        """What a database's error is for us; None where it is a defect."""
        ...


class Store:
    """A handle on the store at `place`, made when missing and brought up to date. Usable from several threads.
    `clock` is the time of a file; a database has its own."""

    def __init__(self, place: StorePlace, clock: Callable[[], float] = time.time) -> None:
        self.place = place
        self._database = _database(place, clock)
        self.where = self._database.where
        self._engine, self._closed = self._database.connect(), False
        try:
            with self._database.alone(), self.transaction() as connection:
                migrate(connection, self.where)
        except BaseException:
            self.close()
            raise

    def transaction(self) -> AbstractContextManager[sa.Connection]:
        """All of it or nothing; transactions are one after another. Raises `store.busy` where its turn did not come,
        `store.unavailable` for a database that is away (a commit that was under way then may have happened),
        `disk.full` where there is no space for it."""
        return self._begin("write")

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """The store as it is at one moment. Waits for no writer, and must not write."""
        return self._begin("read")

    def statement(self) -> AbstractContextManager[sa.Connection]:
        """For one statement that is right by itself: in PostgreSQL it waits for no other writer but those of its
        rows."""
        return self._begin("statement")

    def now_us(self, connection: sa.Connection) -> int:
        """Microseconds since 1970, by the one clock of all who use the store."""
        return self._database.now_us(connection)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._database.release(self._engine)

    def _begin(self, turn: Turn) -> AbstractContextManager[sa.Connection]:
        return _transaction(self._database, self._engine, turn)


def refuse_lost(place: StorePlace, logs: Iterable[Path]) -> None:
    """Raise `store.lost` where logs are there without the store they were written beside. A new one would not know
    which tables were read: all would be read again, without a word.

    A store is made before the first log. Whoever wants a new one puts an empty file, or an empty table of versions, in
    its place."""
    left = sorted(log.name for log in logs if any((log / "manifest").glob("[0-9]*")))
    if not left:
        return
    beside = f"but not what was written beside it: the log of {', '.join(left)}"
    again = "or go on with a new one, by which every table of a source with a `snapshot` is read again"
    if store_exists(place):
        return
    if isinstance(place, Path):
        hint = f"put it back from a backup; {again}: touch {shlex.quote(str(place))}"
        raise SetupError("store.lost", f"{place} is gone, {beside}", hint=hint, where=str(place))
    hint = f"restore the database, or check `store.url`; {again}: CREATE TABLE store_version (version BIGINT NOT NULL)"
    where = _database(place, time.time).where
    raise SetupError("store.lost", f"the database has no control store, {beside}", hint=hint, where=where)


def store_exists(place: StorePlace) -> bool:
    """Whether a store was made there; a database that is away is an error."""
    if isinstance(place, Path):
        return place.exists()
    database = _database(place, time.time)
    engine = database.connect()
    try:
        with _transaction(database, engine, "read") as connection:
            return sa.inspect(connection).has_table(store_version.name)
    finally:
        database.release(engine)


@contextmanager
def _transaction(database: StoreDatabase, engine: sa.Engine, turn: Turn) -> Iterator[sa.Connection]:
    try:
        with of_turn(engine, turn).begin() as connection:
            yield connection
    except (sa.exc.SQLAlchemyError, sqlite3.OperationalError) as error:
        told = database.meaning(error)
        if told is None:
            raise
        raise told from error


def _database(place: StorePlace, clock: Callable[[], float]) -> SqliteFile | PostgresDatabase:
    if isinstance(place, Path):
        return SqliteFile(place, clock)
    from tailrace.control.postgres import PostgresDatabase  # only who has such a store loads its driver

    return PostgresDatabase(place)
