"""Pipelines of a server as the views of a run have them (`live`), and in order of how bad they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from tailrace.supervisor.status import SinkState, SinkStatus, SnapshotStatus, Status, TableStatus, TapState, TapStatus

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Fault, Figures, Pipeline, Sink, Source

WORST = ("failed", "degraded", "starting", "created", "snapshotting", "running", "paused", "stopped")


def worst_first(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
    """By their states, then by name. A state that is not known here is bad."""
    places = {state: place for place, state in enumerate(WORST)}
    return sorted(pipelines, key=lambda each: (places.get(each.status, -1), each.name))


def status_of(pipelines: Sequence[Pipeline], at: float) -> Status:
    """All that they tell, as one look at a run."""
    known = [(each.name, each.ops) for each in pipelines if each.ops is not None]
    sources = {figures.source.id: figures.source for _, figures in known if figures.source is not None}
    return Status(
        at,
        at,
        tuple(_tap(source) for source in sources.values()),
        tuple(_sink(name, figures, sink) for name, figures in known for sink in figures.sinks),
        tuple(dict.fromkeys(each for _, figures in known for each in _snapshots(figures))),
    )


def _tap(source: Source) -> TapStatus:
    return TapStatus(
        source.id,
        cast(TapState, source.state),
        rows=source.rows,
        lag_bytes=source.lag_bytes,
        lag_s=source.lag_seconds,
        head=source.log_end,
        held_bytes=source.held_bytes,
        warnings=source.warnings,
        error=_error(source.error),
    )


def _sink(pipeline: str, figures: Figures, sink: Sink) -> SinkStatus:
    tables = {
        each.table: TableStatus(each.rows, None, each.last_change_at and int(each.last_change_at * 1e6))  # type: ignore[arg-type]
        for each in figures.tables
        if each.sink == sink.id
    }
    return SinkStatus(
        pipeline,
        sink.id,
        sink.type,
        "" if figures.source is None else figures.source.id,
        cast(SinkState, sink.state),
        offset=sink.offset,
        lag_rows=sink.lag_rows,
        lag_s=sink.lag_seconds,
        batches=sink.batches,
        tables=tables,
        warnings=sink.warnings,
        error=_error(sink.error),
    )


def _snapshots(figures: Figures) -> Iterable[SnapshotStatus]:
    source = "" if figures.source is None else figures.source.id
    for each in figures.snapshots:
        yield SnapshotStatus(source, "", each.table, each.state, each.rows, each.estimate, _error(each.error))


def _error(error: Fault | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "message": error.message, "hint": error.hint}
