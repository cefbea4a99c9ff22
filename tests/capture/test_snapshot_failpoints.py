"""Killed at each step of several commits that a snapshot takes: what starts afterwards ends with the source's rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.testing.failpoints import dies_at
from tailrace.testing.waiting import eventually
from tests.capture.running import Change, Database, mark
from tests.capture.snapshotting import BIG, EXTERNAL, ITEMS, Snapshotting, same, stage

EVENTS = "CREATE TABLE events (n int, v text)"
FILL = "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 25) n"
FILL_EVENTS = "INSERT INTO events SELECT n, 'old' FROM generate_series(1, 25) n"
ADMISSION = ("admission.before_line", "admission.before_ledger", "admission.before_unlink")


@pytest.fixture
def again(db: Database, tmp_path: Path) -> Callable[[], Snapshotting]:
    """The next process: it takes over what the one before it left."""

    def start(**settings: Any) -> Snapshotting:
        run = Snapshotting(db, tmp_path, **settings)
        run.snapshots.recover(tmp_path / "staged")
        return run

    return start


def die(run: Snapshotting) -> None:
    """Until the capture has died at the failpoint."""
    run.work(until=lambda: run.capturing.error is not None)
    assert run.capturing.error is not None
    raise run.capturing.error


def files(folder: Path) -> list[Path]:
    return list((folder / "staged").glob("*"))


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("point", ADMISSION)
def test_a_chunk_is_admitted(
    db: Database, again: Callable[[], Snapshotting], tmp_path: Path, point: str, passes: int
) -> None:
    """With rows that changed since it was read, one of which owes a large value."""
    db.run(ITEMS, EXTERNAL, FILL, f"UPDATE items SET big = '{BIG}'")
    with dies_at(point, passes), again() as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id % 5 = 0", "DELETE FROM items WHERE id = 7")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        die(run)
    db.run("UPDATE items SET v = 'newer' WHERE id % 10 = 0")
    with again() as run:
        run.begin()
        found = run.finish()
        assert [each.state for each in run.ledger.runs(run.source.id)] == ["done"]
    assert same(found, db)
    read = [row["key"] for row in found if row["op"] == "r"]
    assert len(read) == len(set(read)), "a chunk is in the log once"
    assert files(tmp_path) == []


@pytest.mark.parametrize("point", ADMISSION)
def test_a_reset_is_admitted(db: Database, again: Callable[[], Snapshotting], tmp_path: Path, point: str) -> None:
    """It has two parts, its rows and what came meanwhile: no reader sees the one without the other."""
    db.run(EVENTS, FILL_EVENTS)
    with dies_at(point), again() as run:
        run.begin()
        stage(run)
        db.run("INSERT INTO events VALUES (26, 'new')")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        die(run)
    db.run("INSERT INTO events VALUES (27, 'newer')")
    with again() as run:
        run.begin()
        found = run.finish()
    assert after_reset(found) == list(range(1, 28))
    assert [row["op"] for row in found].count("t") == 1
    assert files(tmp_path) == []


def test_a_chunk_is_refused(db: Database, again: Callable[[], Snapshotting], tmp_path: Path) -> None:
    """The table has other columns since it was read; its file is still there when it is to be read again."""
    db.run(ITEMS, FILL)
    with dies_at("admission.discard.before_unlink"), again() as run:
        run.begin()
        stage(run)
        db.run("ALTER TABLE items ADD extra int DEFAULT 7", "UPDATE items SET v = 'new' WHERE id = 2")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        die(run)
    with again() as run:
        run.begin()
        found = run.finish()
    assert same(found, db)
    assert files(tmp_path) == []


def test_a_chunk_was_read(db: Database, again: Callable[[], Snapshotting], tmp_path: Path) -> None:
    """And the ledger was not told: the file is taken over."""
    db.run(ITEMS, FILL)
    with dies_at("snapshot.read.before_ledger"), again() as run:
        run.begin()
        run.work()
    before = {file.name for file in files(tmp_path)}
    run = again()  # nothing is admitted before it is entered
    assert {Path(each.file).name for each in run.ledger.staged(run.source.id)} == before != set()
    with run:
        run.begin()
        found = run.finish()
    assert same(found, db)
    assert files(tmp_path) == []


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The catalog is looked at all the time."""
    monkeypatch.setattr("tailrace.capture.postgres.catalog_watch.LOOK_S", 0.0)
    yield


def test_what_the_stream_cannot_tell_was_requested(db: Database, again: Callable[[], Snapshotting], look: None) -> None:
    """And not taken off the list, nor remembered as seen: it is asked for a second time, and read twice at worst."""
    db.run("CREATE TABLE items (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    db.run("CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (20)", "INSERT INTO items VALUES (1, 'old')")
    with dies_at("snapshot.need.after_request"), again() as run:
        run.begin()
        run.finish()
        looks = run.capturing.stream.looks
        eventually(lambda: run.capturing.stream.looks > looks + 1)
        db.run("TRUNCATE low", "INSERT INTO items VALUES (2, 'new')")
        die(run)
    with again() as run:
        eventually(lambda: [each for each in run.ledger.runs(run.source.id) if "truncated" in each.reason])
        looks = run.capturing.stream.looks
        eventually(lambda: run.capturing.stream.looks > looks + 1)
        found = run.finish()
    assert same(found, db)


def after_reset(found: list[Change]) -> list[int]:
    """What a keyless table has, in order."""
    last = max(place for place, row in enumerate(found) if row["op"] == "t")
    return sorted(json.loads(row["after"])["n"] for row in found[last + 1 :])
