"""A run, watched: a table that moves in a terminal, plain lines elsewhere, JSON lines for machines.

What the run logs stands above the table: while the view is there, standard error leads through it. What is for people
goes to standard error; standard output is for results, for machines, and for the console sink.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import typer

from tailrace.machine.space import suppress_full_disk
from tailrace.surfaces.cli.output import debt

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tailrace.supervisor.status import LetterStatus, SinkStatus, SnapshotStatus, Status, TapStatus

Tick = Callable[["Status"], None]

WINDOW_S = 5.0
"""Rates are over this many seconds."""
LINES_S = 5.0
JSON_S = 1.0
UNKNOWN = "unknown"

_COLORS = {
    "running": "green",
    "waiting": "yellow",
    "blocked": "yellow",
    "silent": "red",
    "expired": "red",
    "failed": "red",
}
_OLD_S = 5.0
"""A tap tells every half second how it is; what it told is shown with its age from here on."""
_MINUTE = 60


@contextmanager
def view(as_json: bool, *, quiet: bool = False) -> Iterator[Tick]:
    """Yields what a supervisor calls with each status. `quiet`: shows nothing to people, because standard error has
    lines for machines."""
    if quiet:
        yield lambda status: None
    elif as_json:
        yield _paced(JSON_S, lambda status, rates: [json.dumps(status.as_dict())], typer.echo)
    elif sys.stderr.isatty():
        with _screen() as tick:
            yield tick
    else:
        yield _paced(LINES_S, lines, partial(typer.echo, err=True))


class Rates:
    """Rows a second of each sink's tables, over the last few statuses."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[tuple[str, str, str], int]]] = deque()

    def add(self, status: Status) -> None:
        counts = {
            (sink.pipeline, sink.sink, table): found.rows
            for sink in status.sinks
            for table, found in sink.tables.items()
        }
        self._seen.append((status.at, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= status.at - WINDOW_S:  # noqa: PLR2004
            self._seen.popleft()

    def of(self, sink: SinkStatus, table: str) -> float:
        (before, old), (now, new) = self._seen[0], self._seen[-1]
        key = (sink.pipeline, sink.sink, table)
        return max(0, new.get(key, 0) - old.get(key, 0)) / (now - before) if now > before else 0.0

    def total(self, sink: SinkStatus) -> float:
        return sum(self.of(sink, table) for table in sink.tables)


def lines(status: Status, rates: Rates) -> list[str]:
    """A status in plain lines: one per tap and sink, one per warning and error."""
    found = []
    for tap in status.taps:
        found.append(f"tap {tap.source}: {tap.state}{_told(tap)}, {tap.rows:,} rows captured")
    found += [f"snapshot {each.source}: {each.table} {each.state}, {_read(each)}" for each in status.snapshots]
    for sink in status.sinks:
        rows = sum(table.rows for table in sink.tables.values())
        behind = f"lag {UNKNOWN}" if sink.lag_rows is None else f"{sink.lag_rows:,} rows behind"
        moved = f"{rows:,} rows delivered, {rates.total(sink):,.0f}/s, {behind}"
        found.append(f"sink {sink.pipeline}/{sink.sink}: {sink.state}, {moved}")
        found += [f"sink {sink.pipeline}/{sink.sink}: {line}" for line in _details(sink)]
    return found + [_letters(each) for each in status.letters if each.open] + notes(status)


def notes(status: Status) -> list[str]:
    """Warnings, and errors with their hints."""
    found = []
    named = [(f"tap {tap.source}", tap.warnings, tap.error) for tap in status.taps]
    named += [(f"snapshot {each.source}: {each.table}", (), each.error) for each in status.snapshots]
    named += [(f"sink {sink.pipeline}/{sink.sink}", sink.warnings, sink.error) for sink in status.sinks]
    named += [(f"dead letters of {each.pipeline}", each.warnings, None) for each in status.letters]
    for name, warnings, error in named:
        found += [f"{name}: warning: {warning}" for warning in warnings]
        if error is not None:
            hint = f" ({error['hint']})" if error.get("hint") else ""
            found.append(f"{name}: error[{error['code']}]: {error['message']}{hint}")
    return found


def picture(status: Status, rates: Rates) -> RenderableType:
    """A status as a table: per sink and table rows, rate, lag and the last change."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=False)
    for column in ("from", "to", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "rows/s", "lag", "last change"):
        table.add_column(column, justify="right", no_wrap=True)
    for tap in status.taps:
        age, lag = _age(status.at, tap.last_commit_us), _tap_lag(tap)
        table.add_row(tap.source, "change log", _state(tap.state) + _told(tap), f"{tap.rows:,}", "", lag, age)
    for each in status.snapshots:
        table.add_row("", f"  snapshot of {each.table}", _state(each.state), _read(each), "", "", "")
    details: list[Text] = []
    for sink in status.sinks:
        table.add_section()
        table.add_row(sink.source, f"{sink.sink} ({sink.kind})", _state(sink.state), "", "", _sink_lag(sink), "")
        for name, found in sorted(sink.tables.items()):
            rate = f"{rates.of(sink, name):,.0f}"
            table.add_row("", f"  {name}", "", f"{found.rows:,}", rate, "", _age(status.at, found.last_us))
        details += [Text(f"{sink.sink}  {line}", style="dim") for line in _details(sink)]
    details += [Text(_letters(each), style="dim") for each in status.letters if each.open]
    return Group(table, *details, *(Text(note, style="yellow") for note in notes(status)))


@contextmanager
def _screen() -> Iterator[Tick]:
    from rich.console import Console
    from rich.live import Live

    rates = Rates()
    # What a console sink prints then stands above the table; where its output goes elsewhere, it goes there.
    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:

        def tick(status: Status) -> None:
            rates.add(status)
            live.update(picture(status, rates), refresh=True)

        yield tick


def _paced(seconds: float, render: Callable[[Status, Rates], list[str]], say: Callable[[str], None]) -> Tick:
    """Prints every `seconds`, and at once when a state changes; never the same twice. What there is no space for, where
    the output is a file, is left out."""
    rates = Rates()
    states: list[str] = []
    printed: list[str] = []
    due = 0.0

    def tick(status: Status) -> None:
        nonlocal states, printed, due
        rates.add(status)
        now: list[str] = [tap.state for tap in status.taps]
        now += [sink.state for sink in status.sinks]
        now += [each.table for each in status.snapshots if each.error is not None]
        if now == states and time.monotonic() < due:
            return
        states, due = now, time.monotonic() + seconds
        text = render(status, rates)
        for line in text if text != printed else ():
            with suppress_full_disk():
                say(line)
        printed = text

    return tick


def _details(sink: SinkStatus) -> list[str]:
    """What processors dropped, what the target refused, and what upkeep would remove."""
    found = [f"{each.table}: {each.changes:,} dropped by {each.processor} ({each.reason})" for each in sink.dropped]
    found += [f"{each.table}: {each.records:,} refused and skipped ({each.code})" for each in sink.skipped]
    return found + [f"{name}: {debt(each)}" for name, each in sorted(sink.debt.items())]


def _letters(found: LetterStatus) -> str:
    held = f", {found.held:,} of them held" if found.held else ""
    return f"dead letters of {found.pipeline}: {found.open:,} of at most {found.max_entries:,}{held}"


def _read(snapshot: SnapshotStatus) -> str:
    """How much of a table is in the log, of how much the database thinks there is."""
    rows, estimate = snapshot.rows, snapshot.estimate
    return f"{rows:,} rows" if not estimate else f"{rows:,} of about {max(rows, estimate):,} rows"


def _state(state: str) -> str:
    color = _COLORS.get(state)
    return f"[{color}]{state}[/]" if color else state


def _told(tap: TapStatus) -> str:
    """How old the tap's own word is, where that matters."""
    over = tap.state in ("failed", "stopped") or tap.age_s is None or tap.age_s < _OLD_S
    return "" if over else f", status {tap.age_s:.0f} s old"


def _tap_lag(tap: TapStatus) -> str:
    from tailrace.config.values import MIB

    return UNKNOWN if tap.lag_bytes is None else f"{tap.lag_bytes / MIB:,.1f} MiB"


def _sink_lag(sink: SinkStatus) -> str:
    if sink.lag_rows is None:
        return UNKNOWN
    waited = UNKNOWN if sink.lag_s is None else f"{sink.lag_s:.1f} s"
    return f"{sink.lag_rows:,} rows, {waited}" if sink.lag_rows else "0 rows"


def _age(now: float, us: int | None) -> str:
    if not us:
        return ""
    seconds = max(0.0, now - us / 1e6)
    return f"{seconds:.1f} s ago" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min ago"
