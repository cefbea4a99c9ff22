"""Connections: the plain one for catalogs, and the replication one the stream is read from.

Every session is pinned to the same output settings, because they change how values are spelled.
"""

from __future__ import annotations

import select
import threading
import time
from array import array
from collections.abc import Callable

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from tailrace.capture.postgres.messages import lsn_text, status_update
from tailrace.config import redact
from tailrace.errors import Action, SetupError, SourceError, TailraceError, decide

PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
}
CONNECT_TIMEOUT_S = 10
NETWORK = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""A network that is cut without a word is noticed within half a minute, unless the DSN says otherwise."""
APPLICATION = "tailrace"
REPAIR = "`tailrace snapshot PIPELINE.yaml --repair` reads the affected tables anew and continues from there"
"""The way out of every lost position."""
KEEPALIVE_BYTES = 18
"""A keepalive's size; every WAL message is longer, its header alone has 25 bytes."""
WAL_HEADER_BYTES = 25
REPORT_S = 1.0
"""How often the server hears from us."""
_REFUSED = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
)
_UNTRUSTED = ("does not support SSL", "certificate", "private key", "alert")
"""Not every mention of SSL: a server that goes away during a handshake is also told with that word."""
_UNPRIVILEGED = ("replication role", "permission denied to start WAL sender", "REPLICATION")


def connect(dsn: str, lock_s: float = 0.0) -> psycopg.Connection[TupleRow]:
    """A plain autocommit connection for catalog look-ups; with `lock_s` no statement waits longer for a lock."""
    try:
        connection = psycopg.connect(_conninfo(dsn), autocommit=True)
    except psycopg.ProgrammingError as error:
        raise _bad_dsn(error) from error
    except psycopg.Error as error:
        raise connect_error(str(error)) from error
    try:
        for name, value in (PINNED | ({"lock_timeout": f"{lock_s * 1000:.0f}ms"} if lock_s else {})).items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
    except psycopg.Error as error:
        connection.close()
        raise _lost(str(error)) from error
    return connection


def connect_error(text: str) -> TailraceError:
    """What a failed connection means: wait for a server that is away, stop for one that says no."""
    text = redact(text.strip())
    if any(part in text for part in _UNPRIVILEGED):
        return SetupError(
            "source.privilege",
            f"the role may not replicate: {text}",
            hint="ALTER ROLE … REPLICATION (on a hosted service: grant its replication role)",
        )
    if any(part in text for part in _UNTRUSTED):
        return SetupError(
            "source.tls",
            f"server and client do not trust each other: {text}",
            hint="check tls in the source (root_cert signs the server's certificate, which names the host of "
            "source.dsn; cert and key are yours), or sslmode in source.dsn",
        )
    if any(part in text for part in _REFUSED):
        return SetupError(
            "source.auth",
            f"the server refused the login: {text}",
            hint="check user, password, TLS options and pg_hba.conf",
        )
    if "does not exist" in text:
        return SetupError("source.database_missing", text, hint="check the database name and role in source.dsn")
    return SourceError(
        "source.unreachable",
        f"cannot reach the database: {text}",
        hint="check host and port in source.dsn; it is retried",
    )


