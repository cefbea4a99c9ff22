"""`kill -9` in each phase of a snapshot, as the ledger tells the phases: nothing is lost, and little is read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger
from tailrace.supervisor.snapshots import AHEAD
from tailrace.testing.waiting import eventually
from tests.capture.running import Database, TapProcess
from tests.capture.snapshot_process import PlannerProcess, config_of, only_run
from tests.capture.snapshotting import contents

ROWS = 350
CHUNK = 5
CHUNKS = ROWS // CHUNK


class Stage:
    """A table, a tap and a planner, both processes, and the ledger between them."""

    def __init__(self, db: Database, tap: Callable[..., TapProcess], folder: Path) -> None:
        db.run(
            "CREATE TABLE items (id int PRIMARY KEY, v text)",
            f"INSERT INTO items SELECT n, 'v' || n FROM generate_series(1, {ROWS}) n",
        )
        self.db, self._tap, self.folder = db, tap, folder
        self.config = config_of(db, snapshot={"chunk_size": CHUNK})
        self.ledger = SnapshotLedger(Store(folder / "control.db"))
        self.start_tap()

    def start_tap(self) -> None:
        self.tap = self._tap(self.db, config=self.config)
        self.tap.until("running")

    def kill_tap(self) -> None:
        self.tap.process.kill()
        self.tap.process.wait()

    def planner(self) -> PlannerProcess:
        return PlannerProcess(self.config, self.folder)

    def count(self, state: str) -> int:
        run = only_run(self.ledger, self.db.name)
        return self.ledger.count(run.id, state) if run is not None else 0

    def table(self) -> str:
        """How far the table is; empty before the run."""
        run = only_run(self.ledger, self.db.name)
        return self.ledger.tables(run.id)[0].state if run is not None else ""

    def until(self, condition: Callable[[], bool]) -> None:
        eventually(condition, 60, every=0.002, what=lambda: f"{self.table()}: {self.states()}")

    def states(self) -> dict[str, int]:
        return {state: self.count(state) for state in ("planned", "staged", "admitted")}

    def change(self) -> None:
        """Changes beside the snapshot, in every part of the table."""
        self.db.run(
            "UPDATE items SET v = v || '!' WHERE id % 50 = 0",
            "DELETE FROM items WHERE id % 50 = 1",
            f"INSERT INTO items SELECT n, 'late' FROM generate_series({ROWS + 1}, {ROWS + 9}) n ON CONFLICT DO NOTHING",
        )

    @contextmanager
    def locked(self) -> Iterator[Callable[[], bool]]:
        """Reads of the table wait; yields whether one does."""
        with psycopg.connect(self.db.dsn) as connection:
            connection.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
            yield lambda: bool(self.db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    def finish(self) -> None:
        """Until the run is done; then the log, folded, is the table."""
        with self.planner():
            self.until(lambda: not self.ledger.runs(self.db.name, "active"))
        found = self.tap.changes()
        run = only_run(self.ledger, self.db.name)
        assert run is not None
        assert run.state == "done"
        rows = [json.loads(row) for (row,) in self.db.rows("SELECT to_json(t)::text FROM items t")]
        assert ordered(contents(found).values()) == ordered(rows)

    def files(self) -> set[str]:
        """Chunks that were read whole."""
        return {file.name for file in (self.folder / "staged").glob("[!.]*.arrow")}


def ordered(rows: Any) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.fixture
def stage(db: Database, tap: Callable[..., TapProcess], tmp_path: Path) -> Stage:
    return Stage(db, tap, tmp_path)


def test_planning(stage: Stage) -> None:
    """Killed with a part of the table planned: the plan goes on where it stood."""
    with stage.planner() as planner:
        stage.until(lambda: stage.table() == "planning" and stage.count("planned") > 0)
        planner.kill()
        assert stage.table() == "planning"
        planned = sum(stage.states().values())
        assert 0 < planned < CHUNKS
    stage.change()
    stage.finish()
    assert stage.count("admitted") >= CHUNKS


def test_reading(stage: Stage) -> None:
    """Killed while a chunk is read: no other is read again, not even one the ledger had not heard of yet."""
    stage.kill_tap()  # nothing is admitted
    with stage.planner() as planner:
        stage.until(lambda: stage.count("staged") > 0)
        with stage.locked() as waiting:
            stage.until(waiting)
            planner.kill()
            assert stage.count("planned") > 0
    read = stage.files()
    assert len(read) > stage.count("staged") > 0  # it died inside a task, with chunks that only the files tell of
    with stage.planner():
        stage.until(lambda: stage.count("staged") >= AHEAD)
        chunks = [name.rsplit("-", 1)[0] for name in stage.files()]
    assert read < stage.files()
    assert len(set(chunks)) == len(chunks)  # none of them twice
    stage.change()
    stage.start_tap()
    stage.finish()
    assert not stage.files()


def test_registered(stage: Stage) -> None:
    """Killed with chunks staged and none admitted: they are admitted as they are."""
    stage.kill_tap()
    with stage.planner() as planner:
        stage.until(lambda: stage.count("staged") > 0)
        planner.kill()
    staged = stage.count("staged")
    assert (staged > 0, stage.count("admitted")) == (True, 0)
    stage.change()
    stage.start_tap()
    eventually(lambda: stage.count("admitted") >= staged, 30)  # with no planner there is no one to read them again
    stage.finish()


def test_hand_over(stage: Stage) -> None:
    """Killed, the tap only and then both, with some chunks in the log and some not."""
    with stage.planner() as planner:
        for victim in ("tap", "both"):
            admitted = stage.count("admitted")
            stage.until(lambda admitted=admitted: stage.count("admitted") > admitted)  # type: ignore[misc]
            stage.kill_tap()
            if victim == "both":
                planner.kill()
            assert 0 < stage.count("admitted") < CHUNKS
            stage.change()
            stage.start_tap()
    stage.finish()


def test_streaming(stage: Stage) -> None:
    """Killed when the snapshot is done: nothing is read again."""
    with stage.planner() as planner:
        stage.until(lambda: stage.table() == "done")
        stage.change()
        stage.kill_tap()
        planner.kill()
    stage.change()
    stage.start_tap()
    stage.finish()
    assert [row["op"] for row in stage.tap.changes()].count("r") == ROWS
