"""The state of a pipeline, derived from what its parts do. It is the worst of theirs, and never an assumption: idle is
not stalled, and alive is not healthy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tailrace.supervisor.runtime import Generation
from tailrace.supervisor.service.wishes import DesiredState
from tailrace.supervisor.status import LetterStatus, PipelineStatus, SinkStatus, SnapshotStatus, TapStatus

PipelineState = Literal["created", "starting", "snapshotting", "running", "degraded", "paused", "stopped", "failed"]

STALLED_S = 60.0
"""A sink that says it runs, has changes waiting, and delivers none of them for so long, is stalled."""


@dataclass(frozen=True)
class Finding:
    """A part of a pipeline, and what is the matter with it: `part` is `source:ID`, `sink:ID`, `snapshot`, `runtime` or
    `document`."""

    part: str
    state: PipelineState
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class PipelineView:
    """A pipeline as it is. `findings` are what keeps it from being well, the worst first."""

    name: str
    generation: Generation
    desired: DesiredState
    state: PipelineState
    since: float
    findings: tuple[Finding, ...] = ()
    tap: TapStatus | None = None
    sinks: tuple[SinkStatus, ...] = ()
    snapshots: tuple[SnapshotStatus, ...] = ()
    committed: PipelineStatus | None = None
    letters: tuple[LetterStatus, ...] = ()


@dataclass(frozen=True)
class Parts:
    """What is known of a pipeline's parts. `carried`: its runtime has begun with it. `refused`: why it cannot begin."""

    desired: DesiredState
    held: bool
    carried: bool
    tap: TapStatus | None = None
    sinks: tuple[SinkStatus, ...] = ()
    optional: frozenset[str] = frozenset()
    snapshots: tuple[SnapshotStatus, ...] = ()
    snapshot_errors: tuple[dict[str, str], ...] = ()
    refused: Finding | None = None
    runtime: Finding | None = None


def state_of(parts: Parts, stalled: Mapping[str, float]) -> tuple[PipelineState, list[Finding]]:
    """The state, and what is the matter, the worst first. `stalled`: for how long sinks have been."""
    findings = sorted(_findings(parts, stalled), key=lambda each: WORST.index(each.state))
    if parts.refused is not None:
        return parts.refused.state, findings
    if parts.desired != "running":
        over = not parts.carried and (parts.desired == "paused" or not parts.held)
        return (parts.desired if over else "running"), findings
    if findings:
        return findings[0].state, findings
    return _well(parts), findings


class StallWatch:
    """Notices sinks that get nowhere while changes wait for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved: dict[str, tuple[tuple[int | None, int], float]] = {}

    def look(self, sinks: Iterable[SinkStatus]) -> dict[str, float]:
        """For how long each stalled sink has not moved, in seconds."""
        now, known, self._moved = self._clock(), self._moved, {}
        stalled = {}
        for sink in sinks:
            place = (sink.offset, sink.batches)
            idle = not sink.lag_rows or sink.state != "running"
            last = known.get(sink.sink)
            since = now if idle or last is None or last[0] != place else last[1]
            self._moved[sink.sink] = (place, since)
            if now - since > STALLED_S:
                stalled[sink.sink] = now - since
        return stalled


WORST: tuple[PipelineState, ...] = (
    "failed",
    "degraded",
    "starting",
    "snapshotting",
    "running",
    "paused",
    "stopped",
    "created",
)


def _well(parts: Parts) -> PipelineState:
    begun = parts.carried and parts.tap is not None and parts.tap.state == "running"
    if not begun or any(sink.state == "starting" for sink in parts.sinks):
        return "starting"
    reading = any(each.state not in ("failed", "done") for each in parts.snapshots)
    return "snapshotting" if reading else "running"


def _findings(parts: Parts, stalled: Mapping[str, float]) -> Iterable[Finding]:
    for found in (parts.refused, parts.runtime):
        if found is not None:
            yield found
    yield from _of_tap(parts.tap)
    for sink in parts.sinks:
        yield from _of_sink(sink, sink.sink in parts.optional, stalled.get(sink.sink))
    for error in parts.snapshot_errors:
        yield Finding("snapshot", "degraded", error["code"], error["message"], error["hint"])


def _of_tap(tap: TapStatus | None) -> Iterable[Finding]:
    if tap is None:
        return
    part = f"source:{tap.source}"
    match tap.state:
        case "failed":
            yield _told(part, "failed", tap.error, "its tap has stopped")
        case "waiting":
            yield _told(part, "degraded", tap.error, "its tap waits to be started again")
        case "silent":
            hint = "it is busy or hangs; the log in the data directory's taps folder may say more"
            yield Finding(
                part, "degraded", "source.silent", f"its tap has said nothing for {tap.age_s or 0:.0f} s", hint
            )
        case "blocked":
            holders = ", ".join(f"{each.name} ({each.rows:,} changes)" for each in tap.holders) or "a required sink"
            message = f"the log is full and waits for {holders}; meanwhile the source keeps its changes"
            yield Finding(part, "degraded", "log.full", message, "mend what is waited for, or raise log.retention")
        case _:
            return


def _of_sink(sink: SinkStatus, optional: bool, stalled: float | None) -> Iterable[Finding]:
    part = f"sink:{sink.sink}"
    match sink.state:
        case "failed" | "expired":
            yield _told(part, "degraded" if optional else "failed", sink.error, "it has stopped")
        case "waiting":
            yield _told(part, "degraded", sink.error, "it waits for its target")
        case "running" if stalled is not None:
            message = f"{sink.lag_rows:,} changes wait and none was delivered for {stalled:.0f} s"
            hint = "its target may hang: see spark.log in the data directory; resuming the pipeline starts it again"
            yield Finding(part, "degraded", "sink.stalled", message, hint)
        case _:
            return


def _told(part: str, state: PipelineState, error: dict[str, str] | None, otherwise: str) -> Finding:
    if error is None:
        return Finding(part, state, "unknown", otherwise)
    return Finding(part, state, error["code"], error["message"], error["hint"])