class ReplicationStream:
    """A replication connection in copy mode. One thread reads it; `report` may be called by another."""

    def __init__(self, dsn: str, application: str = APPLICATION) -> None:
        try:
            conninfo = _conninfo(dsn, replication="database", application_name=application)
        except psycopg.ProgrammingError as error:
            raise _bad_dsn(error) from error
        self._connection = pq.PGconn.connect(conninfo.encode())
        if self._connection.status != pq.ConnStatus.OK:
            text = self._connection.error_message.decode(errors="replace")
            self._connection.finish()
            raise connect_error(text)
        for name, value in PINNED.items():
            self.command(f"SET {name} = '{value}'")
        # One for the reader, one for whoever reports: a poll serves one thread at a time.
        self._poll, self._report_poll = select.poll(), select.poll()
        self._poll.register(self._connection.socket, select.POLLIN)
        self._report_poll.register(self._connection.socket, select.POLLIN | select.POLLOUT)
        self._lock = threading.Lock()
        self.reported_at = 0.0
        """When the server last heard from us, on the monotonic clock."""

    @property
    def pid(self) -> int:
        """The server process that serves this connection."""
        return self._connection.backend_pid

    def command(self, statement: str) -> list[tuple[str | None, ...]]:
        """Run a replication command; identifiers in it are quoted by the caller."""
        try:
            result = self._connection.exec_(statement.encode())
        except psycopg.Error as error:
            raise _lost(str(error)) from error
        return _rows(result)

    def slow_command(self, statement: str, meanwhile: Callable[[], None]) -> list[tuple[str | None, ...]]:
        """Run a replication command that may have to wait; `meanwhile` is called every second and may end it by
        raising."""
        connection = self._connection
        try:
            connection.send_query(statement.encode())
            while connection.is_busy():
                if not self.wait(REPORT_S):
                    meanwhile()
            result = connection.get_result()
            while connection.get_result() is not None:
                pass
        except psycopg.Error as error:
            raise _lost(str(error)) from error
        except BaseException:
            connection.get_cancel().cancel()
            raise
        assert result is not None
        return _rows(result)

    def read_wal(self, lsn: int, timeline: str) -> bytes | None:
        """The server's WAL from `lsn` on, a piece of it; None where it does not give it. The connection is of no other
        use afterwards."""
        try:
            self.command(f"START_REPLICATION PHYSICAL {lsn_text(lsn)} TIMELINE {int(timeline)}")
            self._connection.nonblocking = 1
            return self._first_piece()
        except psycopg.Error as error:
            raise _lost(str(error)) from error
        except TailraceError as error:
            if decide(error) is Action.RETRY:
                raise
            return None  # it is removed, or the role may not read it

    def start(self, slot: str, lsn: int, publications: tuple[str, ...]) -> None:
        """Begin streaming; from here on only `read` and `report` may be called."""
        names = ",".join(quote_identifier(name) for name in publications).replace("'", "''")
        self.command(
            f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {lsn_text(lsn)} "
            f"(proto_version '1', publication_names '{names}', messages 'true')"
        )
        self._connection.nonblocking = 1

    def wait(self, timeout_s: float) -> bool:
        """Until something arrives, or the time is over; whether something did."""
        arrived = bool(self._poll.poll(max(0, int(timeout_s * 1000))))
        if arrived:
            with self._lock:
                self._consume()
        return arrived

    def read(self, data: bytearray, ends: array[int], limit: int) -> tuple[bool, memoryview | None]:
        """Append WAL messages to `data` until nothing has arrived, a keepalive comes, or `limit` bytes are there.

        Returns (whether more may be waiting, the keepalive).
        """
        get, note, size = self._connection.get_copy_data, ends.append, len(data)
        with self._lock:
            while size < limit:
                count, message = get(1)
                if count > KEEPALIVE_BYTES:
                    data += message
                    size += count
                    note(size)
                elif count > 0:
                    return True, message
                elif count < 0:
                    raise self._ended()
                elif not self._poll.poll(0):
                    return False, None
                else:
                    self._consume()
        return True, None

    def report(self, written: int, flushed: int) -> None:
        """Tell the server what is durable (Law 1) and that we live."""
        with self._lock:
            try:
                self._connection.put_copy_data(status_update(written, flushed, time.time()))
                deadline = time.monotonic() + CONNECT_TIMEOUT_S
                while self._connection.flush():
                    self._report_poll.poll(100)
                    self._connection.consume_input()
                    if time.monotonic() > deadline:
                        raise _lost("the server does not read our reports")
            except psycopg.Error as error:
                raise _lost(str(error)) from error
            self.reported_at = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._connection.finish()

    def _first_piece(self) -> bytes:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while time.monotonic() < deadline:
            count, message = self._connection.get_copy_data(1)
            if count < 0:
                raise self._ended()
            if count > KEEPALIVE_BYTES:
                return bytes(message[WAL_HEADER_BYTES:])
            if count == 0:
                self.wait(REPORT_S)
        raise _lost("the server does not send its WAL")

    def _consume(self) -> None:
        try:
            self._connection.consume_input()
        except psycopg.Error as error:
            raise _lost(str(error)) from error

    def _ended(self) -> TailraceError:
        try:
            result = self._connection.get_result()
        except psycopg.Error as error:
            return _lost(str(error))
        if result is None or result.status == pq.ExecStatus.COMMAND_OK:
            return _lost("the server ended the stream")
        return _command_error(result)


