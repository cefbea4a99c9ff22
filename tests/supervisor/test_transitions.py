"""What is logged of a run: each change of its status once, and nothing while things go on as before."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tailrace import telemetry
from tailrace.supervisor.status import (
    LetterStatus,
    PipelineStatus,
    SinkStatus,
    SnapshotStatus,
    Status,
    TapStatus,
)
from tailrace.supervisor.transitions import BEHIND_S, QUIET_S, Transitions

AWAY = {"code": "sink.unavailable", "message": "h cannot be reached: refused", "hint": "start it", "where": "lake"}
LOST = {"code": "source.disconnected", "message": "the server went away", "hint": "", "where": ""}
TAP = TapStatus("db", "running", settled="0/16")
SINK = SinkStatus("shop", "lake", "delta", "db", "running", offset=10, batches=1)
RUN = Status(0.0, 0.0, (TAP,), (SINK,), pipelines=(PipelineStatus("shop", "all", 10),))


class Watched:
    """A run whose log is read."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream, self._transitions, self._at = stream, Transitions(), 0.0

    def look(self, status: Status, after_s: float = 0.5) -> list[dict[str, Any]]:
        """What is new in a status is logged so."""
        self._at += after_s
        return self._said(lambda: self._transitions.look(replace(status, at=self._at)))

    def end(self) -> list[dict[str, Any]]:
        return self._said(self._transitions.end)

    def tap(self, **fields: Any) -> list[dict[str, Any]]:
        return self.look(replace(RUN, taps=(replace(TAP, **fields),)))

    def sink(self, after_s: float = 0.5, **fields: Any) -> list[dict[str, Any]]:
        return self.look(replace(RUN, sinks=(replace(SINK, **fields),)), after_s)

    def _said(self, act: Any) -> list[dict[str, Any]]:
        before = len(self._stream.getvalue())
        act()
        found = [json.loads(line) for line in self._stream.getvalue()[before:].splitlines()]
        return [{name: value for name, value in line.items() if name != "at"} for line in found]


@pytest.fixture
def run() -> Iterator[Watched]:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = list(root.handlers), telemetry.level()
    telemetry.configure("info", "json", stream)
    yield Watched(stream)
    root.handlers[:] = handlers
    telemetry.set_level(level)


@pytest.fixture
def running(run: Watched) -> Watched:
    run.look(RUN)
    assert run.look(RUN) == []
    return run


def events(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["level"], line["event"]) for line in lines]


def test_a_run_begins_and_ends(run: Watched) -> None:
    starting = replace(RUN, taps=(TapStatus("db"),), sinks=(replace(SINK, state="starting", offset=None),))
    assert run.look(starting) == [
        {"event": "pipeline.started", "level": "info", "pipeline": "shop", "commit_policy": "all"}
    ]
    assert run.look(RUN) == [
        {
            "event": "source.state_changed",
            "level": "info",
            "source": "db",
            "state": "running",
            "was": "starting",
            "position": "0/16",
        },
        {
            "event": "sink.state_changed",
            "level": "info",
            "pipeline": "shop",
            "sink": "lake",
            "source": "db",
            "state": "running",
            "was": "starting",
            "offset": 10,
        },
    ]
    assert run.look(replace(RUN, sinks=(replace(SINK, offset=99, batches=50),))) == [], "progress is no event"
    assert run.end() == [{"event": "pipeline.stopped", "level": "info", "pipeline": "shop"}]
    assert run.end() == []


def test_a_pipeline_that_leaves_is_told(running: Watched) -> None:
    assert events(running.look(replace(RUN, sinks=(), pipelines=()))) == [("info", "pipeline.stopped")]
    assert events(running.look(RUN))[0] == ("info", "pipeline.started")


