"""Planner and readers of snapshots beside a tap that is a process: in this process, or in one that can be killed.

python -m tests.capture.snapshot_process < request.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.backoff import Backoff
from tailrace.capture.postgres import PostgresSource
from tailrace.capture.repair import ASKED
from tailrace.changelog import LogReader
from tailrace.control import Store
from tailrace.control.ledger import Run, SnapshotLedger, TableRequest
from tailrace.machine import lifeline
from tailrace.spark.snapshot import ReadHere
from tailrace.supervisor.snapshots import Snapshots
from tailrace.testing.waiting import eventually
from tests.capture.running import Database


class Planner:
    """Plans and reads for the log in `folder`; the tap of that folder admits."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.source = PostgresSource.model_validate(config)
        self.ledger, self._folder = SnapshotLedger(Store(folder / "control.db")), folder
        read = ReadHere(self.source, folder / "staged")
        self.snapshots = Snapshots(self.source, self.ledger, read, Backoff(0.01, 0.1, 0.0))
        self.snapshots.recover(folder / "staged")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.snapshots.close()

    @property
    def log(self) -> tuple[str, set[tuple[str, str]]]:
        """The log's id and the tables it knows."""
        log = LogReader(self._folder / "log")
        return log.log_id, {(schema.schema, schema.table) for schema in log.schemas.values()}

    def begin(self) -> None:
        self.snapshots.begin(*self.log)

    def ask(self, *tables: str, reason: str = "asked") -> str:
        wanted = [TableRequest("public", table) for table in tables]
        return self.ledger.request(self.source.id, reason, wanted, log_id=self.log[0], since=0)

    def ask_for_repair(self) -> str:
        """As `tailrace snapshot --repair` does."""
        return self.ask(*(table for _, table, _ in self.source.snapshot_tables()), reason=ASKED)

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Until the condition holds; by default until every run is over."""

        def over() -> bool:
            self.snapshots.step()
            assert self.snapshots.failure is None, self.snapshots.failure
            return until() if until is not None else not self.snapshots.busy

        eventually(over, 60, every=0.003)


class PlannerProcess:
    """A `Planner` that begins and works until it is killed."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        request = {"config": config, "folder": str(folder), "parent": os.getpid()}
        command = [sys.executable, "-m", "tests.capture.snapshot_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request))
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def config_of(db: Database, **settings: Any) -> dict[str, Any]:
    """What tap and planner are told."""
    snapshot = {"chunk_size": 10, "max_parallel_chunks": 1, **settings.pop("snapshot", {})}
    return {"id": db.name, "dsn": db.dsn, "tables": ["public.*"], "snapshot": snapshot, **settings}


def only_run(ledger: SnapshotLedger, source: str) -> Run | None:
    """The one run there is; None before it."""
    runs = ledger.runs(source)
    assert len(runs) < 2, runs
    return runs[0] if runs else None


def main() -> None:
    request = json.load(sys.stdin)
    lifeline.hold(request["parent"])
    planner = Planner(request["config"], Path(request["folder"]))
    planner.begin()
    while planner.snapshots.failure is None:
        planner.snapshots.step()
        time.sleep(0.003)


if __name__ == "__main__":
    main()
