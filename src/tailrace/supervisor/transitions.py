"""What a run logs: how one look at it differs from the look before.

Nobody else needs to say that a tap waits, that a table halted or that a sink has recovered: whoever changes the status
has said it. So nothing is logged where changes are carried, and what goes on as before is never said again. A thing
that is tried again and again for one reason is one event when it begins and one when it is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace import telemetry
from tailrace.supervisor.status import (
    LetterStatus,
    PipelineStatus,
    SinkStatus,
    SnapshotStatus,
    Status,
    TapStatus,
)

BEHIND_S = 60.0
"""A sink that is this far behind is told of, and told of again after as long."""
QUIET_S = 30.0
"""A sink that runs without an error for this long has recovered, though there was nothing to deliver."""
DRIFT = "source.schema_drift"
_SEVERITY = {"failed": "error", "waiting": "warning", "blocked": "warning", "silent": "warning"}
_HALTED = re.compile(r"(?P<table>.+?) halted: ")
_FIGURES = re.compile(r"\d[\d.,]*")
Known = dict[str, str]


class Transitions:
    """Of one run: `look` at each of its statuses, in order, and `end` after the last."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], _Seen] = {}

    def look(self, status: Status) -> None:
        """Log what is new in a status."""
        found = dict(_parts(status))
        for place, part in found.items():
            self._seen.setdefault(place, _SEEN[place[0]]()).look(part, status.at)
        for place in [place for place in self._seen if place not in found]:
            self._seen.pop(place).gone()

    def end(self) -> None:
        """Nothing of it runs any longer."""
        for seen in self._seen.values():
            seen.gone()
        self._seen.clear()


def _parts(status: Status) -> Iterable[tuple[tuple[str, ...], Any]]:
    """What is looked at, by its kind and its name; pipelines first, since theirs are the first and the last words."""
    for pipeline in status.pipelines:
        yield ("pipeline", pipeline.pipeline), pipeline
    for tap in status.taps:
        yield ("tap", tap.source), tap
    for sink in status.sinks:
        yield ("sink", sink.pipeline, sink.sink, sink.source), sink
    for letters in status.letters:
        yield ("letters", letters.pipeline), letters
    tables = sorted(status.snapshots, key=lambda each: (each.source, each.run))
    for source, run in dict.fromkeys((each.source, each.run) for each in tables):
        yield ("snapshot", source, run), [each for each in tables if (each.source, each.run) == (source, run)]


class _Seen(Protocol):
    def look(self, part: Any, at: float) -> None:
        """The part as it is now."""

    def gone(self) -> None:
        """It is not in the status any longer."""


class _Pipeline:
    _log: Any = None

    def look(self, part: PipelineStatus, at: float) -> None:
        if self._log is None:
            self._log = telemetry.logger(pipeline=part.pipeline)
            self._log.info("pipeline.started", commit_policy=part.mode)

    def gone(self) -> None:
        self._log.info("pipeline.stopped")


@dataclass
class _Warnings:
    """Warnings that stand. Their figures may change without a new word."""

    known: Known = field(default_factory=dict)

    def look(self, log: Any, texts: Iterable[str]) -> None:
        now = {_FIGURES.sub("#", text): text for text in texts}
        for shape, text in now.items():
            if shape not in self.known:
                self._tell(log, text)
        for shape in self.known.keys() - now.keys():
            halted = _HALTED.match(self.known[shape])
            if halted:
                log.info("table.resumed", table=halted["table"])
            else:
                log.info("warning.cleared", warning=self.known[shape])
        self.known = now

    def _tell(self, log: Any, text: str) -> None:
        """Why a table halted may quote a row."""
        halted = _HALTED.match(text)
        if halted:
            log.error(
                "table.halted", table=halted["table"], hint="the status has the reason; its next start tries again"
            )
        else:
            log.warning("warning.raised", warning=text)


@dataclass
class _Trouble:
    """Errors of one thing that is tried again: told when their reason changes, and when it works again."""

    code: str = ""
    last_at: float = 0.0
    _state: str = ""
    _counted: Mapping[str, int] = field(default_factory=dict)

    def new(self, part: TapStatus | SinkStatus, at: float) -> Mapping[str, str] | None:
        """What is to be told: an error of another kind than the last, one that ended it all, or one that came and went
        between two looks."""
        passed = [code for code, count in part.errors.items() if count > self._counted.get(code, 0)]
        ended = part.state == "failed" != self._state
        error, self._counted, self._state = part.error, part.errors, part.state
        if passed or error is not None:
            self.last_at = at
        if error is None and passed:
            error = {"code": passed[-1], "message": "it has passed"}
        if error is None or (error["code"] == self.code and not ended):
            return None
        self.code = error["code"]
        return error

    def is_over(self) -> bool:
        """Whether there was any, which is forgotten now."""
        had, self.code = bool(self.code), ""
        return had


