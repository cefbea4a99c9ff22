"""How pipelines of a server look: as plain lines, in a terminal, and to a machine; once, or live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.surfaces.cli.output import say, say_json
from tailrace.surfaces.cli.server import ago, columns, matters

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tailrace.surfaces.answers import Pipeline
    from tailrace.surfaces.cli.live import Rates

EVERY_S, LINES_S = 1.0, 5.0
TITLES = ("pipeline", "status", "for", "rows", "rows/s", "waiting", "lag", "letters")
COLORS = {"running": "green", "snapshotting": "cyan", "starting": "yellow", "degraded": "yellow", "failed": "red"}

Look = Callable[[], "list[Pipeline]"]
Show = Callable[["Sequence[Pipeline]", str], None]
"""Shows pipelines; the text says since when and why they are not known any more."""


def lines(found: Sequence[Pipeline], rates: Rates | None, *, whole: bool) -> list[str]:
    """Pipelines in plain lines. `rates`: none without a second look. `whole`: with their parts."""
    from tailrace.surfaces.cli import live
    from tailrace.surfaces.cli.figures import status_of

    if not found:
        return ["there are no pipelines"]
    made = columns(TITLES, [_cells(each, rates) for each in found])
    made += [line for each in found for line in matters(each)]
    if not whole:
        return made
    status, known = status_of(found, time.time()), rates or live.Rates()
    if rates is None:
        known.add(status)
    return made + live.lines(status, known)


def picture(found: Sequence[Pipeline], rates: Rates, lost: str, *, whole: bool) -> RenderableType:
    """The same for a terminal: reasons stand beside their pipelines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from tailrace.surfaces.cli import live
    from tailrace.surfaces.cli.figures import status_of

    table = Table(expand=False)
    for title in TITLES:
        table.add_column(title, no_wrap=True, justify="left" if title in ("pipeline", "status") else "right")
    table.add_column("reason", overflow="fold")
    for each in found:
        cells = [Text(cell) for cell in _cells(each, rates)]
        cells[1].stylize(COLORS.get(each.status, "dim"))
        table.add_row(*cells, Text("\n".join(matters(each)), style="yellow"))
    status = status_of(found, time.time())
    parts = [live.picture(status, rates)] if whole and (status.taps or status.sinks) else []
    return Group(table, *parts, *([Text(lost, style="bold red")] if lost else []))


def watch(look: Look, show: Show) -> None:
    """A server that goes away while it is watched is waited for: meanwhile the last that was known is shown as old."""
    known, at, lost = look(), time.time(), ""
    while True:
        show(known, lost)
        time.sleep(EVERY_S)
        try:
            known, at, lost = look(), time.time(), ""
        except TailraceError as error:
            if error.code != "server.unreachable":
                raise
            lost = f"not known for {ago(time.time() - at)}: {error.message}"


@contextmanager
def shown(as_json: bool, *, whole: bool) -> Iterator[Show]:
    from tailrace.surfaces.cli.live import Rates

    rates = Rates()
    if as_json:
        yield lambda found, lost: say_json(
            {"ok": not lost, "at": time.time(), "lost": lost, "pipelines": [each.as_json() for each in found]}
        )
    elif sys.stdout.isatty():
        with _screen(rates, whole=whole) as show:
            yield show
    else:
        yield _paced(rates, whole=whole)


@contextmanager
def _screen(rates: Rates, *, whole: bool) -> Iterator[Show]:
    from rich.live import Live

    from tailrace.surfaces.cli.figures import status_of

    with Live(auto_refresh=False) as screen:

        def show(found: Sequence[Pipeline], lost: str) -> None:
            rates.add(status_of(found, time.time()))
            screen.update(picture(found, rates, lost, whole=whole), refresh=True)

        yield show


def _paced(rates: Rates, *, whole: bool) -> Show:
    """Plain lines at once when a state changes, and else every few seconds; never the same twice."""
    from tailrace.surfaces.cli.figures import status_of

    states: list[object] = []
    printed: list[str] = []
    due = 0.0

    def show(found: Sequence[Pipeline], lost: str) -> None:
        nonlocal states, printed, due
        rates.add(status_of(found, time.time()))
        now: list[object] = [bool(lost), *((each.name, each.status, len(each.matters)) for each in found)]
        if now == states and time.monotonic() < due:
            return
        states, due = now, time.monotonic() + LINES_S
        text = [*lines(found, rates, whole=whole), *([lost] if lost else [])]
        for line in text if text != printed else ():
            say(line)
        printed = text

    return show


def _cells(pipeline: Pipeline, rates: Rates | None) -> list[str]:
    from tailrace.surfaces.cli.figures import status_of

    figures = pipeline.ops
    since = "" if pipeline.since is None else ago(time.time() - pipeline.since)
    if figures is None or not figures.sinks:
        return [pipeline.name, pipeline.status, since, "", "", "", "", ""]
    sinks = status_of([pipeline], time.time()).sinks
    waiting = [sink.lag_rows for sink in figures.sinks if sink.lag_rows is not None]
    return [
        pipeline.name,
        pipeline.status,
        since,
        f"{sum(sink.rows for sink in figures.sinks):,}",
        "" if rates is None else f"{sum(rates.total(sink) for sink in sinks):,.0f}",
        f"{max(waiting):,}" if waiting else "unknown",
        "" if figures.lag_seconds is None else f"{figures.lag_seconds:.1f} s",
        f"{figures.dlq_entries:,}" if figures.dlq_entries else "",
    ]
