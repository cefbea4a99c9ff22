"""Before the stream starts: what is wrong is named with its way out, and nothing is ever skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.postgres.connection import ReplicationStream
from tailrace.changelog import LogWriter
from tailrace.contracts import Capture
from tailrace.errors import TailraceError
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Database

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]


@pytest.fixture
def table(db: Database) -> Database:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    return db


@pytest.fixture
def role(db: Database) -> Iterator[Callable[..., str]]:
    """`role(attributes)`: a DSN of a new role."""
    name = f"role_{db.name}"

    def make(attributes: str = "") -> str:
        db.run(f"CREATE ROLE {name} LOGIN PASSWORD 'hush-hush' {attributes}")
        return f"postgresql://{name}:hush-hush@127.0.0.1:{db.server.port}/{db.name}"

    yield make
    db.drop_slots()
    db.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def refused(run: Capturing) -> TailraceError:
    error = run.failure()
    assert isinstance(error, TailraceError), error
    assert error.hint
    assert run.db.server.password not in f"{error.as_dict()}"
    assert "hush-hush" not in f"{error.as_dict()}"
    return error


def test_a_pattern_without_a_table(table: Database, capturing: Start) -> None:
    error = refused(capturing(table, tables=["public.t", "public.order"]))
    assert error.code == "source.table_missing"
    assert "'public.order'" in error.message


def test_a_slot_somebody_reads(table: Database, capturing: Start, tmp_path: Path) -> None:
    capturing(table)
    with Capturing(table, tmp_path / "other") as second:
        assert refused(second).code == "source.slot_in_use"


def test_a_slot_of_another_database(table: Database, database: Fresh, capturing: Start) -> None:
    slot = table.source().slot_name
    database().run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    assert refused(capturing(table)).code == "source.slot_foreign"


def test_a_slot_that_was_moved_ahead(table: Database, capturing: Start) -> None:
    capturing(table).stop()
    table.run(
        "INSERT INTO t VALUES (1)",
        f"SELECT pg_replication_slot_advance('{table.source().slot_name}', pg_current_wal_lsn())",
    )
    error = refused(capturing(table))
    assert error.code == "source.position_lost"
    assert "was moved" in error.message


def test_a_slot_that_is_gone(table: Database, capturing: Start) -> None:
    capturing(table).stop()
    table.drop_slots()
    assert refused(capturing(table)).code == "source.position_lost"
    assert table.value("SELECT count(*) FROM pg_replication_slots WHERE database = %s", table.name) == 0


def test_a_slot_made_before_the_log_is_read_from_its_start(table: Database, capturing: Start, tmp_path: Path) -> None:
    """As after a crash between making the slot and the first line of the log."""
    capturing(table, tables=["public.t"]).stop()
    table.drop_slots()
    table.run(
        f"SELECT pg_create_logical_replication_slot('{table.source().slot_name}', 'pgoutput')",
        "INSERT INTO t VALUES (1)",
    )
    with Capturing(table, tmp_path / "other") as run:
        assert [row["key"] for row in run.changes()] == ['{"id":1}']


@pytest.mark.parametrize(("named", "copied"), [(False, True), (True, False)])
def test_a_slot_of_ours_made_without_failover_gets_it(
    table: Database, capturing: Start, named: bool, copied: bool
) -> None:
    """One that you named is left as it is."""
    slot = table.source().slot_name
    table.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    run = capturing(table, slot=slot) if named else capturing(table)
    table.run("INSERT INTO t VALUES (1)")
    assert [row["op"] for row in run.changes()] == ["c"]
    assert table.value("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", slot) is copied


def test_another_server(table: Database, database: Fresh, capturing: Start) -> None:
    capturing(table).stop()
    other = database(16)
    other.run("CREATE TABLE t (id int PRIMARY KEY)")
    error = refused(capturing(other))
    assert error.code == "source.wrong_server"
    assert "system" in error.message


def test_another_database_of_the_same_server(table: Database, database: Fresh, capturing: Start) -> None:
    capturing(table).stop()
    other = database()
    other.run("CREATE TABLE t (id int PRIMARY KEY)")
    assert refused(capturing(other)).code == "source.wrong_server"


def test_a_server_restored_to_before_the_log(table: Database, capturing: Start, tmp_path: Path) -> None:
    run = capturing(table)
    run.stop()
    resume = dict(run.log.state().resume or {})
    log = LogWriter(tmp_path / "log", table.name)
    log.append(Capture(None, {**resume, "lsn": "FFFF/0"}))
    log.close()
    error = refused(capturing(table))
    assert error.code == "source.wrong_server"
    assert "FFFF/0" in error.message


@pytest.mark.parametrize("suffix", ["", "_inserts"])
def test_a_publication_that_is_gone(table: Database, capturing: Start, suffix: str) -> None:
    """Making it anew would leave out what was changed meanwhile, without a word from PostgreSQL 18."""
    capturing(table).stop()
    name = table.source().publication_name + suffix
    table.run(f"DROP PUBLICATION {name}", "INSERT INTO t VALUES (1)")
    error = refused(capturing(table))
    assert error.code == "source.publication_lost"
    assert repr(name) in error.message


def test_a_publication_of_the_users_is_used_as_it_is(
    table: Database, capturing: Start, role: Callable[..., str]
) -> None:
    """By a role that owns nothing and may only replicate."""
    table.run("CREATE TABLE unpublished (id int PRIMARY KEY)", "CREATE PUBLICATION mine FOR TABLE t WHERE (id > 1)")
    before = table.rows("SELECT * FROM pg_publication_rel")
    run = capturing(table, dsn=role("REPLICATION"), publication="mine", tables=["public.t"])
    table.run("INSERT INTO t VALUES (1), (2)", "INSERT INTO unpublished VALUES (1)")
    assert [row["key"] for row in run.changes()] == ['{"id":2}']
    assert table.rows("SELECT * FROM pg_publication_rel") == before


def test_a_publication_of_the_users_that_lacks_a_table(table: Database, capturing: Start) -> None:
    table.run("CREATE TABLE more (id int PRIMARY KEY)", "CREATE PUBLICATION mine FOR TABLE t")
    error = refused(capturing(table, publication="mine"))
    assert error.code == "source.publication"
    assert "ADD TABLE public.more" in error.hint


@pytest.mark.parametrize("attributes", ["", "REPLICATION"])
def test_a_role_without_privileges(
    table: Database, capturing: Start, role: Callable[..., str], attributes: str
) -> None:
    """One that may not replicate, and one that may but owns neither the tables nor a publication of them."""
    assert refused(capturing(table, dsn=role(attributes))).code == "source.privilege"


def test_a_server_without_logical_wal(capturing: Start) -> None:
    with PostgresServer(18, settings={"wal_level": "replica"}) as server, Database(server) as db:
        db.run("CREATE TABLE t (id int PRIMARY KEY)")
        error = refused(capturing(db))
        assert error.code == "source.wal_level"
        assert "wal_level = logical" in error.hint


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"user": "postgres", "password": "wrong-hush-hush"}, "source.auth"),
        ({"dbname": "no_such_database"}, "source.database_missing"),
        ({"port": "1"}, "source.unreachable"),
        ({"host": "no-such-host.invalid"}, "source.unreachable"),
        ({"sslmode": "require"}, "source.tls"),
    ],
)
def test_connections_that_fail(table: Database, capturing: Start, change: dict[str, str], code: str) -> None:
    dsn = psycopg.conninfo.make_conninfo(table.dsn, **change)
    assert refused(capturing(table, dsn=dsn)).code == code


def test_the_password_apart_from_the_dsn(table: Database, capturing: Start, role: Callable[..., str]) -> None:
    dsn = role("SUPERUSER").replace(":hush-hush@", "@")
    run = capturing(table, dsn=dsn, password="hush-hush", tls={"mode": "prefer"})
    table.run("INSERT INTO t VALUES (1)")
    assert len(run.changes()) == 1
    assert "hush-hush" not in repr(table.source(dsn=dsn, password="hush-hush"))


def test_a_server_that_goes_away_is_a_lost_connection(table: Database, capturing: Start) -> None:
    run = capturing(table)
    _terminate_readers(table)
    error = refused(run)
    assert error.code == "source.disconnected"


def _terminate_readers(db: Database) -> None:
    query: Any = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s"
    db.rows(query, db.name)


def _reader(db: Database, application: str) -> ReplicationStream:
    """Somebody who reads the slot and does not go away."""
    stream = ReplicationStream(db.dsn, application)
    stream.start(db.source().slot_name, 0, (db.source().publication_name,))
    return stream


def test_a_dead_reader_of_our_own_is_ended(table: Database, capturing: Start) -> None:
    """As after a crash whose connection the server still holds for alive."""
    first = capturing(table)
    [(name,)] = _readers(table)
    first.stop()
    with closing(_reader(table, name)):
        run = capturing(table)
        table.run("INSERT INTO t VALUES (1)")
        assert [row["key"] for row in run.changes()] == ['{"id":1}']


def test_a_reader_of_another_log_or_program_is_left_alone(table: Database, capturing: Start, tmp_path: Path) -> None:
    first = capturing(table)
    [(name,)] = _readers(table)
    first.stop()
    with closing(_reader(table, name)), Capturing(table, tmp_path / "another log") as run:
        assert refused(run).code == "source.slot_in_use"
        assert _readers(table) == [(name,)]
    eventually(lambda: not _readers(table))
    with closing(_reader(table, "pg_recvlogical")):
        assert refused(capturing(table)).code == "source.slot_in_use"
        assert _readers(table) == [("pg_recvlogical",)]


def _readers(db: Database) -> list[Any]:
    query = "SELECT application_name FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid"
    return db.rows(f"{query} WHERE database = %s", db.name)
