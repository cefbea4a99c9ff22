"""`tailrace health`: whether a server and all that it runs are well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.server import REACHED, ago, columns, connected

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Pipeline

Word = Literal["healthy", "unhealthy", "unknown"]

SICK = frozenset({"failed", "degraded"})


@dataclass(frozen=True)
class Component:
    """A part of the platform. `unknown`: it has only begun, or cannot be judged yet."""

    component: str
    status: Word
    detail: str


def health(as_json: Json = False) -> None:
    """Print how the server, its pipelines, their sources and sinks are. Exit code 1 unless all of them are healthy."""
    with guard(as_json), connected() as client:
        alive, found, url = client.is_alive(), client.pipelines(figures=True), client.url
    server = "it answers, and runs its pipelines" if alive else "it answers, and runs nothing: see what it printed"
    components = [Component("server", "healthy" if alive else "unhealthy", f"{url}: {server}")]
    components += [part for pipeline in found for part in components_of(pipeline)]
    well = all(each.status == "healthy" for each in components)
    if as_json:
        say_json({"ok": well, "components": [asdict(each) for each in components]})
    else:
        say("Platform Health")
        for line in columns(("component", "status", "detail"), [list(asdict(each).values()) for each in components]):
            say(line)
    if not well:
        raise typer.Exit(1)


def components_of(pipeline: Pipeline) -> Iterator[Component]:
    """The pipeline, then its parts: those that tell of themselves, and those that something is the matter with."""
    yield Component(f"pipeline {pipeline.name}", _word(pipeline), _detail(pipeline))
    told = {
        each.part: f"{each.message} (hint: {each.hint})" if each.hint else each.message for each in pipeline.matters
    }
    figures = pipeline.ops
    if figures is not None and figures.source is not None and pipeline.desired != "stopped":
        source = figures.source
        yield _part(pipeline, f"source:{source.id}", source.state, f"{source.rows:,} rows captured", told)
    for sink in figures.sinks if figures is not None else ():
        yield _part(pipeline, f"sink:{sink.id}", sink.state, f"{sink.rows:,} rows delivered", told)
    for part, what in told.items():
        yield Component(f"{pipeline.name}/{part}", "unhealthy", what)


def _part(pipeline: Pipeline, part: str, state: str, detail: str, told: dict[str, str]) -> Component:
    """Of what is the matter with it nothing is left in `told`."""
    matter = told.pop(part, None)
    if matter is not None:
        return Component(f"{pipeline.name}/{part}", "unhealthy", matter)
    return Component(f"{pipeline.name}/{part}", "healthy" if state == "running" else "unknown", f"{state}, {detail}")


def _word(pipeline: Pipeline) -> Word:
    if pipeline.status in SICK or pipeline.matters:
        return "unhealthy"
    reached = pipeline.desired is not None and pipeline.status in REACHED[pipeline.desired]
    return "healthy" if reached and pipeline.current else "unknown"


def _detail(pipeline: Pipeline) -> str:
    since = "" if pipeline.since is None else f" for {ago(time.time() - pipeline.since)}"
    wished = ", as desired" if pipeline.status in ("paused", "stopped") and pipeline.status == pipeline.desired else ""
    return f"{pipeline.status}{since}{wished}"
