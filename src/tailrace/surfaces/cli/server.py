"""What the commands that talk to a server have in common: finding it, waiting for a state, and columns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.errors import ConfigError, TailraceError
from tailrace.surfaces.cli.output import say

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Matter, Pipeline
    from tailrace.surfaces.client import Client

Name = Annotated[str, typer.Argument(help="The pipeline.", metavar="NAME")]
Names = Annotated[list[str], typer.Argument(help="The pipelines.", metavar="NAME…")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="Only those with this label, `name=value` or `name`; all of them.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is so.")]
Timeout = Annotated[str, typer.Option(help="How long `--wait` waits at most, such as `90s` or `10m`.")]

LIMIT = "5m"
POLL_S = 0.5
REACHED = {
    "running": frozenset({"running", "snapshotting"}),
    "paused": frozenset({"paused"}),
    "stopped": frozenset({"stopped"}),
}
"""By what is desired: the states in which it is so. While a pipeline reads what is there already, it runs."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def connected() -> Client:
    """The server that TAILRACE_URL and TAILRACE_TOKEN name."""
    from tailrace.surfaces.client import connect

    return connect(os.environ)


def limit_of(text: str) -> float:
    """Seconds."""
    from pydantic_core import PydanticCustomError

    from tailrace.config.values import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except PydanticCustomError:
        message = f"--timeout: {text!r} is not a duration"
        raise ConfigError("wait.bad_timeout", message, hint="write it like 90s, 10m or 2h") from None


def wait(client: Client, asked: Pipeline, limit_s: float, clock: Callable[[], float] = time.monotonic) -> Pipeline:
    """Until the pipeline is what this answer says is desired of it. Tells on standard error what it waits for; raises
    what the pipeline failed with, or `wait.timeout`."""
    goal, name, deadline = asked.desired or "running", asked.name, clock() + limit_s
    told = ""
    while True:
        found = client.pipeline(name)
        if found.current and found.status in REACHED[goal]:
            return found
        if found.current and found.status == "failed":
            raise _failure(found)
        if clock() > deadline:
            raise _overdue(found, goal, limit_s)
        line = f"{name}: {found.status if found.current else 'changing'}, waiting for {goal}{_why(found)}"
        if line != told:
            typer.echo(line, err=True)
            told = line
        time.sleep(POLL_S)


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns."""
    table = [[title.upper() for title in titles], *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def say_matters(pipeline: Pipeline) -> None:
    """What is the matter with it, each with its way out."""
    for line in matters(pipeline):
        say(line)


def matters(pipeline: Pipeline) -> list[str]:
    found = []
    for each in pipeline.matters:
        found.append(f"{pipeline.name}: {_named(each)}")
        found += [f"  hint: {each.hint}"] if each.hint else []
    return found


def ago(seconds: float | None) -> str:
    """How long something lasts, in its largest unit."""
    if seconds is None:
        return ""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _named(matter: Matter) -> str:
    return f"{matter.part}: error[{matter.code}]: {matter.message}"


def _why(pipeline: Pipeline) -> str:
    return f" ({_named(pipeline.matters[0])})" if pipeline.current and pipeline.matters else ""


def _failure(pipeline: Pipeline) -> TailraceError:
    where = f"pipeline {pipeline.name}"
    if not pipeline.matters:
        hint = "tailrace describe shows its history"
        return TailraceError("pipeline.failed", "it has failed", hint=hint, where=where)
    worst = pipeline.matters[0]
    return TailraceError(worst.code, worst.message, hint=worst.hint, where=f"{where}, {worst.part}")


def _overdue(pipeline: Pipeline, goal: str, limit_s: float) -> TailraceError:
    hint = pipeline.matters[0].hint if pipeline.matters else ""
    hint = hint or "it goes on by itself: tailrace status shows how far it is; --timeout waits longer"
    message = f"{pipeline.name} is {pipeline.status}, and not {goal}, after {ago(limit_s)}{_why(pipeline)}"
    return TailraceError("wait.timeout", message, hint=hint)
