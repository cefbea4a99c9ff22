"""The driver's side of a lake sink: each table in a batch is brought up to the batch's end, by jobs that read its part
of the log.

A table's own mark says what it has (Law 4): a repeat, a lost checkpoint or a rolled back table is caught up from there.
A table that cannot go on halts alone; the log keeps what it still needs, and the next start tries again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from tailrace.contracts import Delivery, Span
from tailrace.errors import LogError
from tailrace.failpoints import failpoint
from tailrace.schema import TableSchema
from tailrace.sinks.lake.ledger import Entry, TableLedger
from tailrace.sinks.lake.maintenance import FAILURES, LakeCare, Turns
from tailrace.sinks.lake.share import Share, shares_of, steps
from tailrace.sinks.lake.table import SinkTable
from tailrace.sinks.lake.target import Target
from tailrace.sinks.lake.trouble import of_the_sink, of_the_table
from tailrace.sinks.tables import Applied, Log

if TYPE_CHECKING:
    from tailrace.sinks.lake import LakeSink

CONFLICT_TRIES = 5
LEDGER = "tables.json"
"""The file of the keeper's ledger."""


class LakeKeeper:
    def __init__(self, sink: LakeSink, spark: SparkSession, delivery: Delivery, log: Log, state_dir: Path) -> None:
        self._sink, self._spark, self._delivery, self._log = sink, spark, delivery, log
        self._ledger = TableLedger(state_dir / LEDGER, log.log_id)
        self._tables: dict[str, SinkTable] = {}
        self._schemas: dict[str, TableSchema] = {}
        self._tended: dict[str, Target] = {}
        self._turns = Turns()
        self._lock = threading.Lock()
        self._threads = sink.write_executor_threads or max(2, os.cpu_count() or 2)

    def mark(self) -> int:
        return self._ledger.state.mark

    def settle(self) -> None:
        end = self._ledger.state.mark
        for name, entry in list(self._ledger.state.tables.items()):
            try:
                start = self._table(name).look()
                is_behind = bool(entry.reason) or start < entry.mark
                if is_behind:
                    self._restore_columns(name)
            except Exception as error:
                self._ledger.move(end, {name: self._halted(name, entry.mark, error)})
                continue
            if is_behind:
                self._catch_up(name, start, end)

    def keep(self, span: Span) -> dict[int, Applied]:
        shares = self._shares(span.start, span.end)
        entries = dict(self._each(shares, lambda share: self._apply(share, span.start, span.end)))
        failpoint("lake.batch.before_ledger")
        self._ledger.move(max(self._ledger.state.mark, span.end), entries)
        contents = [part.content for share in shares for part in share.parts]
        return {content.schema_id: Applied(content.rows, content.last_us) for content in contents}

    def warnings(self) -> tuple[str, ...]:
        tables = self._ledger.state.tables
        return tuple(f"{name} halted: {entry.reason}" for name, entry in tables.items() if entry.reason)

    def care(self) -> LakeCare | None:
        maintenance = self._sink.maintenance
        return LakeCare(maintenance, self._targets, self._turns) if maintenance.enabled else None

    def _targets(self) -> dict[str, Target]:
        """The tables that are there and can be opened, in sessions apart from the batches'."""
        found: dict[str, Target] = {}
        with self._lock:
            schemas = dict(self._schemas)
        for name, schema in schemas.items():
            try:
                if name not in self._tended:
                    self._tended[name] = self._sink.target_for(self._spark, schema, self._delivery, self._log.log_id)
                if self._tended[name].state() is not None:
                    found[name] = self._tended[name]
            except FAILURES as error:
                if of_the_sink(error, self._sink.id) is not None:
                    raise
        return found

    def _shares(self, start: int, end: int) -> list[Share]:
        return shares_of(self._log.contents(start, end), self._log.versions())

    # -- one table -------------------------------------------------------------------------------------------

    def _each(self, shares: list[Share], apply: Callable[[Share], Entry]) -> list[tuple[str, Entry]]:
        """Several tables at a time. The first error that is not a table's own ends the batch, after all have ended."""
        with ThreadPoolExecutor(self._threads, f"lake/{self._sink.id}") as pool:
            futures = [(share.name, pool.submit(apply, share)) for share in shares]
        results: list[tuple[str, Entry]] = []
        failure: BaseException | None = None
        for name, future in futures:
            try:
                results.append((name, future.result()))
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return results

    def _apply(self, share: Share, start: int, end: int) -> Entry:
        """Bring one table to `end`; where it halts, say so and keep the log for it."""
        known = self._ledger.state.tables.get(share.name, Entry())
        if known.reason:
            return known
        try:
            return self._brought(share, known, start, end)
        except Exception as error:
            table = self._tables.get(share.name)
            return self._halted(share.name, max(known.mark, table.committed if table else 0), error)

    def _brought(self, share: Share, known: Entry, start: int, end: int) -> Entry:
        table = self._table(share.name)
        if table.look() < min(known.mark, start):  # somebody rolled it back
            self._restore_columns(share.name)
            self._catch_up(share.name, table.mark(), start)
            known = self._ledger.state.tables[share.name]
            if known.reason:
                return known
        self._bring(table, share, start, end)
        return Entry(table.committed)

    def _halted(self, name: str, mark: int, error: Exception) -> Entry:
        """One table cannot go on: the log keeps what it needs. What concerns the whole sink is raised."""
        failure = of_the_sink(error, self._sink.id)
        if failure is not None:
            raise failure
        self._log.retain(name, mark)
        reason = of_the_table(error, name)
        return Entry(mark, f"{reason}; {reason.hint}")

    def _bring(self, table: SinkTable, share: Share, start: int, end: int) -> None:
        table.target.tune(sum(part.content.rows for part in share.parts))
        breaking = frozenset("s" if self._sink.write_mode == "append" else "st")
        for attempt in range(CONFLICT_TRIES):
            try:
                with self._turns.of(share.name):
                    for step in steps(share, max(start, table.mark()), end, breaking):
                        table.apply(step)
                return
            except Exception as error:
                if attempt + 1 == CONFLICT_TRIES or not table.target.is_conflict(error):
                    raise
                table.forget()

    def _catch_up(self, name: str, start: int, end: int) -> None:
        """Replay `[start, end)` for one table alone."""
        if start < min(self._log.earliest, end):
            reason = LogError(
                "log.expired",
                f"the table holds every change before offset {start}, but the log begins at {self._log.earliest}",
                hint="give the sink another id, then read the tables anew: tailrace snapshot PIPELINE",
            )
            self._log.retain(name, None)  # nothing that is still in the log can help it
            self._ledger.move(end, {name: Entry(start, f"{reason}; {reason.hint}")})
            return
        entry = Entry(start)
        for until in self._log.ends(start, end):
            self._ledger.state.tables[name] = Entry(start)
            for share in (each for each in self._shares(start, until) if each.name == name):
                entry = self._apply(share, start, until)
            if entry.reason:
                break
            failpoint("lake.catch_up.between_reads")
            start = until
        if not entry.reason:
            self._log.retain(name, None)
        self._ledger.move(end, {name: entry})

    def _restore_columns(self, name: str) -> None:
        """What is applied again since a table's mark begins with the columns that it had there."""
        with self._turns.of(name):
            self._table(name).restore_columns()

    def _table(self, name: str) -> SinkTable:
        with self._lock:
            if name not in self._tables:
                newest = [schema for schema in self._log.versions().values() if schema.name == name][-1]
                self._tables[name] = SinkTable(self._sink, self._spark, newest, self._delivery, self._log)
                self._schemas[name] = newest
            return self._tables[name]
