"""The driver's side of a lake sink: each batch is read once, each table in it is brought up to the batch's end.

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

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.contracts import Delivery, Span
from tailrace.errors import LogError, SinkError, TailraceError
from tailrace.sinks.lake.ledger import Entry, Ledger
from tailrace.sinks.lake.share import Share, steps, survey
from tailrace.sinks.lake.table import KeptTable
from tailrace.sinks.tables import Kept, Log

if TYPE_CHECKING:
    from tailrace.sinks.lake import LakeSink

CONFLICT_TRIES = 5


class LakeKeeper:
    def __init__(self, sink: LakeSink, spark: SparkSession, delivery: Delivery, log: Log, state_dir: Path) -> None:
        self._sink, self._spark, self._delivery, self._log = sink, spark, delivery, log
        self._ledger = Ledger(state_dir / "tables.json", log.log_id)
        self._tables: dict[str, KeptTable] = {}
        self._lock = threading.Lock()
        threads = sink.write_executor_threads or max(2, (os.cpu_count() or 2))
        self._pool = ThreadPoolExecutor(threads, f"lake/{sink.id}")

    def mark(self) -> int:
        return self._ledger.state.mark

    def settle(self) -> None:
        end = self._ledger.state.mark
        for name, entry in self._ledger.state.tables.items():
            start = self._table(name).mark()
            if entry.reason or start < entry.mark:
                self._catch_up(name, start, end)

    def keep(self, changes: DataFrame, span: Span) -> dict[int, Kept]:
        changes = changes.persist()
        try:
            shares = survey(changes, self._log.versions())
            entries = dict(self._each(shares, lambda share: self._apply(changes, share, span.start, span.end)))
        finally:
            changes.unpersist()
        self._ledger.move(max(self._ledger.state.mark, span.end), entries)
        return {part.schema.id: Kept(part.rows, part.last_us) for share in shares for part in share.parts}

    def warnings(self) -> tuple[str, ...]:
        tables = self._ledger.state.tables
        return tuple(f"{name} halted: {entry.reason}" for name, entry in tables.items() if entry.reason)

    # -- one table -------------------------------------------------------------------------------------------

    def _each(self, shares: list[Share], apply: Callable[[Share], Entry]) -> list[tuple[str, Entry]]:
        """Several tables at a time. The first error that is not a table's own ends the batch, after all have ended."""
        futures = [(share.name, self._pool.submit(apply, share)) for share in shares]
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

    def _apply(self, changes: DataFrame, share: Share, start: int, end: int) -> Entry:
        """Bring one table to `end`; where it halts, say so and keep the log for it."""
        known = self._ledger.state.tables.get(share.name, Entry())
        if known.reason:
            return known
        table = self._table(share.name)
        try:
            self._bring(table, changes, share, start, end)
        except TailraceError as error:
            if not halts_table(error):
                raise
            self._log.retain(share.name, table.mark())
            return Entry(table.mark(), str(error))
        return Entry(table.mark())

    def _bring(self, table: KeptTable, changes: DataFrame, share: Share, start: int, end: int) -> None:
        ids = [part.schema.id for part in share.parts]
        mine = changes.filter(F.col("schema_id").isin(ids))
        breaking = frozenset("s" if self._sink.write_mode == "append" else "st")
        for attempt in range(CONFLICT_TRIES):
            try:
                for step in steps(mine, share, max(start, table.mark()), end, breaking):
                    table.apply(step, mine)
                return
            except Exception as error:
                if attempt + 1 == CONFLICT_TRIES or not table.target.is_conflict(error):
                    raise
                table.forget()

    def _catch_up(self, name: str, start: int, end: int) -> None:
        """Replay `[start, end)` for one table alone."""
        if start < self._log.earliest < end:
            reason = LogError(
                "log.expired",
                f"the table holds every change before offset {start}, but the log begins at {self._log.earliest}",
                hint=f"read it anew: tailrace snapshot PIPELINE --table {name}",
            )
            self._ledger.move(end, {name: Entry(start, f"{reason}; {reason.hint}")})
            return
        entry = Entry(start)
        for until in self._log.ends(start, end):
            changes = self._log.read(start, until).persist()
            try:
                shares = [share for share in survey(changes, self._log.versions()) if share.name == name]
                self._ledger.state.tables[name] = Entry(start)
                for share in shares:
                    entry = self._apply(changes, share, start, until)
            finally:
                changes.unpersist()
            if entry.reason:
                break
            start = until
        if not entry.reason:
            self._log.retain(name, None)
        self._ledger.move(end, {name: entry})

    def _table(self, name: str) -> KeptTable:
        with self._lock:
            if name not in self._tables:
                newest = [schema for schema in self._log.versions().values() if schema.name == name][-1]
                self._tables[name] = KeptTable(self._sink, self._spark, newest, self._delivery, self._log.log_id)
            return self._tables[name]


def halts_table(error: TailraceError) -> bool:
    """Whether an error is one table's own, so that the others go on."""
    return isinstance(error, SinkError) and error.code in HALTING


HALTING = frozenset(
    {
        "sink.column_taken",
        "sink.incompatible_type",
        "sink.mark_lost",
        "sink.no_key",
        "sink.table_missing",
        "sink.unfit_value",
        "sink.versions_mixed",
    }
)
