"""How a run looks: in a terminal, in a file, and to a machine."""

from __future__ import annotations

import io
import json
import logging
from contextlib import suppress
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from tailrace import telemetry
from tailrace.supervisor.status import (
    DebtStatus,
    DropStatus,
    SinkStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TapStatus,
)
from tailrace.surfaces.cli import live


def status(at: float, rows: int) -> Status:
    tables = {"public.orders": TableStatus(rows, rows * 10, int((at - 2) * 1e6))}
    sink = SinkStatus("shop", "files", "file", "db", "running", lag_rows=7, lag_s=1.5, tables=tables)
    return Status(100.0, at, (TapStatus("db", "running", rows=1234, last_commit_us=int((at - 1) * 1e6)),), (sink,))


def test_rates_are_over_the_last_seconds() -> None:
    rates = live.Rates()
    for at, rows in ((1000.0, 0), (1001.0, 500), (1010.0, 1000), (1012.0, 1400)):
        rates.add(status(at, rows))
    sink = status(1012.0, 1400).sinks[0]
    assert rates.of(sink, "public.orders") == pytest.approx(900 / 11)
    rates.add(status(1016.0, 1400))
    assert rates.total(sink) == pytest.approx(400 / 6)


def test_the_picture_has_rows_rate_lag_and_last_change() -> None:
    rates = live.Rates()
    rates.add(status(1000.0, 1000))
    rates.add(status(1002.0, 5000))
    shown = io.StringIO()
    Console(file=shown, width=120).print(live.picture(status(1002.0, 5000), rates))
    text = shown.getvalue()
    for part in (
        "db",
        "1,234",
        "1.0 s ago",
        "files (file)",
        "running",
        "5,000",
        "2,000",
        "7 rows, 1.5 s",
        "2.0 s ago",
    ):
        assert part in text


def test_what_is_not_known_is_said_to_be_unknown_and_old_words_have_an_age() -> None:
    tap = TapStatus("db", "silent", age_s=12.3, rows=5)
    now = Status(100.0, 1000.0, (tap,), (SinkStatus("shop", "files", "file", "db"),))
    assert live.lines(now, live.Rates()) == [
        "tap db: silent, status 12 s old, 5 rows captured",
        "sink shop/files: starting, 0 rows delivered, 0/s, lag unknown",
    ]
    shown = io.StringIO()
    Console(file=shown, width=120).print(live.picture(now, live.Rates()))
    text = shown.getvalue()
    assert "silent, status 12 s old" in text and text.count("unknown") == 2 and "0 rows" not in text


def test_errors_and_warnings_are_told_with_their_hints() -> None:
    error = {"code": "sink.unavailable", "message": "the disk is full", "hint": "free space", "where": ""}
    now = status(1000.0, 1)
    now = replace(now, sinks=(replace(now.sinks[0], state="waiting", warnings=("slow",), error=error),))
    assert live.notes(now) == [
        "sink shop/files: warning: slow",
        "sink shop/files: error[sink.unavailable]: the disk is full (free space)",
    ]


def test_a_table_that_could_not_be_read_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "source.privilege", "message": "denied", "hint": "grant it", "where": "public.a"}
    failed = SnapshotStatus("db", "r1", "public.a", "failed", 0, None, error)
    with live.view(as_json=False) as tick:
        tick(status(1000.0, 1))
        capsys.readouterr()
        tick(replace(status(1000.5, 1), snapshots=(failed,)))
    lines = capsys.readouterr().err.splitlines()
    assert "snapshot db: public.a failed, 0 rows" in lines
    assert "snapshot db: public.a: error[source.privilege]: denied (grant it)" in lines
    shown, rates = io.StringIO(), live.Rates()
    rates.add(status(1000.0, 1))
    Console(file=shown, width=120).print(live.picture(replace(status(1000.5, 1), snapshots=(failed,)), rates))
    assert "snapshot of public.a" in shown.getvalue()
    assert "denied" in shown.getvalue()


def test_plain_lines_come_when_a_state_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with live.view(as_json=False) as tick:
        tick(status(1000.0, 1))
        tick(status(1000.5, 2))
        now = status(1001.0, 3)
        tick(replace(now, sinks=(replace(now.sinks[0], state="stopped"),)))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "tap db: running, 1,234 rows captured",
        "sink shop/files: running, 1 rows delivered, 0/s, 7 rows behind",
        "tap db: running, 1,234 rows captured",
        "sink shop/files: stopped, 3 rows delivered, 2/s, 7 rows behind",
    ]


def test_machines_get_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with live.view(as_json=True) as tick:
        tick(status(1000.0, 5))
    told = capsys.readouterr()
    [line] = told.out.splitlines()
    assert json.loads(line)["sinks"][0]["tables"]["public.orders"]["rows"] == 5
    assert told.err == ""


def test_machines_have_standard_error_for_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    with live.view(as_json=False, quiet=True) as tick:
        tick(status(1000.0, 5))
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_log_stands_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, root = Terminal(), logging.getLogger()
    handlers = list(root.handlers)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    try:
        telemetry.configure()
        with live.view(as_json=False) as tick:
            tick(status(1000.0, 5))
            before = len(terminal.getvalue())
            telemetry.logger(source="db").warning("source.restarted", restarts=1)
            shown = Text.from_ansi(terminal.getvalue()[before:]).plain
    finally:
        root.handlers[:] = handlers
    [line] = [line for line in shown.splitlines() if "source.restarted" in line]
    assert "source=db" in line and "restarts=1" in line
    assert shown.index("source.restarted") < shown.index("change log"), "the table is drawn again below it"


def test_a_status_that_there_is_no_space_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with live.view(as_json=True) as tick:
            tick(status(1000.0, 5))
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


def test_what_processors_dropped_is_shown() -> None:
    found = status(1000.0, 0)
    lines = replace(found.sinks[0], dropped=(DropStatus("public.orders", "big", "fields", 1200),))
    found, rates = replace(found, sinks=(lines,)), live.Rates()
    rates.add(found)
    assert "sink shop/files: public.orders: 1,200 dropped by big (fields)" in live.lines(found, rates)
    assert found.as_dict()["sinks"][0]["dropped"][0]["changes"] == 1200


def test_debt_of_lake_tables_is_shown() -> None:
    found = status(1000.0, 0)
    owed = replace(found.sinks[0], debt={"public.orders": DebtStatus(1200, 40, 3, 17)})
    found, rates = replace(found, sinks=(owed,)), live.Rates()
    rates.add(found)
    line = "public.orders: 1,200 files, 40 small, 3 delete files, 17 snapshots"
    assert f"sink shop/files: {line}" in live.lines(found, rates)
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(live.picture(found, rates))
    assert line in console.export_text()
    assert found.as_dict()["sinks"][0]["debt"]["public.orders"]["small_files"] == 40
