"""A database of the test's own, and captures of it: in a thread, and as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.snapshots import Admissions
from tailrace.capture.tap import capture
from tailrace.changelog import LogReader, LogWriter, manifest, read_slice
from tailrace.changelog.storage import Directory
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger
from tailrace.errors import LogError
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually

Change = dict[str, Any]


class Database:
    """A fresh database; its slots go with it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"db_{uuid.uuid4().hex[:10]}"

    def __enter__(self) -> Self:
        self._admin(f"CREATE DATABASE {self.name}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_slots()
        self._admin(f"DROP DATABASE {self.name} WITH (FORCE)")

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str, *parameters: Any) -> list[Any]:
        with self.connect() as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def value(self, query: str, *parameters: Any) -> Any:
        [(value,)] = self.rows(query, *parameters)
        return value

    def source(self, **settings: Any) -> PostgresSource:
        fields = {"id": self.name, "dsn": self.dsn, "tables": ["public.*"], **settings}
        return PostgresSource.model_validate(fields)

    def slot_position(self) -> int:
        """The slot's confirmed position as a number."""
        query = "SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots WHERE slot_name = %s"
        return int(self.value(query, self.source().slot_name))

    def drop_slots(self) -> None:
        """End the slots' readers and drop the slots."""
        query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
        with psycopg.connect(self.server.dsn(), autocommit=True) as admin:
            for (slot,) in admin.execute(query, [self.name]).fetchall():
                eventually(lambda slot=slot: _drop(admin, slot))  # type: ignore[misc]

    def _admin(self, statement: str) -> None:
        with psycopg.connect(self.server.dsn(), autocommit=True) as admin:
            admin.execute(statement.encode())


class Capturing:
    """Runs `capture` in a thread. Use as a context manager; `stop` raises what the capture raised."""

    def __init__(
        self,
        db: Database,
        path: Path,
        *,
        memory_bytes: int = 16 << 20,
        group_commit_s: float = 0.0,
        writer: type[LogWriter] = LogWriter,
        ledger: type[SnapshotLedger] = SnapshotLedger,
        pause: Callable[[], None] = lambda: None,
        store: Store | None = None,
        **source: Any,
    ) -> None:
        self.db, self.path = db, path
        self.log = writer(path, db.name)
        self.source = db.source(**source)
        self.store = store or Store(path.with_name("control.db"))
        self.ledger = ledger(self.store)
        self.admissions = Admissions(self.ledger, self.source, self.log)
        self.stream = self.source.open(memory_bytes, group_commit_s, self.store)
        self._pause = pause
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.error is not None or self.stream.vitals.durable_lsn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def stop(self) -> None:
        """Drain and end; raises the capture's error."""
        self._end()
        if self.error is not None:
            raise self.error

    def failure(self, timeout: float = 30.0) -> BaseException:
        """The error the capture ends with."""
        return eventually(lambda: self.error, timeout)  # type: ignore[return-value]

    def changes(self) -> list[Change]:
        """Every change committed until now, once all of it is in the log."""
        if self._thread.is_alive():
            mark(self.db, self.path, lambda: self.error is None)
        return logged(self.path)

    def _run(self) -> None:
        try:
            capture(self.stream, self.log, self.admissions, self._pause)
        except BaseException as error:
            self.error = error

    def _end(self) -> None:
        self.stream.stop()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the capture does not end"
        self.stream.close()
        self.log.close()


class TapProcess:
    """`python -m tailrace.capture.tap`, as the supervisor starts it."""

    def __init__(
        self, db: Database, folder: Path, *, parent: int | None = None, status: str = "status.json", **settings: Any
    ) -> None:
        self.db, self.path, self.status_path = db, folder / "log", folder / status
        config = {"id": db.name, "dsn": db.dsn, "tables": ["public.*"], **settings.pop("config", {})}
        self._request = {
            "type": "postgres",
            "config": config,
            "log_path": str(self.path),
            "store": str(folder / "control.db"),
            "status_path": str(self.status_path),
            "parent": os.getpid() if parent is None else parent,
            "memory_bytes": 16 << 20,
            "group_commit_s": 0.01,
            "segment_bytes": 1 << 20,
            "retention_bytes": 1 << 30,
            "retention_age_s": 3600.0,
            "retry_initial_s": 0.1,
            "retry_max_s": 0.5,
            "retry_jitter": 0.1,
            "retry_multiplier": 2.0,
            **settings,
        }
        self.status_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tailrace.capture.tap"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self._request))
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def status(self) -> dict[str, Any]:
        """Its last word; empty before the first."""
        try:
            status: dict[str, Any] = json.loads(self.status_path.read_text())
        except FileNotFoundError:
            return {}
        return status

    def until(self, state: str, timeout: float = 60.0) -> dict[str, Any]:
        eventually(lambda: self.status().get("state") == state, timeout)
        return self.status()

    def wait(self) -> int:
        return self.process.wait(60)

    def changes(self) -> list[Change]:
        mark(self.db, self.path, lambda: self.process.poll() is None)
        return logged(self.path)


def mark(db: Database, path: Path, alive: Callable[[], bool]) -> None:
    """Commit a logical message and wait until the log has it, and with it everything committed before."""
    name = f"mark-{uuid.uuid4().hex}"
    db.value("SELECT pg_logical_emit_message(true, %s, 'x')::text", name)

    def arrived() -> bool:
        assert alive(), "the capture has ended"
        return name in {schema.table for schema in LogReader(path).schemas.values()}

    eventually(arrived, 120)


def logged(path: Path) -> list[Change]:
    """The log's changes in order, without marks."""
    reader = LogReader(path)
    batches = (batch for piece in reader.slices(reader.earliest, reader.end, 1) for batch in read_slice(piece))
    return [row for batch in batches for row in batch.to_pylist() if not row["table"].startswith("mark-")]


def resume_position(path: Path) -> int:
    """The log's last durable position as a number; 0 where there is none."""
    storage = Directory(path)
    found = 0
    with suppress(LogError):
        for entry in manifest.Tail(storage).entries():
            if not isinstance(entry, manifest.Claim) and entry.resume:
                high, low = entry.resume["lsn"].split("/")
                found = (int(high, 16) << 32) | int(low, 16)
    return found


def folded(rows: list[Change]) -> dict[tuple[str, str], Any]:
    """The rows a table has after the changes: (table, key) → row."""
    state: dict[tuple[str, str], Any] = {}
    for row in rows:
        place = (row["table"], row["key"])
        if row["op"] == "t":
            state = {key: value for key, value in state.items() if key[0] != row["table"]}
        elif row["op"] == "d":
            del state[place]
        elif row["op"] in "cu":
            assert (place in state) is (row["op"] == "u"), f"{row['op']} of {place} is out of place"
            state[place] = {**state.get(place, {}), **json.loads(row["after"])}
    return state


def _drop(admin: psycopg.Connection[Any], slot: str) -> bool:
    query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active"
    admin.execute(query, [slot])
    with suppress(psycopg.errors.ObjectInUse):
        admin.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        return True
    return False
