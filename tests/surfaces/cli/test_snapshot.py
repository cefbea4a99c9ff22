"""`tailrace snapshot` as a user calls it; what is wrong is said before anything is requested."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.supervisor.layout import Layout, run_lock
from tailrace.surfaces.cli import app

sys.path.insert(0, str(Path(__file__).parents[3]))

from tailrace.testing.servers import PostgresServer
from tests.capture.running import Capturing, Database
from tests.capture.snapshot_process import Planner, config_of


class Shop:
    """A table of 200 items, the documents about it and, from `capture` on, a log."""

    def __init__(self, db: Database, folder: Path, stack: ExitStack) -> None:
        self.db, self._stack = db, stack
        self.layout = Layout(folder / "data")
        self._document, self._platform = folder / "shop.yaml", folder / "platform.yaml"
        self._document.write_text(
            f'metadata: {{name: shop}}\nspec:\n  source: {{type: postgres, config: {{id: {db.name}, dsn: "{db.dsn}", '
            "tables: [public.*]}}\n  sinks: [{type: console, config: {id: screen}}]\n"
        )
        self._platform.write_text(f"data_dir: {folder / 'data'}\n")
        db.run(
            "CREATE TABLE items (id int PRIMARY KEY, v text)",
            "INSERT INTO items SELECT n, 'v' FROM generate_series(1, 200) n",
        )

    def capture(self) -> Capturing:
        self.layout.root.mkdir()
        log = self.layout.log(self.db.name)
        from tailrace.control import Store

        return self._stack.enter_context(Capturing(self.db, log, store=Store(self.layout.store)))

    def running(self) -> None:
        """As if a process ran the pipeline."""
        self._stack.enter_context(run_lock(self.layout, "shop"))

    def call(self, *options: str) -> Result:
        arguments = ["snapshot", str(self._document), "--platform-config", str(self._platform), *options]
        return CliRunner().invoke(app, arguments)

    def json(self, *options: str) -> dict[str, Any]:
        done = self.call(*options, "--json")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    with Database(postgres) as db, ExitStack() as stack:
        yield Shop(db, tmp_path, stack)


def test_without_a_log_there_is_nothing_to_read_into(shop: Shop) -> None:
    done = shop.call()
    assert done.exit_code == 1
    assert "error[log.missing]" in done.stderr
    assert "hint:" in done.stderr


def test_what_is_wrong_is_said_and_nothing_is_requested(shop: Shop) -> None:
    shop.capture()
    unknown = shop.call("--table", "public.nosuch")
    assert (unknown.exit_code, "public.items" in unknown.stderr) == (2, True)
    assert "error[snapshot.no_table]" in unknown.stderr
    condition = shop.call("--table", "public.items", "--where", "price > 3")
    assert condition.exit_code == 2
    assert "error[snapshot.filter]" in condition.stderr
    assert "price" in condition.stderr
    for option, value in (("--table", "public.items"), ("--where", "id < 100")):
        both = shop.call("--repair", option, value)
        assert both.exit_code == 2
        assert "error[snapshot.repair_all]" in both.stderr
    assert shop.json("--cancel") == {"ok": True, "cancelled": []}


def test_a_pipeline_that_does_not_run(shop: Shop) -> None:
    shop.capture()
    done = shop.call("--table", "public.items", "--where", "id < 100")
    assert done.exit_code == 0
    assert "it begins when the pipeline runs" in done.stdout


def test_not_waiting_and_cancelling(shop: Shop) -> None:
    shop.capture()
    shop.running()
    asked = shop.json("--table", "public.items", "--where", "id < 100", "--no-wait")
    run = asked["run"]["id"]
    assert (asked["run"]["state"], asked["tables"][0]["filter"]) == ("active", "id < 100")
    assert f"cancelled {run}" in shop.call("--cancel").stdout
    assert "no snapshot is under way" in shop.call("--cancel").stdout


def test_watching(shop: Shop) -> None:
    """Lines of progress on standard error, the result on standard output."""
    import threading

    capturing = shop.capture()
    shop.running()
    config = config_of(shop.db)
    planner = Planner(config, shop.layout.root)
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.01):
            planner.snapshots.step()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        done = shop.call("--table", "public.items", "--where", "id < 100")
        told = shop.json("--table", "public.items", "--where", "id < 100")
    finally:
        over.set()
        thread.join()
        planner.snapshots.close()
    assert done.exit_code == 0
    assert "rows" in done.stderr
    assert "done: 99 rows of 1 tables" in done.stdout
    assert (told["run"]["state"], told["tables"][0]["rows_admitted"]) == ("done", 99)
    assert [row["op"] for row in capturing.changes()] == ["r"] * 198
