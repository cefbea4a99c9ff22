"""Connections to the database that a sink writes to, and what their errors mean.

No wait is longer than the sink says, not even for a server that is frozen: a watch closes the connection then. Messages
never have values of rows in them, which PostgreSQL's own have.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.config import redact
from tailrace.errors import ConfigError, SinkError

PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
NETWORK = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""A network that is cut without a word is noticed within half a minute, unless the DSN says otherwise."""
GRACE_S = 2.0
"""How much later than the server itself the watch ends a statement."""
_REFUSED = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "is not permitted to log in")
_UNTRUSTED = ("does not support SSL", "certificate", "private key", "alert")
_WAITS = ("08", "40", "53", "57", "58")
"""Classes of SQLSTATE for what passes by itself: connections, conflicts, want of resources, a server that ends, its
disk."""
_TOLD = ("0A", "23", "26", "28", "2B", "3D", "3F", "42", "55")
"""Classes whose messages name objects and never values."""

_WAITING = (errors.LockNotAvailable, errors.ReadOnlySqlTransaction)
"""Others that pass: a lock of somebody else's, and a server that is a standby until it is promoted."""

Query = sql.SQL | sql.Composed


@dataclass(frozen=True)
class Patience:
    """How long is waited for a server, a lock and a statement, in seconds."""

    connect_s: float
    lock_s: float
    statement_s: float


@dataclass(frozen=True)
class Address:
    """Where to connect to; `conninfo` has secrets."""

    conninfo: str = field(repr=False)
    patience: Patience
    sink: str

    def connect(self) -> Session:
        """A session outside any transaction. Raises `SinkError` for a server that is away or lets nobody in."""
        try:
            options = {**NETWORK, "application_name": "tailrace", "client_encoding": "UTF8"}
            options["connect_timeout"] = str(max(2, round(self.patience.connect_s)))  # libpq takes 1 for 2
            given = conninfo_to_dict(self.conninfo)
            options |= {name: str(value) for name, value in given.items() if value is not None}
            connection = psycopg.connect(make_conninfo(**options), prepare_threshold=None)
        except psycopg.ProgrammingError as error:
            raise bad_dsn(error, self.sink) from None
        except psycopg.Error as error:
            raise connect_error(str(error), self.sink) from None
        session = Session(connection, self.patience.statement_s + GRACE_S, self.sink)
        try:
            session.pin(self.patience)
        except BaseException:
            session.close()
            raise
        return session


