"""`tailrace describe`: all about one pipeline of a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.surfaces.cli.checkpoints import checkpoint_lines
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import moment
from tailrace.surfaces.cli.server import Name, ago, columns, connected, matters

if TYPE_CHECKING:
    from tailrace.surfaces.answers import Figures, Pipeline, Transition

SHOWN_TRANSITIONS = 10


def describe(name: Name, as_json: Json = False) -> None:
    """Print what a pipeline does, its parts, what is the matter, and how it came to be so."""
    with guard(as_json), connected() as client:
        found, steps = client.pipeline(name), client.transitions(name, SHOWN_TRANSITIONS)
    if as_json:
        say_json({"ok": True, "pipeline": found.as_json(), "transitions": [each.as_json() for each in steps]})
        return
    for line in [*_head(found), *matters(found), *_parts(found.ops), *_history(steps)]:
        say(line)


def _head(pipeline: Pipeline) -> list[str]:
    since = "" if pipeline.since is None else f" for {ago(time.time() - pipeline.since)}"
    wish = "" if pipeline.desired in (None, pipeline.status) else f", desired: {pipeline.desired}"
    changed = f"{moment(int(pipeline.changed_at * 1e6))} by {pipeline.changed_by}"
    labels = ", ".join(f"{label}={value}" for label, value in sorted(pipeline.labels.items()))
    named = {
        "name": pipeline.name,
        "status": f"{pipeline.status}{since}{wish}",
        "labels": labels,
        "document": f"version {pipeline.version}, {changed}",
    }
    return [f"{title:<10}{value}" for title, value in named.items() if value]


def _parts(figures: Figures | None) -> list[str]:
    if figures is None:
        return []
    found = [""]
    if (source := figures.source) is not None:
        behind = "" if source.lag_seconds is None else f", {source.lag_seconds:.1f} s behind"
        found.append(f"{'source':<10}{source.id}: {source.state}, {source.rows:,} rows captured{behind}")
        found += [f"{'':<10}warning: {warning}" for warning in source.warnings]
    for reading in figures.snapshots:
        found.append(f"{'snapshot':<10}{reading.table}: {reading.state}, {reading.rows:,} rows")
    for sink in figures.sinks:
        found.append(f"{'sink':<10}{sink.id} ({sink.type}): {sink.state}, {sink.rows:,} rows delivered")
        found += [f"{'':<10}warning: {warning}" for warning in sink.warnings]
    if figures.dlq_entries:
        found.append(f"{'letters':<10}{figures.dlq_entries:,} dead letters are open: see tailrace dlq")
    tables = [[each.table, each.sink, f"{each.rows:,}"] for each in figures.tables]
    found += ["", *columns(("table", "sink", "rows"), tables)] if tables else []
    return found + (["", *checkpoint_lines(figures.checkpoints, figures)] if figures.checkpoints else [])


def _history(steps: tuple[Transition, ...]) -> list[str]:
    rows = [[moment(int(each.at * 1e6)), f"{each.before or '-'} → {each.after}", each.cause] for each in steps]
    return ["", *columns(("when", "state", "why"), rows)] if rows else []
