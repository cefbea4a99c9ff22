"""`tailrace lakehouse`: the tables of lake sinks, what they were, and their upkeep."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.surfaces.cli.output import Json, debt, guard, say, say_json
from tailrace.surfaces.cli.place import moment

if TYPE_CHECKING:
    from tailrace.supervisor.lakehouse import Lakehouse, Rollback

lakehouse = typer.Typer(help="Look into lake tables, go back in time, tend them.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The pipeline document.", metavar="PIPELINE")]
Sink = Annotated[str | None, typer.Option(help="A sink's id, where several keep tables.")]
Table = Annotated[str, typer.Option(help="`schema.table`, or the table's name in the lake.")]
AnyTable = Annotated[str | None, typer.Option(help="`schema.table`; all when absent.")]
PlatformConfig = Annotated[Path | None, typer.Option(help="The platform document.")]
_NUMBER = ("--snapshot-id", "--version")


@lakehouse.command()
def tables(file: File, sink: Sink = None, platform_config: PlatformConfig = None, as_json: Json = False) -> None:
    """List the tables: rows, files, how far they are, and what upkeep would remove."""
    with guard(as_json), _opened(file, platform_config, sink) as lake:
        found = lake.tables()
    if as_json:
        say_json({"ok": True, "tables": [asdict(table) for table in found]})
        return
    for table in found:
        facts = f"{table.rows:,} rows, mark {_known(table.mark)}, {debt(table.debt)}"
        say(f"{table.source}  {table.sink}: {table.name}  {facts}")
        if table.halted:
            say(f"  halted: {table.halted}", color="yellow")


@lakehouse.command()
def snapshots(
    file: File,
    *,
    table: AnyTable = None,
    sink: Sink = None,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """List what the tables were: snapshots of Iceberg's, versions of Delta's, oldest first."""
    with guard(as_json), _opened(file, platform_config, sink) as lake:
        found = [(each.sink.id, each.source, versions) for each, versions in lake.snapshots(table)]
    if as_json:
        plain = [
            {"sink": name, "table": source, **asdict(each), "at": moment(each.at_us)}
            for name, source, versions in found
            for each in versions
        ]
        say_json({"ok": True, "snapshots": plain})
        return
    for _, source, versions in found:
        for each in versions:
            now = "  current" if each.current else ""
            say(f"{source}  {each.id}  {moment(each.at_us)}  {each.operation}  mark {_known(each.mark)}{now}")


@lakehouse.command()
def query(
    file: File,
    *,
    table: Table,
    version: Annotated[int | None, typer.Option(*_NUMBER, help="As it was in this snapshot or version.")] = None,
    as_of: Annotated[str | None, typer.Option(metavar="TIME", help="As it was then; ISO 8601, UTC by default.")] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows that fulfil this condition.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows, at most.")] = 20,
    sink: Sink = None,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Print rows of a table, as it is or as it was."""
    with guard(as_json):
        when = _moment(as_of, version)
        chosen = [name.strip() for name in columns.split(",")] if columns else []
        with _opened(file, platform_config, sink) as lake:
            names, rows = lake.query(table, version=version, as_of=when, where=where, columns=chosen, limit=limit)
            plain = [[_plain(value) for value in row] for row in rows]
    if as_json:
        say_json({"ok": True, "columns": names, "rows": [dict(zip(names, row, strict=True)) for row in plain]})
        return
    _print(names, plain)


@lakehouse.command()
def rollback(
    file: File,
    *,
    table: Table,
    version: Annotated[int, typer.Option(*_NUMBER, help="The snapshot or version to go back to.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    sink: Sink = None,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Make a table what it was. Its mark goes back with it, so the pipeline brings it up to date again."""
    with guard(as_json), _opened(file, platform_config, sink) as lake:
        plan = lake.plan_rollback(table, version)
        if not yes:
            _ask(plan)
        lake.roll_back(plan)
    if as_json:
        say_json({"ok": True, **asdict(plan), "next": plan.next})
        return
    say(f"{plan.table} is what it was in {plan.version}, its mark went from {_known(plan.before)} to {plan.mark}")
    say(plan.next)


@lakehouse.command()
def maintain(
    file: File,
    *,
    table: AnyTable = None,
    sink: Sink = None,
    platform_config: PlatformConfig = None,
    as_json: Json = False,
) -> None:
    """Tend the tables once, now: merge small files, remove old snapshots, as the sink's `maintenance` says."""
    plain = []
    with guard(as_json), _opened(file, platform_config, sink) as lake:
        for done in lake.maintain(table):
            plain.append(asdict(done))
            if not as_json:
                say(f"{done.table}  before: {debt(done.before)}")
                say(f"{done.table}  after:  {debt(done.after)}")
            if done.failed and not as_json:
                say(f"  {done.failed}", color="yellow")
    failed = any(each["failed"] for each in plain)
    if as_json:
        say_json({"ok": not failed, "tables": plain})
    if failed:
        raise typer.Exit(1)


@contextmanager
def _opened(file: Path, platform_config: Path | None, sink: str | None) -> Iterator[Lakehouse]:
    from tailrace.spec import load_pipelines, load_platform

    [pipeline], platform = load_pipelines([file]), load_platform(platform_config)
    typer.echo("starting Spark…", err=True)
    from tailrace.supervisor.lakehouse import open_lakehouse

    with open_lakehouse(pipeline, platform, sink) as lake:
        yield lake


def _ask(plan: Rollback) -> None:
    typer.echo(f"{plan.table}: its mark goes from {_known(plan.before)} to {plan.mark}; {plan.next}", err=True)
    typer.confirm(f"Roll {plan.table} back to {plan.version}?", abort=True, err=True)


def _moment(text: str | None, version: int | None) -> datetime | None:
    from tailrace.errors import ConfigError

    if text is None:
        return None
    if version is not None:
        hint = "leave one out"
        raise ConfigError("lakehouse.two_times", "--as-of and --snapshot-id or --version exclude each other", hint=hint)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            "lakehouse.bad_time", f"{text!r} is no time", hint="write it like 2030-01-31T12:00:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _known(mark: int | None) -> str:
    return "gone" if mark is None else str(mark)


def _plain(value: Any) -> Any:
    """A value as JSON has it: exact numbers as text, bytes in base64."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return str(value)
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return str(value)


def _print(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for row in (names, *texts):
        say("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    say(f"{len(rows)} rows")
