"""Snapshots through the full system: writers that never rest, reads that start at any time, and `kill -9`.

Seeds are printed; `SEED=n pytest tests/test_snapshot_system.py` tells one story again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.changelog import LogReader
from tailrace.control import Store
from tailrace.control.ledger import Ledger, TableRequest
from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.capture.snapshotting import contents

SEEDS = 8
ROWS = 300
VICTIMS = {"tap": 3, "workers": 3, "driver": 1, "both": 1}
"""What is killed how often: a new driver costs a new JVM."""


class System:
    """A pipeline from a database of its own to files."""

    def __init__(self, db: Database, folder: Path, **snapshot: Any) -> None:
        self.db, self.folder = db, folder
        settings = json.dumps({"chunk_size": 50, **snapshot})
        self.document, platform = folder / "pipeline.yaml", folder / "platform.yaml"
        self.document.write_text(
            f"""
metadata: {{name: system}}
spec:
  source: {{type: postgres, config: {{id: {db.name}, dsn: "{db.dsn}", tables: [public.*], snapshot: {settings}}}}}
  sinks: [{{type: file, config: {{id: files, path: {folder}/files, format: parquet, roll: {{every: 500ms}}}}}}]
"""
        )
        platform.write_text(
            f"{{data_dir: {folder}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 100ms, max: 1s}}}}"
        )
        self.platform = platform
        self.victim = crash.Victim([self.document], platform, folder / "data", db.name)
        self.ledger = Ledger(Store(folder / "data" / "control.db"))

    def start(self) -> None:
        self.victim.start()
        eventually(self.victim.tap_pid, 60, what=self.victim.output)

    def ask(self, *tables: str) -> str:
        """As `tailrace snapshot --table … --no-wait` does."""
        log = LogReader(self.folder / "data" / "logs" / self.db.name)
        wanted = [TableRequest("public", table) for table in tables]
        return self.ledger.request(self.db.name, "asked", wanted, log_id=log.log_id, since=0)

    def catch_up(self, timeout: float = 120) -> None:
        self.victim.start("--until-caught-up")
        assert self.victim.finish(timeout) == 0, self.victim.output()
        assert not self.ledger.runs(self.db.name, "active")

    def events(self) -> list[dict[str, Any]]:
        """What the files hold, in the log's order; each once."""
        files = sorted((self.folder / "files").glob("[!_]*/**/*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        assert len({row["seq"] for row in rows}) == len(rows), "the file sink is exactly-once"
        return sorted(rows, key=lambda row: row["seq"])

    def compare(self, *tables: str) -> None:
        """The files, folded by key, are the tables, in every column."""
        events = self.events()
        state = contents([row for row in events if row["op"] in "curdt"])
        for table in tables:
            found = [row for (name, _), row in state.items() if name == table]
            rows = [json.loads(row) for (row,) in self.db.rows(f"SELECT to_json(t)::text FROM {table} t")]
            assert ordered(found) == ordered(rows), table


def ordered(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.fixture
def system(postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[..., System]]:
    made: list[System] = []
    with Database(postgres) as db:

        def make(**snapshot: Any) -> System:
            made.append(System(db, tmp_path, **snapshot))
            return made[-1]

        yield make
        for each in made:
            if each.victim.process is not None and each.victim.process.poll() is None:
                each.victim.kill("both")


def seeds() -> list[int]:
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])]
    first = random.SystemRandom().randrange(1 << 30)
    return list(range(first, first + int(os.environ.get("TAILRACE_SOAK_SEEDS", SEEDS))))


@pytest.mark.timeout(600)
def test_the_files_equal_the_source(system: Callable[..., System]) -> None:
    pipeline = system()
    stories = [crash.Writers(pipeline.db.dsn, seed, ROWS) for seed in seeds()]
    pipeline.start()
    for story, seed in zip(stories, seeds_of(stories), strict=True):
        tell(pipeline, story, random.Random(seed))
    pipeline.victim.kill("both")
    pipeline.catch_up()
    pipeline.compare(*(table for story in stories for table in story.tables))


def seeds_of(stories: list[crash.Writers]) -> list[int]:
    return [int(story.tables[0].rsplit("_", 1)[1]) for story in stories]


def tell(pipeline: System, story: crash.Writers, chance: random.Random) -> None:
    """A snapshot beside the writers, and a kill at some point of it."""
    story.start()
    run = pipeline.ask(*story.tables)
    gate = chance.randrange(2 * ROWS // 50)
    [who] = chance.choices(tuple(VICTIMS), tuple(VICTIMS.values()))
    print(f"seed {story.tables[0].rsplit('_', 1)[1]}: {who} at chunk {gate}")

    def over() -> bool:
        return pipeline.ledger.run(run).state != "active"

    eventually(lambda: over() or pipeline.ledger.count(run, "admitted") >= gate, 120, what=pipeline.victim.output)
    pipeline.victim.kill(who)
    if who in ("driver", "both"):
        pipeline.victim.start()
    eventually(over, 120, what=pipeline.victim.output)
    story.stop()