class Session:
    """A connection; each statement is watched. Errors are `SinkError` where the server is the trouble, and psycopg's
    where a statement is."""

    def __init__(self, connection: psycopg.Connection[Any], seconds: float, sink: str) -> None:
        self._connection, self._seconds, self._sink = connection, seconds, sink

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    @property
    def usable(self) -> bool:
        """Whether the server has not ended it meanwhile, which is the only thing that an idle one would hear."""
        if self.closed:
            return False
        heard = select.poll()
        heard.register(self._connection.fileno(), select.POLLIN)
        return not heard.poll(0)

    def execute(self, query: Query, values: Sequence[object] | None = None) -> psycopg.Cursor[Any]:
        with self._watched():
            return self._connection.execute(query, values)

    def rows(self, query: Query, values: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        return self.execute(query, values).fetchall()

    @contextmanager
    def copy(self, query: Query) -> Iterator[psycopg.Copy]:
        with self._watched(), self._connection.cursor() as cursor, cursor.copy(query) as copy:
            yield copy

    def text(self, query: sql.Composable) -> str:
        return query.as_string(self._connection)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What is done inside is undone where it raises; what was done before stays."""
        self.execute(sql.SQL("SAVEPOINT tailrace"))
        try:
            yield
        except BaseException:
            if not self.closed:
                self.execute(sql.SQL("ROLLBACK TO SAVEPOINT tailrace"))
                self.execute(sql.SQL("RELEASE SAVEPOINT tailrace"))
            raise
        self.execute(sql.SQL("RELEASE SAVEPOINT tailrace"))

    def commit(self) -> None:
        with self._watched():
            self._connection.commit()

    def rollback(self) -> None:
        with self._watched():
            self._connection.rollback()

    def close(self) -> None:
        """Whatever was not committed is undone."""
        with suppress(psycopg.Error, OSError):
            self._connection.close()

    def __del__(self) -> None:
        """Whoever kept it open for the next batch has no next batch."""
        self.close()

    def pin(self, patience: Patience) -> None:
        """Settings that decide how values are read, and how long the server waits."""
        milliseconds = {"lock_timeout": patience.lock_s, "statement_timeout": patience.statement_s}
        settings = PINNED | {name: f"{round(seconds * 1000)}ms" for name, seconds in milliseconds.items()}
        for name, value in settings.items():
            self.execute(sql.SQL("SELECT set_config(%s, %s, false)"), (name, value))
        # What is marked as delivered must be durable, whatever the server does by default (Law 1).
        lazy = sql.SQL("SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting(%s) = 'off'")
        self.execute(lazy, ("synchronous_commit",))
        self.commit()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        watch = threading.Timer(self._seconds, self._cut)
        watch.daemon = True
        watch.start()
        try:
            yield
        except psycopg.Error as error:
            if waits(error):
                raise unavailable(error, self._sink) from None
            raise
        finally:
            watch.cancel()

    def _cut(self) -> None:
        """End the connection under whoever waits for it."""
        with suppress(OSError, psycopg.Error):
            twin = socket.fromfd(self._connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
            with twin:
                twin.shutdown(socket.SHUT_RDWR)


def waits(error: psycopg.Error) -> bool:
    """Whether an error passes by itself: the server is away, busy or locked."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_WAITS) or isinstance(error, _WAITING)


def unavailable(error: psycopg.Error, where: str) -> SinkError:
    hint = "check that the server runs, can be reached and has room; the sink tries again by itself"
    if isinstance(error, errors.QueryCanceled):
        hint = "it is tried again; where the work takes longer than that, raise statement_timeout of the sink"
    elif isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected):
        hint = "look in pg_locks who holds a lock on the sink's tables; the sink tries again by itself"
    return SinkError("sink.unavailable", f"the database does not take it: {told(error)}", hint=hint, where=where)


def told(error: psycopg.Error) -> str:
    """What an error says, without the values that PostgreSQL's messages quote."""
    if error.sqlstate is None:
        return redact(" ".join(str(error).split()))
    name = type(error).__name__
    if error.sqlstate.startswith((*_TOLD, *_WAITS)) and error.diag.message_primary:
        return f"{error.diag.message_primary} ({name})"
    return f"{name}, SQLSTATE {error.sqlstate}; the server's log has the rest"


def bad_dsn(error: psycopg.ProgrammingError, where: str) -> ConfigError:
    """A connection string that libpq does not understand."""
    hint = "postgresql://user@host:5432/database, or key=value pairs"
    return ConfigError("sink.bad_dsn", redact(str(error).strip()), hint=hint, where=where)


def connect_error(text: str, where: str) -> SinkError:
    """What a failed connection means: wait for a server that is away, stop for one that says no."""
    text = redact(" ".join(text.split()))
    if any(part in text for part in _UNTRUSTED):
        hint = (
            "check tls in the sink (root_cert signs the server's certificate, which names the host of dsn), or sslmode"
        )
        return SinkError("sink.refused", f"server and client do not trust each other: {text}", hint=hint, where=where)
    if any(part in text for part in _REFUSED):
        hint = "check user and password in the sink, its TLS options, and the server's pg_hba.conf"
        return SinkError("sink.refused", f"the server refused the login: {text}", hint=hint, where=where)
    if "does not exist" in text:
        hint = "check the database and the role in the sink's dsn"
        return SinkError("sink.refused", text, hint=hint, where=where)
    hint = "check host and port in the sink's dsn, and that the server runs; the sink tries again by itself"
    return SinkError("sink.unavailable", f"cannot reach the database: {text}", hint=hint, where=where)


def refused(error: psycopg.Error, what: str, where: str) -> SinkError:
    """A server that does not let the sink do what it must."""
    hint = "grant the sink's role what it needs (the guide names it), or mend what the message names"
    return SinkError("sink.refused", f"{what}: {told(error)}", hint=hint, where=where)
