"""Rows of a partition that is detached or dropped: the stream has no deletes of them, and yet they go."""

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
        db.run("DROP TABLE items_low")
        looks = run.capturing.stream.looks
        eventually(lambda: run.capturing.stream.looks > looks + 1)
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


def _requested(run: Snapshotting, reason: str) -> None:
    eventually(lambda: [each for each in run.ledger.runs(run.source.id) if each.reason == reason])