class Feedback:
    """Reports to the server on time whatever the stream's reader is busy with: a disk, a store, another query.

    A server that does not hear from us for `wal_sender_timeout` ends the connection.
    """

    def __init__(self, stream: ReplicationStream, durable: Callable[[], int]) -> None:
        """`durable` tells up to where the log is durable (Law 1)."""
        self._stream, self._durable = stream, durable
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Nothing is reported afterwards."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(REPORT_S / 2):
            if time.monotonic() < self._stream.reported_at + REPORT_S:
                continue
            try:
                self._stream.report(self._durable(), self._durable())
            except SourceError:
                return  # whoever reads the stream finds it broken too


def quote_identifier(name: str) -> str:
    """The one place identifiers are quoted for replication commands and DDL."""
    return '"' + name.replace('"', '""') + '"'


def _conninfo(dsn: str, **extra: str) -> str:
    fixed = {"connect_timeout": str(CONNECT_TIMEOUT_S), "application_name": APPLICATION, **extra}
    return make_conninfo("", **{**NETWORK, **conninfo_to_dict(dsn), **fixed})


def _bad_dsn(error: psycopg.Error) -> SetupError:
    return SetupError(
        "source.dsn",
        f"source.dsn is not a connection string: {redact(str(error).strip())}",
        hint="write postgresql://user:password@host:port/database, or key=value pairs",
    )


def _lost(text: str) -> SourceError:
    return SourceError(
        "source.disconnected",
        f"the replication stream broke: {redact(text.strip())}",
        hint="it is reconnected",
    )


def _rows(result: pq.abc.PGresult) -> list[tuple[str | None, ...]]:
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_BOTH):
        raise _command_error(result)
    return [
        tuple(None if (v := result.get_value(r, c)) is None else v.decode() for c in range(result.nfields))
        for r in range(result.ntuples)
    ]


def _command_error(result: pq.abc.PGresult) -> TailraceError:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = redact(result.error_message.decode(errors="replace").strip())
    # No state: the connection broke. Classes 08, 53 and 57: it is going down or short of something; both pass.
    if not state or state[:2] in ("08", "53", "57"):
        return _lost(text)
    match state:
        case "55006":
            return SourceError(
                "source.slot_in_use",
                f"another client reads the replication slot: {text}",
                hint="stop the other reader (see pg_stat_replication); it is retried",
            )
        case "42501":
            return SetupError("source.privilege", text, hint="grant REPLICATION and SELECT to the role")
        case "55000" | "58P01":
            return SourceError(
                "source.position_lost",
                f"the server cannot give the changes after our position any more: {text}",
                hint=REPAIR,
            )
        case "42704" if "replication slot" in text:
            return SourceError(
                "source.position_lost",
                f"the replication slot is gone: {text}",
                hint=REPAIR,
            )
        case "42704":
            return SourceError(
                "source.publication_lost",
                f"a publication was not there when changes were made: {text}",
                hint=REPAIR,
            )
        case _:
            return SourceError("source.protocol", f"the server refused: {text}", hint="see the server's log")
