"""A store in a PostgreSQL database: how it is reached, its turns, and what its errors mean.

Writers are one after another, as in SQLite, by an advisory lock that the database gives back when a transaction ends,
however it does. So what is read may be written in the same transaction, and numbers are given in the order in which
they become visible. The tables are in the schema that the connection creates in (`options=-csearch_path%3Dtailrace` in
the URL).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import event

from tailrace.config.secret import Dsn, redact
from tailrace.control.turns import turn_of
from tailrace.errors import ConfigError, SetupError, TailraceError
from tailrace.machine.space import no_space

WAIT_S = 30
"""How long a writer waits for its turn."""
IDLE_S = 10
"""How long a transaction may do nothing: a process that was stopped in the middle of one must not hold up the
others."""
CONNECTIONS = 2
"""Kept open; a few more are opened while they are wanted at once."""
MORE_CONNECTIONS = 3
NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "application_name": "tailrace-store",
}
"""Unless the URL says otherwise."""
_LOCK = 7_261_735
"""Ours among the advisory locks of a database."""
_TURNS = {
    "write": f"SELECT pg_advisory_xact_lock({_LOCK}, hashtext(current_schema()))",
    "read": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "statement": "",
}
_REFUSED = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "is not permitted to log in")
_UNTRUSTED = ("does not support SSL", "certificate", "private key", "alert", "sslmode")
_WAITS = ("08", "40", "53", "57", "58")
"""Classes of SQLSTATE for what passes by itself: connections, conflicts, want of resources, a server that ends, its
disk."""
_WAITING = (errors.ReadOnlySqlTransaction, errors.IdleInTransactionSessionTimeout)


@dataclass
class _Shared:
    """An engine and how many use it."""

    engine: sa.Engine
    users: int = 0


_engines: dict[str, _Shared] = {}
_engines_lock = threading.Lock()


class PostgresDatabase:
    """The database at `url`, for processes of any host. Its time is the server's."""

    def __init__(self, url: Dsn) -> None:
        self._url = url.get_secret_value()
        self.where = _address(url)

    def connect(self) -> sa.Engine:
        """One pool for each URL in a process, however many have the store open."""
        with _engines_lock:
            shared = _engines.setdefault(self._url, _Shared(self._engine()))
            shared.users += 1
            return shared.engine

    def release(self, engine: sa.Engine) -> None:
        with _engines_lock:
            shared = _engines[self._url]
            shared.users -= 1
            if not shared.users:
                del _engines[self._url]
                engine.dispose()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Whoever opens a store writes, so it waits for its turn like everybody."""
        yield

    def now_us(self, connection: sa.Connection) -> int:
        found: int = connection.execute(NOW_US).scalar_one()
        return found

    def meaning(self, error: Exception) -> TailraceError | None:
        """What an error is for us, where it is more than a defect."""
        if isinstance(error, sa.exc.TimeoutError):
            return self._unavailable(f"all {CONNECTIONS + MORE_CONNECTIONS} connections are in use")
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        if not isinstance(cause, psycopg.Error):
            return None
        if isinstance(cause, errors.DiskFull):
            return no_space(f"the control store says: {_told(cause)}", self.where)
        if isinstance(cause, errors.LockNotAvailable):
            return self._busy()
        if isinstance(cause, errors.InsufficientPrivilege | errors.InvalidSchemaName):
            hint = "the store's role needs a schema it may create tables in: CREATE SCHEMA tailrace AUTHORIZATION …"
            return SetupError("store.refused", f"the database refuses it: {_told(cause)}", hint=hint, where=self.where)
        if cause.sqlstate is None and isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
            return self._no_connection(_told(cause))
        if isinstance(cause, psycopg.DataError) and "NUL" in str(cause):
            hint = "leave the character U+0000 out: PostgreSQL has no text with it"
            return ConfigError("store.bad_text", "a text cannot be kept", hint=hint, where=self.where)
        if (cause.sqlstate or "").startswith(_WAITS) or isinstance(cause, _WAITING):
            return self._unavailable(_told(cause))
        return None

    def _engine(self) -> sa.Engine:
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=self._open,
            pool_size=CONNECTIONS,
            max_overflow=MORE_CONNECTIONS,
            pool_timeout=WAIT_S,
            pool_pre_ping=True,
        )
        event.listen(engine, "begin", _begin)
        return engine

    def _open(self) -> psycopg.Connection[Any]:
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(self._url).items() if value is not None}
            conninfo = make_conninfo(**(NETWORK | given), client_encoding="UTF8")
        except psycopg.ProgrammingError as error:
            hint = "postgresql://user:password@host:5432/database?sslmode=verify-full"
            text = "libpq does not understand `store.url`" + _unknown_parameter(error)
            raise ConfigError("store.bad_url", text, hint=hint, where=self.where) from None
        connection = psycopg.connect(conninfo, prepare_threshold=None)
        # What the store says must be durable, whatever the server does by default.
        connection.execute(_DURABLE)
        connection.commit()
        return connection

    def _busy(self) -> TailraceError:
        return SetupError(
            "store.busy",
            f"another transaction holds the control store for more than {WAIT_S} s",
            hint="look in pg_locks who holds an advisory lock, or a lock on our tables; it is retried",
            where=self.where,
        )

    def _unavailable(self, told: str) -> TailraceError:
        return SetupError(
            "store.unavailable",
            f"the control store cannot be reached: {told}",
            hint="check that the database of `store.url` runs, can be reached and takes writes; it is retried",
            where=self.where,
        )

    def _no_connection(self, told: str) -> TailraceError:
        if any(part in told for part in _UNTRUSTED):
            hint = "check sslmode, sslrootcert, sslcert and sslkey in `store.url`"
            text = f"server and client do not trust each other: {told}"
            return SetupError("store.refused", text, hint=hint, where=self.where)
        if any(part in told for part in _REFUSED) or "does not exist" in told:
            hint = "check user, password and database in `store.url`, and the server's pg_hba.conf"
            text = f"the server refused the login: {told}"
            return SetupError("store.refused", text, hint=hint, where=self.where)
        return self._unavailable(told)


NOW_US = sa.text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)")
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)


def _begin(connection: sa.Connection) -> None:
    limits = f"SET LOCAL lock_timeout = '{WAIT_S}s'; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S}s'"
    connection.exec_driver_sql(f"{limits}; {_TURNS[turn_of(connection)]}")  # one round trip


def _told(error: psycopg.Error) -> str:
    """What an error says, in one line, without passwords."""
    return redact(" ".join((error.diag.message_primary or str(error)).split()))


def _unknown_parameter(error: psycopg.ProgrammingError) -> str:
    """The parameter that libpq does not know. What else it says may quote the password."""
    text = " ".join(str(error).split())
    return f": {text}" if text.startswith("invalid URI query parameter") else ""


def _address(url: Dsn) -> str:
    """Host and database: enough to find it, and nothing of who asks."""
    try:
        parts = conninfo_to_dict(url.get_secret_value())
    except psycopg.ProgrammingError:
        return "store.url"
    return f"postgresql://{parts.get('host', '')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
