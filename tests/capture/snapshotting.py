"""Snapshots in one process: planner, reader and admission beside a capture, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.backoff import Backoff
from tailrace.capture.snapshots import request_needed
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.spark.snapshot import ReadHere
from tailrace.supervisor.snapshots import Snapshots
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Change, Database

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, big text, v text)"
EXTERNAL = "ALTER TABLE items ALTER big SET STORAGE EXTERNAL"
BIG = "x" * 4000


class Snapshotting:
    """A capture that admits chunks, and the planner and readers for it. Leave it to crash it: nothing is drained."""

    def __init__(
        self, db: Database, folder: Path, *, ledger: type[SnapshotLedger] = SnapshotLedger, **settings: Any
    ) -> None:
        snapshot = {"chunk_size": 10, "max_parallel_chunks": 1, **settings.pop("snapshot", {})}
        self.capturing = Capturing(db, folder / "log", pause=self._pause, ledger=ledger, snapshot=snapshot, **settings)
        self.source, self.ledger = self.capturing.source, self.capturing.ledger
        self.snapshots = Snapshots(
            self.source, self.ledger, ReadHere(self.source, folder / "staged"), Backoff(0.01, 0.1, 0.0)
        )
        self._gate = self.capturing.admissions.tick
        self.capturing.admissions.tick = self._tick  # type: ignore[method-assign,assignment]
        self.admitting = True
        self._death: BaseException | None = None

    def __enter__(self) -> Self:
        self.capturing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.capturing.__exit__(kind, error, trace)
        self.snapshots.close()

    def die(self, how: BaseException, *, late: bool) -> None:
        """End like a process that is killed: with rows in memory, and, if `late`, a chunk in the log that the ledger
        does not know of, where one comes in time."""
        if late:
            self.ledger.dying = True  # type: ignore[attr-defined]
        else:
            self._death = how
        with suppress(AssertionError):
            eventually(lambda: self.capturing.error is not None, 0.1 if late else 10, every=0.003)
        self._death = how
        eventually(lambda: self.capturing.error is not None, 10, every=0.003)
        assert isinstance(self.capturing.error, type(how)), self.capturing.error
        self.__exit__(None, None, None)

    def begin(self) -> None:
        self.snapshots.begin(self.capturing.log.log_id, set())

    def request(self, *tables: str, filter: str | None = None) -> str:
        wanted = [TableRequest("public", name, filter) for name in tables]
        return self.ledger.request(self.source.id, "asked", wanted, log_id=self.capturing.log.log_id, since=0)

    def finish(self) -> list[Change]:
        """Until every run is over; returns what the log has then."""
        self.work()
        return self.capturing.changes()

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Plan and read until the condition holds; by default until every run is over."""

        def over() -> bool:
            self.snapshots.step()
            if until is not None:
                return until()
            assert self.capturing.error is None, self.capturing.error
            assert self.snapshots.failure is None, self.snapshots.failure
            return not self.snapshots.busy

        eventually(over, 60, every=0.003)

    def _pause(self) -> None:
        if self._death is not None:
            raise self._death
        request_needed(self.capturing.stream.needs_snapshot, self.source.id, self.ledger, self.capturing.log)

    def _tick(self, settled: str) -> bool:
        if self.admitting:
            self._gate(settled)
        return True  # so that a test need not wait for a breath


def contents(rows: list[Change]) -> dict[tuple[str, str], Any]:
    """The tables after the changes, as a sink that upserts by key has them: (table, key) → row. A column that no change
    has told is missing."""
    state: dict[tuple[str, str], Any] = {}
    moved: dict[tuple[str, str], Any] = {}
    for row in rows:
        place, headers = (row["table"], row["key"]), dict(row["headers"] or ())
        if row["op"] == "t":
            state = {key: value for key, value in state.items() if key[0] != row["table"]}
        elif row["op"] == "d":
            moved[row["table"], headers.get("new_key", "")] = state.pop(place, {})
        elif row["op"] in "cur":
            before = moved.pop(place, {}) if "old_key" in headers else state.get(place, {})
            kept = {name: before[name] for name in row["unchanged"] or () if name in before}
            state[place] = kept | json.loads(row["after"])
    return state


def source_rows(db: Database, table: str = "items") -> list[dict[str, Any]]:
    return [json.loads(row) for (row,) in db.rows(f"SELECT to_json(t)::text FROM {table} t ORDER BY 1")]


def same(found: list[Any], db: Database, table: str = "items") -> bool:
    def order(rows: Any) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    return order(contents(found).values()) == order(source_rows(db, table))


def stage(run: Snapshotting) -> None:
    """Read all there is to read, while nothing is admitted."""
    run.admitting = False

    def read() -> bool:
        run.snapshots.step()
        [active] = run.ledger.runs(run.source.id, "active")
        planned, staged = (run.ledger.count(active.id, state) for state in ("planned", "staged"))
        return staged > 0 and planned == 0

    eventually(read, 30)
