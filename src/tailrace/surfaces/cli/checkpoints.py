"""`tailrace checkpoints`: how far the sinks of a pipeline are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.surfaces.cli.live import UNKNOWN
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import Name, columns, connected

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Figures


def checkpoints(name: Name, as_json: Json = False) -> None:
    """Print the offset in the change log below which each sink has everything, and how many changes wait for it."""
    with guard(as_json), connected() as client:
        figures = client.pipeline(name).ops
    known = figures is not None and bool(figures.checkpoints)
    if as_json:
        told = [each.as_json() for each in figures.checkpoints] if figures is not None else []
        committed = None if figures is None else figures.committed
        say_json({"ok": True, "checkpoints": told, "committed": committed})
    elif figures is None or not known:
        say("not known: the pipeline does not run now")
    else:
        for line in checkpoint_lines(figures):
            say(line)


def checkpoint_lines(figures: Figures) -> list[str]:
    waiting = {sink.id: sink.lag_rows for sink in figures.sinks}
    rows = [
        [each.sink_id, _number(each.position), _number(waiting.get(each.sink_id)), _age(each.age_seconds)]
        for each in figures.checkpoints
    ]
    return columns(("sink", "position", "waiting", "age"), rows)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
