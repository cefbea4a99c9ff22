"""How far a sink is behind: from the log itself, and unknown where the log or the sink cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.changelog import Bounds, LogReader, LogWriter, Retention, head
from tailrace.supervisor.run.backlog import Backlog, Lag
from tailrace.testing.captures import capture, insert


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(tmp_path: Path, clock: Clock) -> Iterator[LogWriter]:
    with closing(LogWriter(tmp_path / "log", "shop", segment_bytes=1500, manifest_bytes=900, clock=clock)) as opened:
        yield opened


def append(writer: LogWriter, clock: Clock, rows: int, at: float) -> None:
    clock.now = at
    first = writer.end
    writer.append(capture([insert(number) for number in range(first, first + rows)], first_xid=first + 1))


def ages(lag: Lag) -> tuple[int | None, float | None]:
    return lag.rows, lag.seconds


def test_the_oldest_change_that_waits_is_the_one_that_counts(tmp_path: Path, writer: LogWriter, clock: Clock) -> None:
    backlog = Backlog(tmp_path / "log")
    for at in range(101, 141):
        append(writer, clock, 2, float(at))
    assert ages(backlog.lag(0, 80, 200.0)) == (80, 99.0)
    assert ages(backlog.lag(1, 80, 200.0)) == (79, 99.0)
    assert ages(backlog.lag(2, 80, 200.0)) == (78, 98.0)
    assert ages(backlog.lag(79, 80, 200.0)) == (1, 60.0)
    assert ages(backlog.lag(80, 80, 200.0)) == (0, 0.0)
    append(writer, clock, 1, 190.0)
    assert ages(backlog.lag(80, 81, 200.0)) == (1, 10.0)
    assert ages(backlog.lag(4, 81, 200.0)) == (77, 97.0)  # a sink that was set back


def test_what_is_not_known_is_not_zero(tmp_path: Path, writer: LogWriter, clock: Clock) -> None:
    backlog = Backlog(tmp_path / "log")
    append(writer, clock, 3, 101.0)
    assert backlog.lag(None, 3, 200.0) == backlog.lag(0, None, 200.0) == Lag()
    assert ages(backlog.lag(3, 5, 200.0)) == (2, None)  # the log's end was read later
    assert Backlog(tmp_path / "nothing").lag(0, 3, 200.0) == Lag(3)


def test_changes_that_were_dropped_do_not_hide_those_that_wait(tmp_path: Path, writer: LogWriter, clock: Clock) -> None:
    backlog = Backlog(tmp_path / "log")
    for at in range(101, 141):
        append(writer, clock, 1, float(at))
    backlog.lag(0, 40, 200.0)
    Retention(tmp_path / "log").enforce(Bounds(max_bytes=0))
    assert ages(backlog.lag(39, head(tmp_path / "log"), 200.0)) == (1, 60.0)


def test_what_waits_is_weighed_and_told_by_table(tmp_path: Path, writer: LogWriter, clock: Clock) -> None:
    backlog = Backlog(tmp_path / "log")
    for at in range(101, 141):
        append(writer, clock, 2, float(at))
    whole = sum(line.bytes for line in LogReader(tmp_path / "log").lines)
    lag = backlog.lag(0, 80, 200.0)
    assert (lag.bytes, lag.tables) == (whole, {"public.items": 99.0})
    half = backlog.lag(40, 80, 200.0)
    assert half.bytes is not None and half.tables == {"public.items": 79.0}
    assert half.bytes == sum(line.bytes for line in LogReader(tmp_path / "log").lines if line.base >= 40)
    one = backlog.lag(79, 80, 200.0).bytes
    assert one is not None and 0 < one < half.bytes
    assert backlog.lag(80, 80, 200.0) == Lag(0, 0.0, 0, {})


def test_more_lines_than_are_looked_at_have_no_weight(
    tmp_path: Path, writer: LogWriter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.supervisor.run.backlog.AT_ONCE", 4)
    monkeypatch.setattr("tailrace.supervisor.run.backlog.LINES", 8)
    for at in range(101, 121):
        append(writer, clock, 1, float(at))
    backlog = Backlog(tmp_path / "log")
    for _ in range(4):
        assert backlog.lag(0, 20, 200.0) == Lag(20, 99.0), "four lines at once, and never more than eight"
    for offset in range(1, 12):
        backlog.lag(offset, 20, 200.0)
    lag = backlog.lag(12, 20, 200.0)
    assert (lag.rows, lag.seconds, lag.tables) == (8, 87.0, {"public.items": 87.0})
    assert lag.bytes == sum(line.bytes for line in LogReader(tmp_path / "log").lines if line.base >= 12)
