"""The schema registry's use cases: what the tables of a source were, and are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tailrace.changelog.versions import index
from tailrace.control import Store
from tailrace.control.schemas import SchemaRegistry, SchemaVersion
from tailrace.errors import LogError
from tailrace.schema import Difference, differences
from tailrace.supervisor.inspect.log import find_log
from tailrace.supervisor.layout import STORE_FILE, Layout


@dataclass(frozen=True)
class TableVersions:
    """A table and its versions, oldest first."""

    source: str
    versions: tuple[SchemaVersion, ...]

    @property
    def newest(self) -> SchemaVersion:
        return self.versions[-1]

    @property
    def name(self) -> str:
        return self.newest.schema.name

    @property
    def dropped(self) -> bool:
        return not self.newest.schema.columns


def tables(layout: Layout, source: str | None = None) -> tuple[TableVersions, ...]:
    """Every table of a source, or of all; the registry is first brought up to what the logs say."""
    if source is not None:
        source = find_log(source, layout.root).name  # raises `log.missing`
    folders = layout.logs.iterdir() if layout.logs.is_dir() else ()
    logs = [layout.log(source)] if source else sorted(folder for folder in folders if folder.is_dir())
    if not logs:
        return ()
    with _store(layout) as store:
        registry = SchemaRegistry(store)
        for log in logs:
            index(log, registry)
        names = [source] if source else registry.sources()
        return tuple(table for name in names for table in _grouped(name, registry.versions(name)))


@contextmanager
def _store(layout: Layout) -> Iterator[Store]:
    """The control store; where it is gone, one for this look alone, for the logs have every version too."""
    with TemporaryDirectory() as folder:
        place = layout.store if layout.has_store() else Path(folder, STORE_FILE)
        with closing(Store(place)) as store:
            yield store


def table(layout: Layout, source: str, name: str) -> TableVersions:
    """One table, by `schema.table`, or by its name alone where that is enough."""
    known = tables(layout, source)
    found = [each for each in known if name in (each.name, each.newest.schema.table)]
    exact = [each for each in found if each.name == name] or found
    if len(exact) == 1:
        return exact[0]
    listed = ", ".join(each.name for each in found or known) or "none yet"
    many = f"{source} has several tables {name!r}" if found else f"{source} has no table {name!r}"
    raise LogError("log.no_table", many, hint=f"say which: {listed}" if found else f"its tables are: {listed}")


def version(table: TableVersions, number: int | None) -> SchemaVersion:
    """One version by its id; the newest where none is given."""
    if number is None:
        return table.newest
    for each in table.versions:
        if each.schema.id == number:
            return each
    listed = ", ".join(str(each.schema.id) for each in table.versions)
    raise LogError("log.no_version", f"{table.name} has no version {number}", hint=f"its versions are: {listed}")


def diff(table: TableVersions, before: int | None, after: int | None) -> tuple[SchemaVersion, SchemaVersion]:
    """Two versions to compare: by default the newest and the one before it."""
    new = version(table, after)
    if before is not None:
        return version(table, before), new
    earlier = [each for each in table.versions if each.schema.id < new.schema.id]
    if not earlier:
        raise LogError(
            "log.no_version",
            f"{table.name} has no version before {new.schema.id}",
            hint="`tailrace schemas versions` lists them",
        )
    return earlier[-1], new


def steps(before: SchemaVersion, after: SchemaVersion) -> list[Difference]:
    return differences(before.schema, after.schema)


def _grouped(source: str, versions: tuple[SchemaVersion, ...]) -> list[TableVersions]:
    groups: dict[str, list[SchemaVersion]] = {}
    for each in versions:
        groups.setdefault(each.schema.name, []).append(each)
    return [TableVersions(source, tuple(group)) for group in groups.values()]
