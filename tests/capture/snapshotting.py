"""Snapshots in one process: planner, reader and admission beside a capture, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.backoff import Backoff
from tailrace.capture.snapshots import Admissions
from tailrace.control import Store
from tailrace.control.ledger import Ledger, TableRequest
from tailrace.supervisor.snapshots import Snapshots, read_here
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Change, Database


class Snapshotting:
    """A capture that admits chunks, and the planner and readers for it. Leave it to crash it: nothing is drained."""

    def __init__(self, db: Database, folder: Path, **settings: Any) -> None:
        self.source = db.source(snapshot={"chunk_size": 10, "max_parallel_chunks": 1}, **settings)
        self.ledger = Ledger(Store(folder / "control.db"))
        self.capturing = Capturing(db, folder / "log", pause=self._pause, **settings)
        self.admissions = Admissions(self.ledger, self.source, self.capturing.log)
        self.snapshots = Snapshots(
            self.source, self.ledger, read_here(self.source, folder / "staged"), Backoff(0.01, 0.1, 0.0)
        )
        self.admitting = True

    def __enter__(self) -> Self:
        self.capturing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.capturing.__exit__(kind, error, trace)
        self.snapshots.close()

    def begin(self) -> None:
        self.snapshots.begin(self.capturing.log.log_id, set())

    def request(self, *tables: str, filter: str | None = None) -> str:
        wanted = [TableRequest(*name.split(".", 1), filter) for name in tables]
        return self.ledger.request(
            self.source.id, "asked", wanted, log_id=self.capturing.log.log_id, since=0
        )

    def finish(self) -> list[Change]:
        """Until every run is over; returns what the log has then."""

        def over() -> bool:
            self.snapshots.step()
            assert self.capturing.error is None, self.capturing.error
            assert self.snapshots.failure is None, self.snapshots.failure
            return not self.snapshots.busy

        eventually(over, 60)
        return self.capturing.changes()

    def _pause(self) -> None:
        if self.admitting:
            self.admissions.tick(self.capturing.stream.settled())


def contents(rows: list[Change]) -> dict[tuple[str, str], Any]:
    """The tables after the changes, as a sink that upserts by key has them: (table, key) → row."""
    state: dict[tuple[str, str], Any] = {}
    for row in rows:
        place = (row["table"], row["key"])
        if row["op"] == "t":
            state = {key: value for key, value in state.items() if key[0] != row["table"]}
        elif row["op"] == "d":
            state.pop(place, None)
        elif row["op"] in "cur":
            headers = dict(row["headers"] or ())
            kept = state.get((row["table"], headers.get("old_key", row["key"])), {}) if row["unchanged"] else {}
            state[place] = {name: kept[name] for name in row["unchanged"] or ()} | json.loads(row["after"])
    return state