def test_a_target_that_is_away_is_told_once_and_when_it_is_back(running: Watched) -> None:
    [line] = running.sink(state="waiting", error=AWAY, errors={AWAY["code"]: 1})
    assert (line["event"], line["level"], line["state"]) == ("pipeline.sink_write_error", "warning", "waiting")
    assert (line["code"], line["error"], line["hint"]) == (AWAY["code"], "h cannot be reached", "start it")
    for tries in range(2, 30):
        assert running.sink(state="running", errors={AWAY["code"]: tries - 1}) == []
        assert running.sink(state="waiting", error=AWAY, errors={AWAY["code"]: tries}) == []
    other = {**AWAY, "code": "log.no_space", "message": "full"}
    [line] = running.sink(state="waiting", error=other, errors={AWAY["code"]: 29, other["code"]: 1})
    assert (line["event"], line["error"]) == ("sink.error", "full")
    counts = {AWAY["code"]: 29, other["code"]: 1}
    assert running.sink(state="running", errors=counts) == []
    assert events(running.sink(state="running", errors=counts, batches=2)) == [("info", "sink.recovered")]
    assert running.sink(state="running", errors=counts, batches=3) == []


def test_a_sink_with_nothing_to_deliver_recovers_too(running: Watched) -> None:
    running.sink(state="waiting", error=AWAY, errors={AWAY["code"]: 1})
    assert running.sink(state="running", errors={AWAY["code"]: 1}) == []
    lines = running.sink(state="running", errors={AWAY["code"]: 1}, after_s=QUIET_S)
    assert events(lines) == [("info", "sink.recovered")]


def test_an_error_between_two_looks_is_told(running: Watched) -> None:
    [line] = running.sink(errors={"sink.again": 1})
    assert (line["event"], line["code"]) == ("pipeline.sink_write_error", "sink.again")


def test_what_ends_a_sink_is_an_error(running: Watched) -> None:
    running.sink(state="waiting", error=AWAY, errors={AWAY["code"]: 1})
    [line] = running.sink(state="failed", error=AWAY, errors={AWAY["code"]: 2})
    assert (line["event"], line["level"], line["state"]) == ("pipeline.sink_write_error", "error", "failed")
    expired = {"code": "log.expired", "message": "the log begins at 9", "hint": "read anew", "where": "lake"}
    [line] = running.sink(state="failed", error=expired, errors={AWAY["code"]: 2, "log.expired": 1})
    assert (line["event"], line["code"], line["hint"]) == ("sink.error", "log.expired", "read anew")


def test_a_database_that_is_away_is_told_once_and_when_it_is_back(running: Watched) -> None:
    [line] = running.tap(state="waiting", error=LOST, errors={LOST["code"]: 1})
    assert (line["event"], line["level"], line["source"]) == ("source.error", "warning", "db")
    for tries in range(2, 10):
        assert running.tap(state="starting", errors={LOST["code"]: tries - 1}) == []
        assert running.tap(state="waiting", error=LOST, errors={LOST["code"]: tries}) == []
    lines = running.tap(state="running", errors={LOST["code"]: 9}, settled="0/20")
    assert events(lines) == [("info", "source.state_changed"), ("info", "source.recovered")]
    assert lines[-1]["position"] == "0/20"


def test_taps_that_hang_die_and_block(running: Watched) -> None:
    assert events(running.tap(state="silent")) == [("warning", "source.state_changed")]
    assert events(running.tap(state="running", restarts=1)) == [
        ("warning", "source.restarted"),
        ("info", "source.state_changed"),
    ]
    lines = running.tap(state="blocked", restarts=1, warnings=("the log is full (9.1 MiB of at most 8.0 MiB)",))
    assert events(lines) == [("warning", "source.state_changed"), ("warning", "warning.raised")]
    drift = {"code": "source.schema_drift", "message": "a column is gone", "hint": "", "where": "public.a"}
    [line, _] = running.tap(state="failed", error=drift, restarts=1)
    assert (line["event"], line["level"]) == ("schema.incompatible_change_detected", "error")


