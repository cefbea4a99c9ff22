"""One row's whole story: every change of it that the log has, and how far it has come at each sink."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.changelog.history import History
from tailrace.config.problems import nearest
from tailrace.contracts import Sink
from tailrace.errors import ConfigError
from tailrace.schema import TableSchema
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.keeper import LEDGER
from tailrace.sinks.lake.ledger import Entry as LedgerEntry
from tailrace.sinks.lake.ledger import TableLedger
from tailrace.supervisor.explore import LARGEST_PAGE, Bounds, Explorer, Filter, Page
from tailrace.supervisor.explore.fates import Fates
from tailrace.supervisor.explore.question import Key
from tailrace.supervisor.verify.report import load

UNKNOWN = "unknown"
BOUNDS = Bounds(changes=2_000_000, seconds=30.0)


@dataclass(frozen=True)
class SinkFacts:
    """A sink and the row's table. Below `reached` it has everything of the table (None: it never reported).

    `mark`: the offset that the lake's table has, by the sink's own record (None: not a lake, or not known). `halted`:
    why that table waits. `verified`: what the last verification of the table found, and through which offset."""

    sink: str
    reached: int | None
    mark: int | None = None
    halted: str = ""
    verified: Mapping[str, Any] | None = None

    def lake(self, offset: int) -> str:
        """Whether a change is in the lake's table: `committed`, `waiting`, or `unknown`."""
        if self.mark is None:
            return UNKNOWN
        return "committed" if offset < self.mark else "waiting"

    def verdict(self, offset: int) -> str:
        """What the last verification says of a change: `equal`, `different`, `later` (it is newer), or `unknown`."""
        if self.verified is None or self.verified.get("offset") is None:
            return UNKNOWN
        if offset >= int(self.verified["offset"]):
            return "later"
        return "equal" if self.verified["equal"] else "different"


@dataclass(frozen=True)
class Trace:
    """Of the row `key` of `table`. The log goes back to `page.earliest`: what happened before is not known here."""

    table: str
    key: str
    page: Page
    sinks: tuple[SinkFacts, ...]

    def as_dict(self) -> dict[str, Any]:
        found = self.page.as_dict()
        for told, entry in zip(found["changes"], self.page.entries, strict=True):
            for facts in self.sinks:
                more = {"lake": facts.lake(entry.offset), "verified": facts.verdict(entry.offset)}
                told["sinks"][facts.sink] |= more
        return {"table": self.table, "key": self.key, **found, "sinks": [vars(each) for each in self.sinks]}


def trace(
    explorer: Explorer,
    table: str,
    key: str,
    *,
    limit: int = LARGEST_PAGE,
    cursor: str | None = None,
    bounds: Bounds = BOUNDS,
) -> Trace:
    """The oldest first; truncates of the table are changes of the row too. Raises `explore.no_table`, `explore.no_key`,
    and what `Explorer.look` raises."""
    history = explorer.history()
    versions = _versions(history, table)
    name = versions[-1].name
    wanted = Filter(tables=(_pattern(versions[-1]),), key=_key(key, versions, explorer), truncates=True)
    page = explorer.look(wanted, order="oldest", limit=limit, cursor=cursor, bounds=bounds)
    return Trace(name, str(wanted.key), page, tuple(_facts(explorer, history.log_id, name)))


def _versions(history: History, table: str) -> list[TableSchema]:
    """Of the one table that is called this."""
    known = [each for each in history.tables() if each.columns]
    found = [each for each in known if table in (each.name, each.table, f"{each.database}.{each.name}")]
    names = sorted({each.name for each in found})
    if not names:
        hint = nearest(table, {each.name for each in known}) if known else "the log has no table yet"
        raise ConfigError("explore.no_table", f"the log knows no table {table!r}", hint=hint)
    if len(names) > 1:
        message = f"the log knows more than one table {table!r}"
        raise ConfigError("explore.no_table", message, hint=f"name one of: {', '.join(names)}")
    return found


def _key(text: str, versions: list[TableSchema], explorer: Explorer) -> str:
    """The key as JSON, with the names that one of the table's keys has."""
    key = Key.of(text)
    names = [name for name, _ in key.values]
    keys = {each.key: None for each in versions if each.key}
    if not keys:
        hint = f"look for its changes by value: tailrace explore {explorer.pipeline.name}.yaml --where ..."
        raise ConfigError("explore.no_key", f"{versions[-1].name} has no key", hint=hint)
    if names == [""] and all(len(each) == 1 for each in keys):
        return text
    if not all(explorer.keeps_keys(each) for each in versions) or any(set(each) == set(names) for each in keys):
        return text
    example = json.dumps(dict.fromkeys(next(reversed(keys)), "…"), ensure_ascii=False)
    message = f"the key of {versions[-1].name} is made of {', '.join(next(reversed(keys)))}"
    raise ConfigError("explore.no_key", message, hint=f"give all of them as JSON: {example}")


def _pattern(table: TableSchema) -> str:
    """The pattern that fits this table alone."""
    return ".".join('"' + each.replace('"', '""') + '"' for each in (table.schema, table.table))


def _facts(explorer: Explorer, log_id: str, table: str) -> Iterator[SinkFacts]:
    fates = Fates(explorer.pipeline, explorer.layout, log_id)
    for sink in explorer.pipeline.sinks:
        mark, halted = _lake(explorer, sink, log_id, table)
        found = load(explorer.layout.verified(explorer.pipeline.name, sink.id)).get(table)
        verified = found if found is not None and found.get("log_id") == log_id else None
        yield SinkFacts(sink.id, fates.reached(sink.id, table), mark, halted, verified)


def _lake(explorer: Explorer, sink: Sink, log_id: str, table: str) -> tuple[int | None, str]:
    """How far the lake's table is, by the sink's own file: the lake itself is not opened."""
    file = explorer.layout.sink(explorer.pipeline.name, sink.id) / LEDGER
    if not isinstance(sink, LakeSink) or not file.exists():
        return None, ""
    state = TableLedger(file, log_id).state
    entry = state.tables.get(table, LedgerEntry(state.mark))
    return (entry.mark if entry.reason else max(entry.mark, state.mark)), entry.reason
