"""Rows of a partition that is detached, dropped or truncated: the stream has no deletes of them, and yet they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.testing.waiting import eventually
from tests.capture.running import Database, mark
from tests.capture.snapshotting import BIG, Snapshotting, contents, same, stage

ITEMS = (
    "CREATE TABLE items (id int PRIMARY KEY, big text, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE items_low PARTITION OF items FOR VALUES FROM (0) TO (20)",
    "CREATE TABLE items_high PARTITION OF items FOR VALUES FROM (20) TO (100)",
    "ALTER TABLE items_low ALTER big SET STORAGE EXTERNAL",
    "ALTER TABLE items_high ALTER big SET STORAGE EXTERNAL",
    f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 50) n",
)
TRUNCATED = "partition rewritten or truncated"
DETACH = "ALTER TABLE items DETACH PARTITION items_low"


@pytest.fixture
def snapshotting(db: Database, tmp_path: Path, look: None) -> Callable[..., Snapshotting]:
    """A capture of `items` and only of it: what is detached is not captured by itself."""

    def start(**settings: str) -> Snapshotting:
        db.run(*ITEMS)
        return Snapshotting(db, tmp_path, tables=["public.items"], snapshot=settings)

    return start


@pytest.mark.parametrize("statement", [DETACH, f"{DETACH} CONCURRENTLY", "DROP TABLE items_low"])
def test_they_go_and_all_others_stay(db: Database, snapshotting: Callable[..., Snapshotting], statement: str) -> None:
    """Also what is written meanwhile, large values that the stream leaves out, and a row that moves."""
    with snapshotting() as run:
        run.begin()
        assert same(run.finish(), db)
        db.run(statement)
        _requested(run, "partition detached")
        stage(run)
        db.run(
            "UPDATE items SET v = 'new' WHERE id = 30",
            "UPDATE items SET id = 99 WHERE id = 40",
            "DELETE FROM items WHERE id = 50",
            "INSERT INTO items VALUES (60, 'b', 'new')",
        )
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert len(contents(found)) == 31
    place = [row["op"] for row in found].index("t")
    assert len({row["tx_id"] for row in found[place:]}) == 1, "no reader sees a part of it"


def test_what_was_read_before_does_not_bring_them_back(db: Database, snapshotting: Callable[..., Snapshotting]) -> None:
    """A chunk of another run, read before the partition went and staged after its rows did."""
    with snapshotting() as run:
        run.begin()
        stage(run)
        [old] = run.ledger.runs(run.source.id, "active")
        db.run("DROP TABLE items_low")
        _requested(run, "partition detached")
        [reset] = [each for each in run.ledger.runs(run.source.id, "active") if each.id != old.id]
        [(chunk, extent)] = run.ledger.chunks(reset.id, "planned")
        held = [each for each in run.ledger.staged(run.source.id) if each.chunk.run == old.id]
        for each in held:
            run.ledger.discard(each)
        run.ledger.stage([run.source.read_chunk(chunk, extent, Path(held[0].file).parent)])
        run.admitting = True
        eventually(lambda: run.ledger.run(reset.id).state == "done")
        run.ledger.stage(held)  # read long ago
        eventually(lambda: run.ledger.count(old.id, "staged") == 0)
        assert run.ledger.count(old.id, "admitted") == 0
        found = run.finish()
    assert same(found, db)
    assert len(contents(found)) == 31


def test_they_stay_where_that_is_wanted(db: Database, snapshotting: Callable[..., Snapshotting]) -> None:
    with snapshotting(detached_partitions="keep") as run:
        run.begin()
        run.finish()
        db.run("TRUNCATE items_low", "DROP TABLE items_low")
        _looked(run)
        assert not run.snapshots.busy
        assert len(contents(run.capturing.changes())) == 50


def test_a_look_that_sees_one_go_and_another_come(db: Database, snapshotting: Callable[..., Snapshotting]) -> None:
    with snapshotting() as run:
        run.begin()
        run.finish()
        db.run("CREATE TABLE other (LIKE items INCLUDING ALL)", "INSERT INTO other VALUES (7, 'b', 'came')")
        db.run(f"{DETACH}; ALTER TABLE items ATTACH PARTITION other FOR VALUES FROM (0) TO (20)")
        _requested(run, "partition detached")
        found = run.finish()
    assert same(found, db)
    assert contents(found)["items", '{"id":7}'] == {"id": 7, "big": "b", "v": "came"}


@pytest.mark.parametrize("major", [15, 18])
def test_a_partition_that_is_truncated(
    database: Callable[..., Database], tmp_path: Path, look: None, major: int
) -> None:
    """PostgreSQL publishes the truncate of a whole table, and of a partition nothing. What came meanwhile stays."""
    db = database(major)
    db.run(*ITEMS)
    with Snapshotting(db, tmp_path, tables=["public.items"]) as run:
        run.begin()
        assert same(run.finish(), db)
        _looked(run)
        db.run("TRUNCATE items_low", "INSERT INTO items VALUES (3, 'b', 'new')")
        _requested(run, TRUNCATED)
        found = run.finish()
        assert same(found, db)
        assert len(contents(found)) == 32


@pytest.mark.parametrize("before", ["TRUNCATE items", "TRUNCATE items; INSERT INTO items VALUES (1)", "VACUUM items"])
def test_what_is_no_truncate_of_a_partition(
    db: Database, snapshotting: Callable[..., Snapshotting], before: str
) -> None:
    """The truncate of the whole table is in the stream; a partition that is made and filled tells its rows itself."""
    with snapshotting() as run:
        run.begin()
        run.finish()
        _looked(run)
        db.run(before, "CREATE TABLE items_next PARTITION OF items FOR VALUES FROM (100) TO (200)")
        db.run("INSERT INTO items VALUES (150)", "ANALYZE items")
        _looked(run)
        assert not [each for each in run.ledger.runs(run.source.id) if each.reason == TRUNCATED]
        assert same(run.capturing.changes(), db)


def test_one_that_is_made_and_truncated_between_two_looks(
    db: Database, snapshotting: Callable[..., Snapshotting]
) -> None:
    with snapshotting() as run:
        run.begin()
        run.finish()
        _looked(run)
        (watch := run.capturing.stream._catalog_watch)._next = 1e18  # no look until it is over
        db.run("CREATE TABLE items_next PARTITION OF items FOR VALUES FROM (100) TO (200)")
        db.run("INSERT INTO items VALUES (150)", "TRUNCATE items_next", "INSERT INTO items VALUES (151)")
        watch._next = 0.0
        _requested(run, TRUNCATED)
        assert same(run.finish(), db)


def test_one_that_is_truncated_while_nothing_runs(db: Database, tmp_path: Path, look: None) -> None:
    """And, in the same time, the whole table before it, which the stream tells: the partition's own is not told."""
    db.run(*ITEMS)
    with Snapshotting(db, tmp_path, tables=["public.items"]) as run:
        run.begin()
        run.finish()
        _looked(run)
    db.run("TRUNCATE items", "INSERT INTO items VALUES (1), (2), (30)", "TRUNCATE items_low")
    with Snapshotting(db, tmp_path, tables=["public.items"]) as again:
        again.begin()
        _requested(again, TRUNCATED)
        assert same(again.finish(), db)


def _looked(run: Snapshotting) -> None:
    """A look that began after now was taken in."""
    begun = run.capturing.stream.looks + 2
    eventually(lambda: run.capturing.error or run.capturing.stream.looks >= begun)


def _requested(run: Snapshotting, reason: str) -> None:
    eventually(lambda: [each for each in run.ledger.runs(run.source.id) if each.reason == reason])
