"""`tailrace checkpoints`: how far the sinks of a pipeline are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.surfaces.cli.live import UNKNOWN
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import Name, columns, connected

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Checkpoint, Figures


def checkpoints(name: Name, as_json: Json = False) -> None:
    """Print the offset in the change log below which each sink has everything, and how many changes wait for it."""
    with guard(as_json), connected() as client:
        found, figures = client.checkpoints(name), client.pipeline(name).ops
    if as_json:
        committed = None if figures is None else figures.committed
        say_json({"ok": True, "checkpoints": [each.as_json() for each in found], "committed": committed})
    elif not found:
        say("none: no sink has begun")
    else:
        for line in checkpoint_lines(found, figures):
            say(line)


def checkpoint_lines(found: Iterable[Checkpoint], figures: Figures | None) -> list[str]:
    """What waits is known while the pipeline runs."""
    waiting = {sink.id: sink.lag_rows for sink in figures.sinks} if figures is not None else {}
    rows = [[each.sink_id, _number(each.position), _number(waiting.get(each.sink_id))] for each in found]
    return columns(("sink", "position", "waiting"), rows)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