class _Tap:
    def __init__(self) -> None:
        self._before: TapStatus | None = None
        self._trouble, self._warnings = _Trouble(), _Warnings()

    def look(self, part: TapStatus, at: float) -> None:
        log = telemetry.logger(source=part.source)
        before = self._before or TapStatus(part.source, schemas=part.schemas, restarts=part.restarts)
        self._before = part
        error = self._trouble.new(part, at)
        if part.restarts > before.restarts:
            log.warning("source.restarted", restarts=part.restarts)
        if error is not None:
            name = "schema.incompatible_change_detected" if error["code"] == DRIFT else "source.error"
            _say(log, name, part.state, **telemetry.of_error(error))
        elif part.state != before.state and not (self._trouble.code and part.state in ("starting", "waiting")):
            _say(log, "source.state_changed", part.state, was=before.state, position=part.settled or None)
        if part.state == "running" and self._trouble.is_over():
            log.info("source.recovered", position=part.settled or None)
        self._look_at_schemas(log, before.schemas, part.schemas)
        self._warnings.look(log, part.warnings)

    def _look_at_schemas(self, log: Any, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        if before is now or not before:
            return
        for table, versions in now.items():
            if versions != before.get(table, 0):
                tell = log.info if table in before else log.debug
                tell("schema.version_changed", table=table, version=versions)

    def gone(self) -> None:
        pass


class _Sink:
    def __init__(self) -> None:
        self._before: SinkStatus | None = None
        self._trouble, self._warnings = _Trouble(), _Warnings()
        self._batches = 0
        self._told_behind = 0.0

    def look(self, part: SinkStatus, at: float) -> None:
        log = telemetry.logger(pipeline=part.pipeline, sink=part.sink, source=part.source)
        before = self._before or SinkStatus(part.pipeline, part.sink, part.kind, part.source)
        self._before = part
        error = self._trouble.new(part, at)
        if self._trouble.last_at == at:
            self._batches = part.batches
        if error is not None:
            name = "pipeline.sink_write_error" if error["code"].startswith("sink.") else "sink.error"
            _say(log, name, part.state, offset=part.offset, **telemetry.of_error(error))
        elif part.state != before.state and not (self._trouble.code and part.state in ("running", "waiting")):
            _say(log, "sink.state_changed", part.state, was=before.state, offset=part.offset)
        if part.state == "running" and self._works(part, at) and self._trouble.is_over():
            log.info("sink.recovered", offset=part.offset)
        self._look_at_lag(log, part, at)
        self._warnings.look(log, part.warnings)

    def _works(self, part: SinkStatus, at: float) -> bool:
        """Since its last error it has delivered something, or nothing has come of its next try for long."""
        return part.batches > self._batches or at >= self._trouble.last_at + QUIET_S

    def _look_at_lag(self, log: Any, part: SinkStatus, at: float) -> None:
        if (part.lag_s or 0.0) >= BEHIND_S and at >= self._told_behind + BEHIND_S:
            self._told_behind = at
            log.info("consumer.lag", total_lag=part.lag_rows, lag_seconds=round(part.lag_s or 0.0), offset=part.offset)

    def gone(self) -> None:
        pass


class _Letters:
    def __init__(self) -> None:
        self._open = 0
        self._evicted: int | None = None
        self._told_evicted = 0.0
        self._warnings = _Warnings()

    def look(self, part: LetterStatus, at: float) -> None:
        log = telemetry.logger(pipeline=part.pipeline)
        if part.open and not self._open:
            log.warning("dlq.opened", letters=part.open)
        if self._open and not part.open:
            log.info("dlq.cleared")
        self._open = part.open
        known = part.evicted if self._evicted is None else self._evicted
        if part.evicted > known and at >= self._told_evicted + BEHIND_S:
            log.warning("dlq.evicted", letters=part.evicted - known)
            known, self._told_evicted = part.evicted, at
        self._evicted = known
        self._warnings.look(log, part.warnings)

    def gone(self) -> None:
        pass


class _Snapshot:
    """A run of tables. Those that failed stay in the status when it is over."""

    def __init__(self) -> None:
        self._log: Any = None
        self._under_way = False
        self._errors: dict[str, tuple[str, str]] = {}

    def look(self, part: list[SnapshotStatus], at: float) -> None:
        self._log = self._log or telemetry.logger(source=part[0].source, run=part[0].run)
        under_way = any(table.state != "failed" for table in part)
        if under_way and not self._under_way:
            self._log.info("snapshot.started", tables=len(part))
        for table in part:
            self._look(table)
        if self._under_way and not under_way:
            self.gone()
        self._under_way = under_way

    def _look(self, table: SnapshotStatus) -> None:
        if table.error is None:
            self._errors.pop(table.table, None)
            return
        state = "failed" if table.state == "failed" else "waiting"
        if self._errors.get(table.table) != (state, table.error["code"]):
            self._errors[table.table] = state, table.error["code"]
            name = "snapshot.table_failed" if state == "failed" else "snapshot.table_waiting"
            _say(self._log, name, state, table=table.table, **telemetry.of_error(table.error))

    def gone(self) -> None:
        if self._under_way:
            self._under_way = False
            self._log.info("snapshot.finished")


_SEEN: Mapping[str, type[_Seen]] = {
    "pipeline": _Pipeline,
    "tap": _Tap,
    "sink": _Sink,
    "letters": _Letters,
    "snapshot": _Snapshot,
}


def _say(log: Any, event: str, state: str, **fields: Any) -> None:
    """As loudly as the state is bad; what is not known is left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    getattr(log, _SEVERITY.get(state, "info"))(event, state=state, **known)
