"""`tailrace trace`: everything that is known of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.explore import (
    CursorOption,
    File,
    MaxChanges,
    MaxSeconds,
    Raw,
    SinkOption,
    fate,
    open_explorer,
    tell_changes,
    tell_end,
)
from tailrace.surfaces.cli.output import Json, guard, say, say_json, say_table
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, moment

if TYPE_CHECKING:
    from tailrace.supervisor.explore.trace import SinkFacts, Trace


def trace(
    file: File,
    table: Annotated[str, typer.Argument(help="The table, `schema.table` or a bare name.")],
    key: Annotated[str, typer.Argument(help="The row's key as JSON, or the value of its one column.")],
    *,
    sink: SinkOption = None,
    raw: Raw = False,
    limit: Annotated[int, typer.Option(min=1, help="Changes to show, at most.")] = 500,
    cursor: CursorOption = None,
    max_changes: MaxChanges = 2_000_000,
    max_seconds: MaxSeconds = 30.0,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show every change of one row that the log has, the oldest first: its transaction and position, how far it has
    come at each sink, its dead letters, whether a lake has it, and what the last verification said of the table."""
    with guard(as_json):
        from tailrace.supervisor.explore import Bounds
        from tailrace.supervisor.explore import trace as service

        with open_explorer(file, sink, platform_config, data_dir, raw=raw) as explorer:
            bounds = Bounds(max_changes, max_seconds)
            found = service.trace(explorer, table, key, limit=limit, cursor=cursor, bounds=bounds)
    if as_json:
        say_json({"ok": True, **found.as_dict()})
        return
    tell_changes(found.page)
    if found.page.entries:
        say("")
        _tell_sinks(found)
    say("")
    tell_end(found.page)
    say(f"the log begins at offset {found.page.earliest}: what happened to the row before is not in it")


def _tell_sinks(found: Trace) -> None:
    """The way of each change to each sink."""
    rows = []
    for entry in found.page.entries:
        last = " last" if entry.tx_last else ""
        transaction = f"{entry.tx_id} #{entry.tx_ordinal + 1}{last}"
        for facts in found.sinks:
            told = (fate(entry.sinks[facts.sink]), facts.lake(entry.offset), facts.verdict(entry.offset))
            rows.append((str(entry.offset), entry.position, transaction, facts.sink, *told))
    say_table(("offset", "position", "transaction", "sink", "delivery", "lake", "verified"), rows)
    for facts in found.sinks:
        _tell_facts(facts)


def _tell_facts(facts: SinkFacts) -> None:
    if facts.halted:
        say(f"{facts.sink}: the table halted: {facts.halted}", color="red")
    if facts.verified is not None:
        said = "equal to its source" if facts.verified["equal"] else "not equal to its source"
        through = f"through offset {facts.verified['offset']}, {moment(facts.verified['at_us'])}"
        say(f"{facts.sink}: the table was {said} when it was verified {through}")
