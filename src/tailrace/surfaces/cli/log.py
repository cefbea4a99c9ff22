"""`tailrace log`: what is in a change log. It works while a tap is writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, data_dir_of, moment

if TYPE_CHECKING:
    from tailrace.supervisor.inspect.log import LogSummary

log = typer.Typer(help="Inspect change logs, also while they are written.", no_args_is_help=True)

Which = Annotated[str, typer.Argument(help="A source's id, or the log's directory.", metavar="SOURCE|PATH")]
_UNIT = 1024


@log.command()
def show(which: Which, platform_config: PlatformConfig = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Print a summary: offsets, sizes, position at the source, tables, subscribers."""
    with guard(as_json):
        summary = _summary(which, platform_config, data_dir)
    if as_json:
        counted = {"rows": summary.rows, "bytes": summary.bytes}
        say_json({"ok": True, **asdict(summary), **counted, "segments": len(summary.segments)})
        return
    for line in _lines(summary):
        say(line)


@log.command()
def segments(
    which: Which, platform_config: PlatformConfig = None, data_dir: DataDir = None, as_json: Json = False
) -> None:
    """List the segment files with their offsets, rows, sizes and times."""
    with guard(as_json):
        summary = _summary(which, platform_config, data_dir)
    if as_json:
        say_json({"ok": True, "segments": [asdict(segment) for segment in summary.segments]})
        return
    for one in summary.segments:
        times = f"{moment(one.oldest_us)} to {moment(one.newest_us)}"
        say(f"{one.name}  offsets {one.start} to {one.end}  {one.rows:,} rows  {_size(one.bytes)}  {times}")


@log.command()
def read(
    which: Which,
    *,
    start: Annotated[
        int | None, typer.Option("--from", min=0, help="The first offset; the oldest when absent.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many changes, at most.")] = 20,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print changes in the order of their commits."""
    with guard(as_json):
        from tailrace.supervisor.inspect import log as service

        path = _find(which, platform_config, data_dir)
        changes = (row for batch in service.read(path, start, limit) for row in batch.to_pylist())
        if as_json:
            plain = [{**change, "headers": dict(change["headers"] or ())} for change in changes]
            say_json({"ok": True, "changes": plain})
            return
        for change in changes:
            image = change["after"] or change["before"] or change["key"] or ""
            table = f"{change['schema']}.{change['table']}"
            say(f"{change['seq']}  {moment(change['ts_us'])}  {change['op']}  {table}  {image}".rstrip())


@log.command()
def forget(
    which: Which,
    name: Annotated[str, typer.Argument(help="The subscriber, as `show` prints it.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Remove a subscriber that will not come back: the log no longer keeps changes for it."""
    with guard(as_json):
        from tailrace.supervisor.inspect import log as service

        path = _find(which, platform_config, data_dir)
        if not yes:
            question = f"Changes that {name} has not read may then be dropped. Forget it?"
            typer.confirm(question, abort=True, err=True)
        service.forget(path, name)
    if as_json:
        say_json({"ok": True, "forgotten": name})
    else:
        say(f"forgot {name}")


def _find(which: str, platform_config: Path | None, data_dir: Path | None) -> Path:
    from tailrace.supervisor.inspect.log import find_log

    return find_log(which, data_dir_of(platform_config, data_dir))


def _summary(which: str, platform_config: Path | None, data_dir: Path | None) -> LogSummary:
    from tailrace.supervisor.inspect.log import summarize

    return summarize(_find(which, platform_config, data_dir))


def _lines(summary: LogSummary) -> Iterator[str]:
    facts: dict[str, Any] = {
        "log": f"{summary.path} ({summary.log_id})",
        "source": summary.source,
        "offsets": f"{summary.earliest} to {summary.end}, {summary.rows:,} rows",
        "size": f"{_size(summary.bytes)} in {len(summary.segments)} segments",
        "resumes": " ".join(f"{name}={value}" for name, value in (summary.resume or {}).items()) or "at the start",
    }
    yield from (f"{name:12}{value}" for name, value in facts.items())
    for table in summary.tables:
        key = ", ".join(table.key) or "none"
        versions = f", {table.versions} versions" if table.versions > 1 else ""
        yield f"{'table':12}{table.name}: {table.columns} columns, key {key}{versions}"
    for one in summary.subscribers:
        wanted = f"required, a quorum of {one.quorum}" if one.quorum else "required"
        need = "released" if one.released else wanted if one.required else "optional"
        lost = ", expired" if one.offset < summary.earliest else ""
        yield f"{'subscriber':12}{one.name}: offset {one.offset}, {one.lag_rows:,} rows behind, {need}{lost}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _UNIT:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _UNIT
    return f"{count:,.1f} TiB"
