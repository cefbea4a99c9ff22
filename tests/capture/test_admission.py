"""Chunks meet the stream: the log, folded by key, equals the source, whatever happens between read and admission."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.snapshot.visibility import Visibility
from tailrace.contracts import ChunkId, Extent
from tailrace.testing.waiting import eventually
from tests.capture.running import Change, Database, logged, mark
from tests.capture.snapshotting import BIG, EXTERNAL, ITEMS, Snapshotting, contents, same, source_rows, stage


def test_a_row_changed_after_it_was_read_is_left_out(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id = 5", "DELETE FROM items WHERE id = 6")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert [row["op"] for row in found if row["key"] in ('{"id":5}', '{"id":6}')] == ["u", "d"]


def test_a_commit_that_waits_for_a_standby_counts_as_unseen(db: Database, tmp_path: Path) -> None:
    """It is in the log long before any read can see it; comparing positions would bring the old row back."""
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'old'), (2, 'b', 'old')")
    with Snapshotting(db, tmp_path) as run:
        with waiting_commit(db, "UPDATE items SET v = 'new' WHERE id = 1"):
            eventually(lambda: run.capturing.stream.vitals.rows == 1)
            with psycopg.connect(db.dsn) as later:  # so that it is not the newest transaction either
                later.execute("SELECT pg_current_xact_id()")
                later.rollback()
            run.begin()
            run.work()
            found = logged(run.capturing.path)
            assert source_rows(db)[0]["v"] == "old"  # the read could not see it
        assert [row["op"] for row in found if row["key"] == '{"id":1}'] == ["u"]
        assert same(run.capturing.changes(), db)


def test_what_an_unchanged_value_owes_is_read_again(db: Database, tmp_path: Path) -> None:
    """The stream leaves the large value out, and the chunk's row is stale: without another read it is lost."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 15) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert next(row for row in found if row["op"] == "u")["unchanged"] == ["big"]
    assert same(found, db)


def test_a_key_that_moves_after_it_was_read(db: Database, tmp_path: Path) -> None:
    """Its new key was never read, and the large value came with neither change."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 15) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET id = 100 WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)


def test_a_row_that_moves_from_an_unread_chunk_into_one_that_was_read(db: Database, tmp_path: Path) -> None:
    """Neither read has it: the first came too early, the second too late. And the stream left its large value out."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 20) n")
    with Snapshotting(db, tmp_path) as run:
        [table] = run.ledger.tables(run.request("items"))
        run.ledger.plan(table, [Extent(high=("10",)), Extent(low=("10",))], complete=True)
        [(first, low), (second, high)] = run.ledger.chunks(table.run, "planned")
        run.ledger.stage([run.source.read_chunk(first, low, tmp_path)])
        eventually(lambda: run.ledger.count(table.run, "admitted") == 1)
        db.run("UPDATE items SET id = 0 WHERE id = 15")
        run.ledger.stage([run.source.read_chunk(second, high, tmp_path)])
        found = run.finish()
    assert same(found, db)


def test_a_row_that_is_owed_and_moves_before_it_is_read_again(db: Database, tmp_path: Path) -> None:
    """The debt's own read finds nothing under the old key: the new one is owed from then on."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 15) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        [active] = run.ledger.runs(run.source.id, "active")
        run.admitting = True
        eventually(lambda: run.ledger.count(active.id, "staged") == 0)
        assert run.ledger.owed(active.id, "public", "items") == {'{"id":5}'}
        db.run("UPDATE items SET id = 100 WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        found = run.finish()
    assert same(found, db)
    assert contents(found)["items", '{"id":100}'] == {"id": 100, "big": BIG, "v": "new"}


NEW_KEY = "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (code)"


@pytest.mark.parametrize("alter", [NEW_KEY, "ALTER TABLE items DROP CONSTRAINT items_pkey"], ids=["another", "none"])
def test_a_key_that_changes_while_values_are_owed(db: Database, tmp_path: Path, alter: str) -> None:
    """What is owed is known by a key that names no row any more: the table is read anew, by the one it has."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 15) n")
    db.run("ALTER TABLE items ADD code int NOT NULL GENERATED BY DEFAULT AS IDENTITY (START 100)")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        [active] = run.ledger.runs(run.source.id, "active")
        run.admitting = True
        eventually(lambda: run.ledger.count(active.id, "staged") == 0)
        assert run.ledger.owed(active.id, "public", "items") == {'{"id":5}'}
        db.run(alter, "INSERT INTO items VALUES (16, 'b', 'later')")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        found = run.finish()
        assert run.ledger.run(active.id).state == "done"
    assert _newest_rows(found) == _by_id(source_rows(db))


def test_a_key_that_changes_between_plan_and_read(db: Database, tmp_path: Path) -> None:
    """Bounds of one key say nothing about another: chunks by both would leave rows out."""
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 35) n")
    db.run(
        "ALTER TABLE items ADD code int",
        "UPDATE items SET code = 100 - id",
        "ALTER TABLE items ALTER code SET NOT NULL",
    )
    with Snapshotting(db, tmp_path) as run:
        [table] = run.ledger.tables(run.request("items"))
        extents = run.source.plan_chunks("public", "items", None, 10, 2)
        run.ledger.plan(table, extents, complete=False)
        db.run(NEW_KEY, "INSERT INTO items VALUES (36, 'b', 'later', 200)")
        found = run.finish()
        assert run.ledger.run(table.run).state == "done"
    assert _newest_rows(found) == _by_id(source_rows(db))
    assert {row["key"].partition(":")[0] for row in found if row["op"] in "cur"} == {'{"code"'}


