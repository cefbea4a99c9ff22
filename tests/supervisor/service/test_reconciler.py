"""Pipelines come, change and go while others deliver; runtimes die and hang; nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests import lakes
from tests.capture.running import Database
from tests.supervisor.service.serving import Serving, at_source, delivered, files_of, piped, serving

pytestmark = pytest.mark.slow


class Shop:
    """A database, and pipelines of it."""

    def __init__(self, db: Database, folder: Path, served: Serving) -> None:
        self.db, self.folder, self.served = db, folder, served
        self.rows = 0

    def sell(self, rows: int = 100) -> None:
        first, self.rows = self.rows, self.rows + rows
        self.db.run(f"INSERT INTO items SELECT n, 'v' FROM generate_series({first + 1}, {self.rows}) n")
        self.db.run(f"UPDATE items SET v = v || 'x' WHERE id % 7 = {first % 7}")

    def equals(self, name: str) -> None:
        """Soon the files of a pipeline are what the source has."""
        eventually(lambda: delivered(self.folder / name) == at_source(self.db, "items"), 60, what=self.served.told)


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("serve")
    with Database(postgres) as db, serving(folder) as served:
        db.run("CREATE TABLE items (id int PRIMARY KEY, v text)")
        made = Shop(db, folder, served)
        made.sell(300)
        served.wish(files_of(db, "one", folder))
        yield made


def test_a_pipeline_joins_while_another_delivers(shop: Shop) -> None:
    shop.served.reaches("one", "running")
    shop.equals("one")
    runtime = shop.served.runtime_pid("plain")
    shop.served.wish(files_of(shop.db, "two", shop.folder))
    shop.sell()
    shop.served.reaches("two", "running")
    shop.equals("one")
    shop.equals("two")
    assert shop.served.runtime_pid("plain") == runtime, "they share one Spark"


def test_what_is_paused_gets_nothing_and_then_everything(shop: Shop) -> None:
    shop.served.turn("two", "paused")
    shop.served.reaches("two", "paused")
    before = delivered(shop.folder / "two")
    shop.sell()
    shop.equals("one")
    assert delivered(shop.folder / "two") == before
    shop.served.turn("two", "running")
    shop.equals("two")


def test_a_changed_pipeline_goes_on_where_it_was(shop: Shop) -> None:
    changed = files_of(shop.db, "two", shop.folder)
    smaller = changed.model_copy(
        update={
            "spec": changed.spec.model_copy(update={"batch": changed.spec.batch.model_copy(update={"max_events": 50})})
        }
    )
    shop.served.wish(smaller)
    shop.sell()
    eventually(lambda: shop.served.view("two").generation == (2, 0), 30, what=shop.served.told)
    shop.served.reaches("two", "running")
    shop.equals("two")
    shop.equals("one")


def test_a_runtime_that_is_killed_is_started_again(shop: Shop) -> None:
    victim = shop.served.runtime_pid("plain")
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    shop.sell()
    eventually(lambda: shop.served.runtime_pid("plain") not in (None, victim), 30, what=shop.served.told)
    shop.equals("one")
    shop.equals("two")
    assert shop.served.reconciler._runtimes["plain"].restarts == 1
    shop.served.reaches("one", "running")


def test_another_configuration_of_a_source_is_refused_while_it_runs(shop: Shop) -> None:
    shop.served.wish(files_of(shop.db, "three", shop.folder, heartbeat="3s"))
    view = shop.served.reaches("three", "failed")
    assert [found.code for found in view.findings] == ["config.source_conflict"]
    assert shop.served.view("one").state == "running"
    shop.served.turn("three", "stopped")
    shop.served.reaches("three", "stopped")


def test_a_sink_that_is_away_degrades_its_pipeline_alone(shop: Shop) -> None:
    away = {"type": "http", "config": {"id": "away", "url": "http://127.0.0.1:9/"}}
    shop.served.wish(piped(shop.db, "four", away))
    view = shop.served.reaches("four", "degraded")
    assert [(found.part, found.code) for found in view.findings] == [("sink:away", "sink.unavailable")]
    assert shop.served.view("one").state == "running"
    del shop.served.wishes["four"]
    eventually(lambda: shop.served.reconciler.view("four") is None, 60, what=shop.served.told)


def test_a_lake_pipeline_has_a_runtime_of_its_own_kind(shop: Shop) -> None:
    plain = shop.served.runtime_pid("plain")
    lake = {"id": "lake", "path": str(shop.folder / "delta"), "write_mode": "upsert", "commit_interval": "500ms"}
    shop.served.wish(piped(shop.db, "five", {"type": "delta", "config": lake}))
    shop.served.reaches("five", "running", timeout=120)
    shop.sell()

    def equal() -> bool:
        if not (shop.folder / "delta" / "public__items" / "_delta_log").is_dir():
            return False
        try:
            found = lakes.delta(shop.folder, "items").to_pylist()
        except duckdb.IOException:  # it is being made
            return False
        rows = sorted((row["id"], row["v"]) for row in found)
        return rows == sorted(shop.db.rows("SELECT id, v FROM items"))

    eventually(equal, 90, what=shop.served.told)
    shop.equals("one")
    assert shop.served.runtime_pid("plain") == plain
