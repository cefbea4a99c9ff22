"""The table versions a log has, entered into the schema registry. The log is the truth; this can always be repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tailrace.changelog import manifest
from tailrace.changelog.manifest import Header, Line
from tailrace.changelog.storage import Directory
from tailrace.control.schemas import SchemaRegistry, SchemaVersion
from tailrace.schema import TableSchema


def index(path: str | os.PathLike[str], registry: SchemaRegistry) -> None:
    """Enter what the registry does not have of the log at `path`, if there is one. Works while it is written."""
    storage = Directory(path)
    headers = [(name, header) for name in storage.list(manifest.FOLDER) if (header := _header(storage, name))]
    if not headers:
        return
    newest = headers[-1][1]
    known = registry.known(newest.source, newest.log_id)
    found = {version.schema.id: version for version in reversed(list(_unknown(storage, headers, known)))}
    if found or not known:
        registry.enter(newest.source, newest.log_id, found.values())


def _unknown(storage: Directory, headers: list[tuple[str, Header]], known: frozenset[int]) -> Iterator[SchemaVersion]:
    """The versions that are new to the registry, oldest place first; only files that have one are read."""
    first = headers[0][1]
    yield from _new(first.schemas, known, first.resume, first.base, 0)
    for place, (name, header) in enumerate(headers):
        last = place + 1 == len(headers)
        after = () if last else headers[place + 1][1].schemas
        before = {schema.id for schema in header.schemas}
        if last or any(schema.id not in before and schema.id not in known for schema in after):
            for line in _lines(storage, name):
                yield from _new(line.schemas, known, line.resume, line.base, line.at_us)


def _new(
    schemas: tuple[TableSchema, ...], known: frozenset[int], resume: object, base: int, at_us: int
) -> Iterator[SchemaVersion]:
    """Tables only: logical messages have no columns to register."""
    lsn = str(resume.get("lsn", "")) if isinstance(resume, dict) else ""
    for schema in schemas:
        if schema.schema and schema.id not in known:
            yield SchemaVersion(schema, schema.fingerprint, schema.since or lsn, base, at_us)


def _header(storage: Directory, name: str) -> Header | None:
    try:
        return manifest.header_of(storage, name)
    except FileNotFoundError:  # retention removed it
        return None


def _lines(storage: Directory, name: str) -> Iterator[Line]:
    tail = manifest.Tail(storage, file=name)
    for entry in tail.entries():
        if tail.file != name:
            return
        if isinstance(entry, Line):
            yield entry
