"""Snapshots on request: ask for one, watch it, cancel it. The pipeline's own process does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.repair import ASKED
from tailrace.changelog import LogReader
from tailrace.control.ledger import Run, SnapshotLedger, TableRequest, TableRun
from tailrace.errors import ConfigError
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout, is_running

REQUESTED = "asked"
"""The reason of a run that somebody asked for."""
BESIDE = frozenset({REQUESTED, "verify"})
"""The reasons of runs without which a pipeline has no gap: asked for, or by `verify.repair`."""


@dataclass(frozen=True)
class RunProgress:
    """A run and its tables."""

    run: Run
    tables: tuple[TableRun, ...]
    working: bool
    """Whether a process runs the pipeline."""

    @property
    def rows(self) -> int:
        return sum(table.rows_admitted for table in self.tables)

    @property
    def estimate(self) -> int | None:
        """Rows in all, where the database has a guess for every table."""
        known = [max(table.estimate, table.rows_admitted) for table in self.tables if table.estimate is not None]
        return sum(known) if len(known) == len(self.tables) else None


class SnapshotRequests:
    """Of one pipeline's source."""

    def __init__(self, pipeline: Pipeline, platform: Platform) -> None:
        self._layout, self._pipeline = Layout.of(platform), pipeline
        self._source = cast(PostgresSource, pipeline.source)
        self._ledger = SnapshotLedger(self._layout.open_store())
        self.warnings: list[str] = []

    def request(self, patterns: Sequence[str], where: str | None, *, repair: bool = False) -> str:
        """A run over the captured tables that match, or over all; returns its id.

        `where` is SQL over the table's columns, checked before anything is requested. `repair` is for a source whose
        position is lost: every table is emptied and read again, so that neither goes with it.
        """
        if repair and (patterns or where):
            raise ConfigError(
                "snapshot.repair_all",
                "a repair reads every table",
                hint="leave --table and --where out, or leave --repair out",
            )
        log = LogReader(self._layout.log(self._source.id))  # raises `log.missing`: there is nothing to read into
        tables = self._matching(patterns)
        for table in tables if where else ():
            self._source.check_filter(table.schema, table.table, where or "")
        if not repair:
            self.warnings = self._source.preflight((each.schema, each.table) for each in tables)
        wanted = [TableRequest(each.schema, each.table, where, each.estimate) for each in tables]
        reason = ASKED if repair else REQUESTED
        return self._ledger.request(self._source.id, reason, wanted, log_id=log.log_id, since=0)

    def progress(self, run: str) -> RunProgress:
        working = is_running(self._layout, self._pipeline.name)
        return RunProgress(self._ledger.run(run), tuple(self._ledger.tables(run)), working)

    def active(self) -> list[Run]:
        return self._ledger.runs(self._source.id, "active")

    def cancel(self) -> list[str]:
        """Every run that is under way; returns their ids. What is in the log stays there."""
        return [run.id for run in self.active() if self._ledger.cancel(run.id)]

    def _matching(self, patterns: Sequence[str]) -> list[TableRequest]:
        captured = [TableRequest(schema, table, None, rows) for schema, table, rows in self._source.snapshot_tables()]
        chosen = TablePatterns(tuple(patterns) or ("*",))
        for pattern in chosen.unmatched((each.schema, each.table) for each in captured):
            names = ", ".join(f"{each.schema}.{each.table}" for each in captured)
            raise ConfigError(
                "snapshot.no_table",
                f"no captured table matches {pattern!r}",
                hint=f"the source captures {names}",
            )
        return [each for each in captured if chosen.match(each.schema, each.table)]