def test_a_warning_is_told_when_it_comes_and_when_it_goes(running: Watched) -> None:
    [line] = running.sink(warnings=("9 rows wait, 3.5 MiB",))
    assert (line["event"], line["warning"]) == ("warning.raised", "9 rows wait, 3.5 MiB")
    assert running.sink(warnings=("1,234 rows wait, 7.0 MiB",)) == [], "only its figures changed"
    [line] = running.sink()
    assert (line["event"], line["warning"]) == ("warning.cleared", "1,234 rows wait, 7.0 MiB")


def test_a_table_that_halts_is_told_without_what_its_reason_quotes(running: Watched) -> None:
    lines = running.sink(warnings=("public.a halted: 'canary' is no number; mend it",))
    assert events(lines) == [("error", "table.halted")] and "canary" not in str(lines)
    assert (lines[0]["table"], lines[0]["sink"]) == ("public.a", "lake")
    [line] = running.sink()
    assert (line["event"], line["table"]) == ("table.resumed", "public.a")


def test_another_version_of_a_table_is_told(running: Watched) -> None:
    assert running.tap(schemas={"public.a": 1, "public.b": 3}) == [], "what the log has already"
    [line] = running.tap(schemas={"public.a": 2, "public.b": 3, "public.c": 1})
    assert (line["event"], line["table"], line["version"]) == ("schema.version_changed", "public.a", 2)


def test_a_sink_far_behind_is_told_now_and_then(running: Watched) -> None:
    assert running.sink(lag_rows=5, lag_s=BEHIND_S - 1) == []
    [line] = running.sink(lag_rows=5000, lag_s=BEHIND_S, after_s=BEHIND_S)
    assert (line["event"], line["total_lag"], line["lag_seconds"]) == ("consumer.lag", 5000, 60)
    assert running.sink(lag_rows=5000, lag_s=2 * BEHIND_S) == []
    assert events(running.sink(lag_rows=9, lag_s=BEHIND_S, after_s=BEHIND_S)) == [("info", "consumer.lag")]


def test_snapshots_begin_wait_fail_and_end(running: Watched) -> None:
    one, two = (SnapshotStatus("db", "r1", f"public.{name}", "reading", 5, None) for name in "ab")
    [line] = running.look(replace(RUN, snapshots=(one, two)))
    assert (line["event"], line["run"], line["tables"]) == ("snapshot.started", "r1", 2)
    waits = replace(one, error=LOST)
    assert events(running.look(replace(RUN, snapshots=(waits, two)))) == [("warning", "snapshot.table_waiting")]
    assert running.look(replace(RUN, snapshots=(waits, replace(two, rows=9)))) == []
    failed = replace(two, state="failed", error={**LOST, "code": "source.privilege"})
    [line] = running.look(replace(RUN, snapshots=(one, failed)))
    assert (line["event"], line["level"], line["table"]) == ("snapshot.table_failed", "error", "public.b")
    assert events(running.look(replace(RUN, snapshots=(failed,)))) == [("info", "snapshot.finished")]
    assert running.look(RUN) == [], "a table that failed stays until it was read, and is no run"


def test_dead_letters_are_told_when_the_first_comes_and_the_last_goes(running: Watched) -> None:
    def letters(opened: int, evicted: int = 0) -> Status:
        return replace(RUN, letters=(LetterStatus("shop", opened, 0, 20, evicted, 0),))

    assert running.look(letters(0)) == []
    [line] = running.look(letters(3))
    assert (line["event"], line["level"], line["letters"]) == ("dlq.opened", "warning", 3)
    assert running.look(letters(9)) == []
    [line] = running.look(letters(9, evicted=2), after_s=BEHIND_S)
    assert (line["event"], line["letters"]) == ("dlq.evicted", 2)
    assert running.look(letters(9, evicted=4)) == []
    [line] = running.look(letters(9, evicted=5), after_s=BEHIND_S)
    assert (line["event"], line["letters"]) == ("dlq.evicted", 3)
    assert events(running.look(letters(0, evicted=5))) == [("info", "dlq.cleared")]
