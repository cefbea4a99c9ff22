"""A lost position: the tap stops and says so, and starts over where somebody wants it. The log, folded, equals the
source afterwards, with what was deleted while nobody was looking."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.supervisor.snapshots import SnapshotThread
from tailrace.testing.waiting import eventually
from tests.capture.running import Change, Database, TapProcess
from tests.capture.snapshot_process import Planner, config_of
from tests.capture.snapshotting import Snapshotting, contents

Tap = Callable[..., TapProcess]
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, v text)"
FILL = "INSERT INTO items SELECT n, 'old' FROM generate_series(1, 35) n"
UNSEEN = ("DELETE FROM items WHERE id <= 5", "UPDATE items SET v = 'new' WHERE id = 6", "INSERT INTO items VALUES (99)")


def equal(found: list[Change], db: Database, *tables: str) -> bool:
    def order(rows: Any) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    state = contents(found)
    for table in tables or ("items",):
        rows = [json.loads(row) for (row,) in db.rows(f"SELECT to_json(t)::text FROM {table} t")]
        if order(row for (name, _), row in state.items() if name == table) != order(rows):
            return False
    return {name for name, _ in state} <= set(tables or ("items",))


def filled(db: Database, folder: Path, **settings: Any) -> None:
    """A log with a whole snapshot of what is in the database, and no tap."""
    with Snapshotting(db, folder, **settings) as run:
        run.begin()
        assert run.finish()


def test_a_dropped_slot_stops_the_tap(db: Database, tap: Tap, tmp_path: Path) -> None:
    db.run(ITEMS, FILL)
    config = config_of(db)
    filled(db, tmp_path)
    db.drop_slots()
    again = tap(db, config=config)
    assert again.wait() == 1
    error = again.status()["error"]
    assert error["code"] == "source.position_lost"
    assert "tailrace snapshot" in error["hint"]
    assert "--repair" in error["hint"]


def test_a_repair_that_was_asked_for(db: Database, tap: Tap, tmp_path: Path) -> None:
    db.run(ITEMS, FILL, "CREATE TABLE gone (id int PRIMARY KEY)", "INSERT INTO gone VALUES (1)")
    config = config_of(db)
    filled(db, tmp_path)
    db.drop_slots()
    db.run(*UNSEEN, "DROP TABLE gone")
    with Planner(config, tmp_path) as planner:
        run = planner.ask_for_repair()
        again = tap(db, config=config)
        again.until("running")
        planner.work()
        db.run("UPDATE items SET v = 'later' WHERE id = 7")
        found = again.changes()
        assert planner.ledger.run(run).state == "done"
    assert equal(found, db)
    assert {row["table"] for row in found if row["op"] == "t"} == {"items", "gone"}


def test_when_needed_repairs_by_itself(db: Database, tap: Tap, tmp_path: Path) -> None:
    db.run(ITEMS, FILL)
    config = config_of(db, snapshot={"mode": "when_needed"})
    filled(db, tmp_path, snapshot={"mode": "when_needed"})
    db.drop_slots()
    db.run(*UNSEEN)
    with Planner(config, tmp_path) as planner:
        again = tap(db, config=config)
        again.until("running")
        planner.begin()
        planner.work()
        assert equal(again.changes(), db)
        assert [run.reason for run in planner.ledger.runs(db.name)] == ["when_needed", "repair"]


@pytest.mark.parametrize("point", ["repair.after_request", "repair.after_begin", "repair.after_forget"])
def test_a_repair_that_was_killed_begins_again(
    db: Database, tap: Tap, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(ITEMS, FILL)
    config = config_of(db, snapshot={"mode": "when_needed"})
    filled(db, tmp_path, snapshot={"mode": "when_needed"})
    db.drop_slots()
    db.run(*UNSEEN)
    monkeypatch.setenv("TAILRACE_FAILPOINT", point)
    assert tap(db, config=config).wait() == -signal.SIGKILL
    monkeypatch.delenv("TAILRACE_FAILPOINT")
    with Planner(config, tmp_path) as planner:
        again = tap(db, config=config)
        again.until("running")
        planner.work()
        assert equal(again.changes(), db)
        assert [run.reason for run in planner.ledger.runs(db.name)] == ["when_needed", "repair"]


def test_a_snapshot_that_was_under_way_does_not_bring_old_rows_back(db: Database, tap: Tap, tmp_path: Path) -> None:
    """Its chunks were read before the new stream began: what was deleted in between is in neither."""
    db.run(ITEMS, FILL)
    with Snapshotting(db, tmp_path) as run:
        run.admitting = False
        run.begin()
        [active] = run.ledger.runs(db.name, "active")
        run.work(until=lambda: run.ledger.count(active.id, "staged") == 5)
    db.drop_slots()
    db.run(*UNSEEN)
    config = config_of(db)
    with Planner(config, tmp_path) as planner:
        planner.ask_for_repair()
        again = tap(db, config=config)
        again.until("running")
        planner.work()
        assert equal(again.changes(), db)


def test_nothing_is_planned_before_a_stream_runs(db: Database, tmp_path: Path) -> None:
    """A row that is inserted after the plan and before the stream would be in neither."""
    db.run(ITEMS, FILL)
    config = config_of(db)
    filled(db, tmp_path)
    looks: list[bool] = []
    streams = threading.Event()

    def streaming() -> bool:
        looks.append(streams.is_set())
        return streams.is_set()

    planner = Planner(config, tmp_path)
    thread = SnapshotThread(planner.snapshots, streaming, lambda: planner.log, db.name)
    streams.set()
    thread.start()
    eventually(lambda: thread.begun)
    streams.clear()
    run = planner.ask_for_repair()
    looks.clear()
    eventually(lambda: len(looks) > 3)
    assert planner.ledger.count(run, "planned") == 0
    streams.set()
    eventually(lambda: planner.ledger.count(run, "staged") == 5)
    thread.stop()
    thread.join()


def test_a_table_without_a_key(db: Database, tap: Tap, tmp_path: Path) -> None:
    db.run("CREATE TABLE events (n int)", "INSERT INTO events SELECT generate_series(1, 25)")
    config = config_of(db)
    filled(db, tmp_path)
    db.drop_slots()
    db.run("DELETE FROM events WHERE n > 20", "INSERT INTO events VALUES (30)")
    with Planner(config, tmp_path) as planner:
        planner.ask_for_repair()
        again = tap(db, config=config)
        again.until("running")
        planner.work()
        found = again.changes()
    last = max(place for place, row in enumerate(found) if row["op"] == "t")
    rows = sorted(json.loads(row["after"])["n"] for row in found[last + 1 :])
    assert rows == [n for (n,) in db.rows("SELECT n FROM events ORDER BY n")]
