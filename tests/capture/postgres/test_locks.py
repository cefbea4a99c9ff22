"""Locks and a store that others hold: they are waited for beside the stream, and the server goes on hearing from us."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from tailrace.errors import SourceError
from tailrace.testing.waiting import eventually
from tests.capture.postgres.ddl import Start, started
from tests.capture.running import Database, TapProcess

LONG = timedelta(seconds=3)
"""Longer than what comes between two reports."""


@pytest.fixture
def tables(db: Database) -> Database:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE locked (id int PRIMARY KEY)")
    return db


def last_reply(db: Database) -> datetime:
    query = (
        "SELECT reply_time FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid "
        "WHERE s.database = %s"
    )
    return eventually(lambda: db.value(query, db.name))  # type: ignore[no-any-return]


def is_heard(db: Database) -> bool:
    """Whether the server gets reports for a while."""
    first = last_reply(db)
    return eventually(lambda: last_reply(db) >= first + LONG)


def test_a_locked_table_holds_up_nobody_but_new_ones(tables: Database, capturing: Start, look: None) -> None:
    run = started(capturing, tables)
    with tables.connect() as owner:
        owner.execute("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        tables.run("CREATE TABLE later (id int PRIMARY KEY)")
        [warning] = eventually(lambda: run.stream._catalog_watch.warnings)
        assert "such locks are held by process" in warning
        assert "on locked" in warning
        tables.run("INSERT INTO t VALUES (1)")
        assert [row["key"] for row in run.changes()] == ['{"id":1}']
        owner.execute("COMMIT")
    eventually(lambda: run.stream.needs_snapshot)
    assert [need.table for need in run.stream.needs_snapshot] == ["later"]
    assert run.stream._catalog_watch.warnings == []


def test_a_publication_that_somebody_has_locked_at_the_start(tables: Database, capturing: Start) -> None:
    capturing(tables).stop()
    tables.run("CREATE TABLE later (id int PRIMARY KEY)")
    with tables.connect() as owner:
        owner.execute("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        error = capturing(tables).failure()
    assert isinstance(error, SourceError)
    assert error.code == "source.locked"
    assert "on locked" in error.message


def test_the_server_hears_from_us_while_the_store_is_busy(tables: Database, capturing: Start, look: None) -> None:
    run = started(capturing, tables)
    with closing(sqlite3.connect(run.store.where, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        tables.run("CREATE TABLE later (id int PRIMARY KEY)")  # which the store is to remember
        joined = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'later'"
        eventually(lambda: tables.value(joined))
        assert is_heard(tables)
        other.execute("ROLLBACK")
    tables.run("INSERT INTO t VALUES (1)")
    assert [row["key"] for row in run.changes()] == ['{"id":1}']


def test_a_slot_that_waits_for_open_transactions_says_for_whom(
    tables: Database, tap: Callable[..., TapProcess]
) -> None:
    with tables.connect() as owner:
        owner.execute("BEGIN; INSERT INTO t VALUES (1)")
        stopped = tap(tables)
        [warning] = eventually(lambda: stopped.status().get("warnings", []), 60)
        assert f"process {owner.info.backend_pid} " in warning
        stopped.process.terminate()
        assert stopped.wait() == 0
        running = tap(tables)
        eventually(lambda: running.status().get("warnings", []), 60)
        owner.execute("COMMIT")
        running.until("running")
        assert running.changes() == []