def _newest_rows(found: list[Change]) -> list[dict[str, Any]]:
    """The rows as the changes of the newest key tell them, and what came after a reset."""
    resets = [place for place, row in enumerate(found) if row["op"] == "t"]
    kept = found[resets[-1] :] if resets else [row for row in found if row["key"] and "code" in row["key"]]
    return _by_id(json.loads(row["after"]) for row in kept if row["op"] in "cur")


def _by_id(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for _, row in sorted({row["id"]: row for row in rows}.items())]


def test_a_truncate_after_the_read(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("TRUNCATE items", "INSERT INTO items VALUES (3, 'b', 'new')")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert "r" not in {row["op"] for row in found}


def test_a_chunk_of_an_older_schema_is_read_again(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 5) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("ALTER TABLE items ADD extra int DEFAULT 7", "UPDATE items SET v = 'new' WHERE id = 2")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert all("extra" in json.loads(row["after"]) for row in found if row["op"] in "ur")


def test_a_table_without_a_key_is_replaced_as_a_whole(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE events (n int)", "INSERT INTO events SELECT generate_series(1, 25)")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("INSERT INTO events VALUES (26), (27)")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert [row["op"] for row in found] == ["c", "c", "t", *["r"] * 25, "c", "c"]
    after_reset = [json.loads(row["after"])["n"] for row in found[3:]]
    assert after_reset == list(range(1, 28))
    assert len({row["tx_id"] for row in found[2:]}) == 1  # the reset is one transaction: no reader sees half of it
    assert len({(row["position"], row["tx_ordinal"]) for row in found}) == len(found)  # each with an id of its own


def test_a_chunk_of_another_server_is_read_again(
    db: Database, database: Callable[..., Database], tmp_path: Path
) -> None:
    """Whatever its positions are: here they would let it in at once."""
    other = database(16)
    for each, text in ((db, "ours"), (other, "theirs")):
        each.run(ITEMS, f"INSERT INTO items SELECT n, 'b', '{text}' FROM generate_series(1, 5) n")
    with Snapshotting(db, tmp_path) as run:
        [table] = run.ledger.tables(run.request("items"))
        run.ledger.plan(table, [Extent()], complete=True)
        [(chunk, extent)] = run.ledger.chunks(table.run, "planned")
        schema = run.source.read_chunk(chunk, extent, tmp_path / "staged").schema
        foreign = other.source().read_chunk(chunk, extent, tmp_path / "staged")
        run.ledger.stage([replace(foreign, since="FFFFFFFF/0", after="0/0", schema=schema)])
        eventually(lambda: run.ledger.count(table.run, "planned") == 1)
        found = run.finish()
    assert same(found, db)


@pytest.mark.parametrize(
    ("origin", "home"),
    [("7/2", True), ("7/", True), ("7/1", False), ("8/2", False), ("", False)],
)
def test_where_a_chunk_is_at_home(origin: str, home: bool) -> None:
    """On the log's server, and on its timeline where the read could tell."""
    assert PostgresSource.is_home(origin, {"system": "7", "timeline": "2", "lsn": "0/1"}) is home
    assert not PostgresSource.is_home(origin, {})


def test_a_read_says_what_it_saw(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS)
    with db.connect() as other, other.transaction():
        running = int(other.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0])
        db.value("SELECT pg_current_xact_id()::text")
        staged = db.source().read_chunk(ChunkId("run", "public", "items", 0), Extent(), tmp_path)
    sight = Visibility.parse(staged.seen)
    assert running in sight.running
    assert sight.missed(running)
    assert not sight.missed(running - 1)


@pytest.mark.parametrize(
    ("seen", "xid", "missed"),
    [
        ("100:105:102", 101, False),
        ("100:105:102", 102, True),
        ("100:105:102", 104, False),
        ("100:105:102", 105, True),
        ("standby 100:105:", 103, True),
        ("standby 100:105:", 99, False),
        ("4294967290:4294967300:4294967294", 4294967294, True),  # the stream's ids have 32 bits
        ("4294967290:4294967300:4294967297", 1, True),
        ("4294967290:4294967300:", 2, False),
        ("4294967290:4294967300:", 5, True),
        ("4294967290:4294967300:", 4294967290, False),
    ],
)
def test_which_transactions_a_read_missed(seen: str, xid: int, missed: bool) -> None:
    assert Visibility.parse(seen).missed(xid) is missed


@contextmanager
def waiting_commit(db: Database, statement: str) -> Iterator[None]:
    """The statement's commit is durable and waits for a standby that never answers, until the block ends."""

    def commit() -> None:
        with psycopg.connect(db.dsn, autocommit=True) as writer:
            writer.execute(statement.encode())

    db.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    thread = threading.Thread(target=commit, daemon=True)
    try:
        eventually(lambda: db.value("SHOW synchronous_standby_names") == "nobody")
        thread.start()
        eventually(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1)
        yield
    finally:
        db.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        thread.join(30)
