"""`tailrace explore`: what is in a pipeline's log, as its sinks see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json, say_table
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, instant, layout_of, moment

if TYPE_CHECKING:
    from tailrace.supervisor.explore import Explorer, Page
    from tailrace.supervisor.explore.entries import Entry
    from tailrace.supervisor.explore.fates import Fate

File = Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")]
SinkOption = Annotated[str | None, typer.Option(help="The sink whose chain the changes go through. Absent: the first.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="As the source sent them: also what the chain masks, hashes or drops.")
]
CursorOption = Annotated[
    str | None, typer.Option(help="Go on from here: as an earlier page of the same question says.")
]
MaxChanges = Annotated[int, typer.Option(min=1, help="Changes to read for a page, at most.")]
MaxSeconds = Annotated[float, typer.Option(min=0.001, help="Seconds to look for a page, at most.")]


def explore(
    file: File,
    *,
    sink: SinkOption = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Only these tables: `orders`, `public.*`. May be given again.")
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Only these operations: `u` or `update` ... May be given again.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Only this row: its key as JSON, or the value of its one column.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only commits since: an ISO 8601 time, or how long ago (`2h`).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only commits before, told the same way.")] = None,
    from_offset: Annotated[int | None, typer.Option(min=0, help="The first offset.")] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="The offset behind the last.")] = None,
    from_position: Annotated[str | None, typer.Option(help="The first position of the source (an LSN).")] = None,
    to_position: Annotated[str | None, typer.Option(help="The last position of the source.")] = None,
    where: Annotated[
        str,
        typer.Option(help="Only changes whose values fulfil this: \"after.total > 100 and after.status = 'paid'\"."),
    ] = "",
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first, instead of the newest.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Changes on a page.")] = 20,
    cursor: CursorOption = None,
    raw: Raw = False,
    max_changes: MaxChanges = 200_000,
    max_seconds: MaxSeconds = 5.0,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show changes of the whole retained log, page by page, as the chain before a sink leaves them, and how far each
    has come at every sink. It reads the log alone, also while the pipeline runs, and writes nothing."""
    with guard(as_json):
        from tailrace.supervisor.explore import Bounds, Filter

        wanted = Filter(
            tuple(table or ()),
            tuple(op or ()),
            key,
            instant(since, "explore.filter"),
            instant(until, "explore.filter"),
            from_offset,
            to_offset,
            from_position,
            to_position,
            where,
        )
        with open_explorer(file, sink, platform_config, data_dir, raw=raw) as explorer:
            bounds = Bounds(max_changes, max_seconds)
            page = explorer.look(
                wanted, order="oldest" if oldest else "newest", limit=limit, cursor=cursor, bounds=bounds
            )
    if as_json:
        say_json({"ok": True, **page.as_dict()})
        return
    tell_changes(page)
    tell_end(page)


def open_explorer(
    file: Path, sink: str | None, platform_config: Path | None, data_dir: Path | None, *, raw: bool
) -> Explorer:
    from tailrace.spec import load_pipelines
    from tailrace.supervisor.explore import Explorer

    [pipeline] = load_pipelines([file])
    return Explorer(pipeline, layout_of(platform_config, data_dir), sink=sink, raw=raw)


def tell_changes(page: Page) -> None:
    """A line for each change, and one for what was made beside it."""
    rows: list[tuple[str, ...]] = []
    colors: list[str | None] = []
    for entry in page.entries:
        rows.append(_line(entry))
        colors.append("red" if entry.failed else "yellow" if entry.dropped else None)
        for made in entry.made:
            image = made.after or made.before or ""
            rows.append(("", "", made.op, f"+ {made.part}", made.key or "", "", image))
            colors.append("cyan")
    say_table(("offset", "committed", "op", "table", "key", "sinks", "row"), rows, colors)


def tell_end(page: Page) -> None:
    """What was looked through, and how to go on."""
    scanned = page.scanned
    read = f"looked through offsets {scanned.start} to {scanned.end} of {page.earliest} to {page.log_end}"
    say(f"{len(page.entries):,} changes; {read}, {scanned.changes:,} changes read")
    if scanned.lost:
        say(f"{scanned.lost:,} changes of that range are no longer in the log", color="yellow")
    if page.partial:
        bound = "--max-changes" if page.stopped_by == "changes" else "--max-seconds"
        say(f"partial: {bound} ended the look, there may be more", color="yellow")
    if page.cursor is not None:
        say(f"go on with --cursor {page.cursor}")


def _line(entry: Entry) -> tuple[str, ...]:
    content = entry.itself
    op = entry.op if content is None or content.op == entry.op else f"{entry.op}→{content.op}"
    key = (entry.key if content is None else content.key) or ""
    sinks = " ".join(f"{name}:{fate(each)}" for name, each in entry.sinks.items())
    return str(entry.offset), moment(entry.ts_us), op, entry.table, key, sinks, _row(entry)


def _row(entry: Entry) -> str:
    """What comes out, or why nothing does."""
    if entry.failed is not None:
        by = f" in {entry.failed.processor}" if entry.failed.processor else ""
        return f"failed{by}: {entry.failed.code}: {entry.failed.message}"
    dropped = f"dropped by {entry.dropped.processor}: {entry.dropped.reason}" if entry.dropped else ""
    content = entry.itself
    if content is None or dropped:
        return dropped
    return content.after or content.before or ""


def fate(found: Fate) -> str:
    """In a word or two."""
    said = "?" if found.sent is None else "sent" if found.sent else "waits"
    return ",".join([said, *(f"letter {each.number} ({each.state})" for each in found.letters)])
