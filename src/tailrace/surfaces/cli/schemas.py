"""`tailrace schemas`: the versions of captured tables, and where in the log each begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.schema import columns_document
from tailrace.surfaces.cli.output import Json, guard, say, say_json
from tailrace.surfaces.cli.place import DataDir, PlatformConfig, layout_of, moment

if TYPE_CHECKING:
    from tailrace.control.schemas import SchemaVersion
    from tailrace.supervisor.inspect.schemas import TableVersions

schemas = typer.Typer(help="Show the versions of captured tables.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(help="A source's id.", metavar="SOURCE")]
Table = Annotated[str, typer.Argument(help="`schema.table`, or the table's name where it is the only one.")]


@schemas.command("list")
def list_(
    source: Annotated[str | None, typer.Argument(help="A source's id; all when absent.", metavar="[SOURCE]")] = None,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the tables with their newest version."""
    with guard(as_json):
        from tailrace.supervisor.inspect import schemas as service

        found = service.tables(layout_of(platform_config, data_dir), source)
    if as_json:
        say_json({"ok": True, "tables": [_summary(table) for table in found]})
        return
    for table in found:
        newest = table.newest.schema
        what = "dropped" if table.dropped else f"{len(newest.columns)} columns, key {', '.join(newest.key) or 'none'}"
        count = f"{len(table.versions)} versions" if len(table.versions) > 1 else "1 version"
        say(f"{table.source}  {table.name}  version {newest.id}  {what}, {count}")


@schemas.command()
def show(
    source: Source,
    table: Table,
    number: Annotated[int | None, typer.Option("--version", help="The newest when absent.")] = None,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print one version: columns, types, kinds, key, and where it begins."""
    with guard(as_json):
        from tailrace.supervisor.inspect import schemas as service

        found = service.table(layout_of(platform_config, data_dir), source, table)
        version = service.version(found, number)
    if as_json:
        say_json({"ok": True, "source": source, "table": found.name, **_plain(version)})
        return
    say(f"{found.name}  {_where(version)}")
    for column in version.schema.columns:
        null = "" if column.nullable else "  not null"
        key = "  key" if column.name in version.schema.key else ""
        say(f"  {column.name}  {column.type}  {column.kind}{null}{key}")
    say(f"  fingerprint {version.fingerprint}")


@schemas.command()
def versions(
    source: Source,
    table: Table,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List a table's versions, oldest first, with what each changed."""
    with guard(as_json):
        from tailrace.supervisor.inspect import schemas as service

        found = service.table(layout_of(platform_config, data_dir), source, table)
        pairs = zip((None, *found.versions), found.versions, strict=False)
        listed = [(each, service.steps(before, each) if before else []) for before, each in pairs]
    if as_json:
        plain = [{**_plain(each), "changes": steps} for each, steps in listed]
        say_json({"ok": True, "source": source, "table": found.name, "versions": plain})
        return
    for each, steps in listed:
        say(f"{_where(each)}  {'; '.join(map(_line, steps)) or 'first'}")


@schemas.command()
def diff(
    source: Source,
    table: Table,
    before: Annotated[int | None, typer.Option("--from", help="A version; the one before `--to` when absent.")] = None,
    after: Annotated[int | None, typer.Option("--to", help="A version; the newest when absent.")] = None,
    platform_config: PlatformConfig = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print what is different between two versions."""
    with guard(as_json):
        from tailrace.supervisor.inspect import schemas as service

        found = service.table(layout_of(platform_config, data_dir), source, table)
        old, new = service.diff(found, before, after)
        steps = service.steps(old, new)
    if as_json:
        numbers = {"from": old.schema.id, "to": new.schema.id}
        say_json({"ok": True, "source": source, "table": found.name, **numbers, "changes": steps})
        return
    say(f"{found.name}  version {old.schema.id} to {new.schema.id}")
    for step in steps or [{"kind": "nothing"}]:
        say(f"  {_line(step)}")


def _summary(table: TableVersions) -> dict[str, Any]:
    newest = _plain(table.newest)
    counts = {"versions": len(table.versions), "dropped": table.dropped}
    return {"source": table.source, "table": table.name, **newest, **counts}


def _plain(version: SchemaVersion) -> dict[str, Any]:
    return {
        "version": version.schema.id,
        "columns": columns_document(version.schema),
        "key": list(version.schema.key),
        "fingerprint": version.fingerprint,
        "position": version.position,
        "log_offset": version.log_offset,
        "at": moment(version.at_us) if version.at_us else None,
    }


def _where(version: SchemaVersion) -> str:
    since = moment(version.at_us) if version.at_us else "before what the log retains"
    return f"version {version.schema.id}  position {version.position}  offset {version.log_offset}  {since}"


def _line(step: dict[str, Any]) -> str:
    """`add v text`, `rename a to b`: the step's values in order, with a `to` between two."""
    kind, *values = [", ".join(value) if isinstance(value, list) else str(value) for value in step.values()]
    moved = "to" in step
    return " ".join([kind, *values[:-1], "to", values[-1]] if moved else [kind, *values])
