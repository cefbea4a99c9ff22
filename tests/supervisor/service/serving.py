"""A reconciler in the test's own process, with taps and runtimes as processes of their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.service.reconciler import Reconciler
from tailrace.supervisor.service.states import PipelineView
from tailrace.supervisor.service.wishes import DesiredState, Wish
from tailrace.testing import crash
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.capture.snapshotting import contents
from tests.whole import ordered

DRAIN_S = 60.0


def platform(folder: Path) -> Platform:
    import yaml

    fields = {"data_dir": str(folder / "data"), "spark": yaml.safe_load(crash.QUICK_SPARK)}
    return Platform.from_document({**fields, "retry": {"initial": "100ms", "max": "1s"}})


def files_of(db: Database, name: str, folder: Path, **source: Any) -> Pipeline:
    """A pipeline of `db` into a folder of Parquet files of its own."""
    sink = {"id": "files", "path": str(folder / name), "format": "parquet", "roll": {"every": "300ms"}}
    return piped(db, name, {"type": "file", "config": sink}, **source)


def piped(db: Database, name: str, *sinks: dict[str, Any], **source: Any) -> Pipeline:
    config = {"id": db.name, "dsn": db.dsn, "tables": ["public.*"], "snapshot": {"chunk_size": 50}, **source}
    spec = {"source": {"type": "postgres", "config": config}, "sinks": list(sinks)}
    return Pipeline.from_document({"metadata": {"name": name}, "spec": spec})


@dataclass
class Serving:
    """Wishes, and what becomes of them."""

    platform: Platform
    wishes: dict[str, Wish] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(self.platform, lambda: list(self.wishes.values()))
        self.thread = threading.Thread(target=self.reconciler.run, args=(DRAIN_S,), name="reconciler", daemon=True)

    def wish(self, pipeline: Pipeline, desired: DesiredState = "running") -> None:
        """A new generation of the pipeline."""
        known = self.wishes.get(pipeline.name)
        generation = (1, 0) if known is None else (known.generation[0] + 1, 0)
        self.wishes[pipeline.name] = Wish(pipeline.name, generation, desired, pipeline)
        self.reconciler.wake()

    def turn(self, name: str, desired: DesiredState) -> None:
        self.wishes[name] = replace(self.wishes[name], desired=desired)
        self.reconciler.wake()

    def view(self, name: str) -> PipelineView:
        found = self.reconciler.view(name)
        assert found is not None
        return found

    def runtime_pid(self, name: str) -> int | None:
        return self.reconciler._runtimes[name].pid

    def told(self) -> str:
        """For a test that waits in vain."""
        printed = [file.read_text()[-1500:] for file in (self.platform.data_dir / "runtimes").glob("*.log")]
        return "\n".join([*map(repr, self.reconciler.views()), *printed])

    def reaches(self, name: str, *states: str, timeout: float = 90) -> PipelineView:
        eventually(lambda: (view := self.reconciler.view(name)) and view.state in states, timeout, what=self.told)
        return self.view(name)


@contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    """Runs until the block ends, and then drains."""
    made = Serving(platform(folder))
    made.thread.start()
    try:
        yield made
    finally:
        made.reconciler.end()
        made.thread.join(DRAIN_S + 30)
        assert not made.thread.is_alive()


def delivered(folder: Path) -> list[str]:
    """The rows that the files of a pipeline amount to, each change once."""
    files = sorted(folder.glob("[!_]*/**/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert len({row["seq"] for row in rows}) == len(rows), "the file sink is exactly-once"
    state = contents([row for row in sorted(rows, key=lambda row: row["seq"]) if row["op"] in "curdt"])
    return ordered(list(state.values()))


def at_source(db: Database, table: str) -> list[str]:
    return ordered([json.loads(row) for (row,) in db.rows(f"SELECT to_json(t)::text FROM {table} t")])
