"""A service that runs nothing: documents are real, and what pipelines do is what a test says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.spec import Platform
from tailrace.supervisor.service import Service
from tailrace.supervisor.service.states import Finding, PipelineState, PipelineView
from tailrace.supervisor.service.wishes import DesiredState
from tailrace.supervisor.status import LetterStatus, PipelineStatus, SinkStatus, SnapshotStatus, TableStatus, TapStatus

PASSWORD = "canary-4711"


class Recorded(Service):
    """`show` sets what a pipeline is seen to do."""

    def show(self, view: PipelineView) -> None:
        self._reconciler._views[view.name] = view
        self._on_view(view)

    def add_many(self, number: int) -> None:
        """Pipelines `p000`, … that run."""
        for name in (f"p{n:03}" for n in range(number)):
            self._documents.put("pipeline", name, document(name), expected_version=0, actor="test", cause="test")
            self._desires.set(name, "running", actor="test", cause="test")
            self._reconciler._views[name] = running(name)


@contextmanager
def recorded(folder: Path) -> Iterator[Recorded]:
    service = Recorded(
        Platform.from_document({"data_dir": str(folder / "data")}), {"DSN": "postgresql://u@localhost/x"}
    )
    try:
        yield service
    finally:
        service.close()


def document(name: str, **labels: str) -> dict[str, Any]:
    source = {"id": "shop", "dsn": "${DSN}", "tables": ["public.*"], "snapshot": {}}
    hook = {
        "id": "hook",
        "required": False,
        "url": "http://localhost:9/",
        "auth": {"type": "bearer", "token": PASSWORD},
    }
    sinks = [
        {"type": "file", "config": {"id": "files", "path": "/tmp/x", "format": "jsonl"}},
        {"type": "http", "config": hook},
    ]
    spec = {"source": {"type": "postgres", "config": source}, "sinks": sinks}
    spec["processors"] = [{"type": "filter", "id": "keep", "ops": ["create", "update"]}]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def running(name: str, *, lag_rows: int | None = 0, lag_s: float | None = 0.0, changes: int = 1200) -> PipelineView:
    """Everything is well."""
    tables = {"public.items": TableStatus(changes, 99, int((time.time() - 3) * 1e6))}
    tap = TapStatus("shop", "running", rows=changes, lag_bytes=0, lag_s=0.1, held_bytes=5 << 20, head=changes)
    sinks = (
        SinkStatus(name, "files", "file", "shop", "running", changes, lag_rows, lag_s, 7, tables=tables),
        SinkStatus(name, "hook", "http", "shop", "running", changes, 0, 0.0, 7, tables=tables),
    )
    letters = (LetterStatus(name, 0, 0, 1000, 0, 0),)
    done = PipelineStatus(name, "required", changes)
    return PipelineView(name, (1, 0), "running", "running", time.time() - 60, (), tap, sinks, (), done, letters)


def unwell(name: str, state: PipelineState = "degraded") -> PipelineView:
    """A sink waits for its target, and the source's WAL runs out."""
    message, hint = "connection refused at localhost:9", "start the target, or correct `url`"
    error = {"code": "sink.unavailable", "message": message, "hint": hint, "where": ""}
    finding = Finding("sink:hook", state, "sink.unavailable", message, hint)
    tap = TapStatus(
        "shop", "running", rows=900, lag_bytes=4096, lag_s=2.0, held_bytes=3 << 30, head=900, time_to_loss_s=5400.0,
        warnings=("the slot holds 3 GiB: the disk fills",),
    )  # fmt: skip
    sinks = (
        SinkStatus(name, "files", "file", "shop", "running", 900, 0, 0.0, 7),
        SinkStatus(name, "hook", "http", "shop", "waiting", 400, 500, 83.0, 3, error=error),
    )
    return PipelineView(name, (1, 0), "running", state, time.time() - 80, (finding,), tap, sinks)


def reading(name: str) -> PipelineView:
    """A snapshot is under way."""
    tap = TapStatus("shop", "running", rows=0, head=10)
    snapshots = (
        SnapshotStatus("shop", "r1", "public.orders", "reading", 40_000, 100_000),
        SnapshotStatus("shop", "r1", "public.items", "done", 900, None),
    )
    return PipelineView(name, (1, 0), "running", "snapshotting", time.time(), (), tap, (), snapshots)


def resting(name: str, desired: DesiredState, state: PipelineState) -> PipelineView:
    return PipelineView(name, (1, 0), desired, state, time.time() - 7200)
