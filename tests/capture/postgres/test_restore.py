"""A server goes back to a backup: its WAL grows past the log's position with other changes in it, and nobody may be
fooled by that."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tailrace.capture.postgres import catalog_watch
from tailrace.capture.postgres.connection import ReplicationStream
from tailrace.capture.postgres.kernel import EPOCH_US
from tailrace.capture.postgres.reached import Reached
from tailrace.capture.postgres.restore import has_commit
from tailrace.errors import SourceError
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Database, TapProcess, logged, resume_position
from tests.capture.snapshot_process import Planner, config_of
from tests.capture.snapshotting import contents

BEFORE = "INSERT INTO t SELECT n, 'before' FROM generate_series(1, 10) n"
LOST = ("DELETE FROM t WHERE id = 1", "INSERT INTO t SELECT n, 'lost' FROM generate_series(11, 2000) n")
AFTER = ("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (11, 'after')")
PAGE, SEGMENT = 8192, 16 << 20


@dataclass
class Restored:
    """Databases of a server after it went back to a backup, each with a folder that has its log."""

    databases: Mapping[str, Database]
    folder: Path
    first_look: dict[str, Any]
    """The error of the tap of `early`, which looked while the server's WAL was short of the log's position."""


class Lasting(Database):
    """A database that goes with its server."""

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    """`early`: looked at at once, and again later. `late`: looked at later. `quiet`: nothing of it was lost, only WAL
    that does not concern it."""
    folder = tmp_path_factory.mktemp("restored")
    with PostgresServer(18) as server:
        databases = {name: Lasting(server).__enter__() for name in ("early", "late", "quiet")}
        for name, db in databases.items():
            db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
            _capture(db, folder / name, BEFORE)
        backup = _back_up(server)
        for name in ("early", "late"):
            _capture(databases[name], folder / name, *LOST)
        _idle(databases["quiet"], folder / "quiet")
        _restore(server, backup)
        for db in databases.values():
            db.run(*AFTER)
        with TapProcess(databases["early"], folder / "early") as tap:
            assert tap.wait() == 1
            first_look = tap.status()["error"]
        _grow(databases["early"], max(resume_position(folder / name / "log") for name in databases))
        yield Restored(databases, folder, first_look)


def test_a_verdict_stands_until_a_repair(restored: Restored) -> None:
    db, folder = restored.databases["early"], restored.folder / "early"
    assert restored.first_look["code"] == "source.wrong_server"
    assert "the server's WAL ends at" in restored.first_look["message"]
    assert "--repair" in restored.first_look["hint"]
    config = config_of(db)
    with TapProcess(db, folder, config=config) as later:
        assert later.wait() == 1
        assert later.status()["error"] == restored.first_look
    with Planner(config, folder) as planner:
        planner.ask_for_repair()
        with TapProcess(db, folder, config=config) as tap:
            tap.until("running")
            planner.work()
            assert contents(tap.changes()) == _rows(db)
    with TapProcess(db, folder, config=config) as tap:
        tap.until("running")


def test_it_is_found_late_too(restored: Restored) -> None:
    """The server's WAL has grown past the log's position: only what is in it tells."""
    db, folder = restored.databases["late"], restored.folder / "late"
    for _ in range(2):
        with Capturing(db, folder / "log") as run:
            error = run.failure()
        assert isinstance(error, SourceError)
        assert error.code == "source.wrong_server"
        assert "the log has a commit at" in error.message
        assert "--repair" in error.hint


def test_who_lost_nothing_goes_on_where_the_newest_change_ends(restored: Restored) -> None:
    """What was committed since lies before the log's position: that had only passed WAL that is no more."""
    db, folder = restored.databases["quiet"], restored.folder / "quiet"
    with Capturing(db, folder / "log") as run:
        assert contents(run.changes()) == _rows(db)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("lsn", [PAGE + 1000, PAGE * 5 - 36, SEGMENT * 3 - 40, SEGMENT * 3 - 4])
def test_a_commit_is_known_by_its_time(lsn: int, order: str) -> None:
    """Wherever pages and segments begin, in either byte order."""
    time, size = 812_345_678_901_234, 80
    body = struct.pack(f"{order}I", size) + bytes(30) + struct.pack(f"{order}q", time)
    wal = _paged((body + bytes(size - len(body)) + b"next").ljust(3 * PAGE, b"\0"), lsn)
    assert has_commit(wal, Reached(lsn, lsn, time + EPOCH_US, "1"), PAGE, SEGMENT)
    assert not has_commit(wal, Reached(lsn, lsn, time + EPOCH_US + 1, "1"), PAGE, SEGMENT)


def test_wal_that_the_server_no_longer_has(db: Database) -> None:
    """Then nothing is proven, in either direction."""
    with closing(ReplicationStream(db.dsn)) as stream:
        assert stream.read_wal(1 << 10, "1") is None


def _capture(db: Database, folder: Path, *statements: str) -> None:
    with Capturing(db, folder / "log") as run:
        db.run(*statements)
        run.changes()
        run.stop()


def _idle(db: Database, folder: Path) -> None:
    """Let the log's position pass WAL that has no row for it, and take in a schema change that no row tells."""
    with pytest.MonkeyPatch.context() as patch, Capturing(db, folder / "log") as run:
        patch.setattr(catalog_watch, "LOOK_S", 0.0)
        _grow(db, resume_position(folder / "log") + (1 << 20))
        db.run("ALTER TABLE t ADD lost int")
        end = int(db.value("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8"))
        eventually(lambda: resume_position(folder / "log") >= end)
        eventually(lambda: logged(folder / "log")[-1]["op"] == "s")
        run.stop()


def _grow(db: Database, position: int) -> None:
    """Unrelated WAL, until the server's is past a position."""
    with _elsewhere(db) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS filler (t text)")
        while connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8").fetchone()[0] <= position:
            connection.execute("INSERT INTO filler SELECT repeat('x', 900) FROM generate_series(1, 500)")


def _elsewhere(db: Database) -> Any:
    """A connection to another database of the server."""
    other = Lasting(db.server)
    other.name = "postgres"
    return other.connect()


def _back_up(server: PostgresServer) -> Path:
    """As a snapshot of its storage is: with its slots."""
    server.stop()
    backup = server.directory / "backup"
    subprocess.run(["cp", "-a", str(server.data), str(backup)], check=True)
    server.start()
    return backup


def _restore(server: PostgresServer, backup: Path) -> None:
    server.stop()
    shutil.rmtree(server.data)
    backup.rename(server.data)
    server.start()


def _rows(db: Database) -> dict[tuple[str, str], Any]:
    return {("t", f'{{"id":{key}}}'): {"id": key, "v": value} for key, value in db.rows("SELECT id, v FROM t")}


def _paged(stream: bytes, lsn: int) -> bytes:
    """WAL from `lsn` on that carries the bytes: every page and segment begins with a header."""
    wal, left = b"", PAGE - lsn % PAGE
    while stream:
        wal, stream = wal + stream[:left], stream[left:]
        header = 40 if (lsn + len(wal)) % SEGMENT == 0 else 24
        wal, left = wal + b"\xff" * header, PAGE - header
    return wal
