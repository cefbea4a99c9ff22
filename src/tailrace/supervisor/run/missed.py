"""What a sink lacks that first read a log after its beginning was dropped, and the snapshot that brings it.

The sink gets what is left, so rows that have not changed since are missing in it, however small its lag is. A snapshot
of a table that was requested after the log's oldest change was appended has all of them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, cast

from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger
from tailrace.errors import TailraceError
from tailrace.schema import table_name
from tailrace.spec import Pipeline
from tailrace.supervisor.layout import Layout

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource
    from tailrace.spark.query import Began

LOOK_S = 5.0
"""Between two looks at the ledger."""
NAMED = 5
"""Tables that are named, at most."""


class Missed:
    """Of one sink that began at offset `began`, when `rows` changes before it were gone. The warning goes when every
    one of `tables` was read again."""

    def __init__(
        self,
        began: int,
        rows: int,
        tables: Sequence[str],
        read: Callable[[], Mapping[str, bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` tells which tables were read again, or are being read; see `SnapshotLedger.read_since`."""
        self._began, self._rows, self._tables, self._read, self._clock = began, rows, tables, read, clock
        self._told: tuple[str, ...] = ()
        self._due = 0.0

    def warnings(self) -> tuple[str, ...]:
        """What was known last, where the ledger cannot be asked now."""
        if self._clock() >= self._due:
            self._due = self._clock() + LOOK_S
            with suppress(TailraceError):  # the tap needs the store, too, and says what is wrong with it
                self._told = self._advice(self._read())
        return self._told

    def _advice(self, read: Mapping[str, bool]) -> tuple[str, ...]:
        unread = [name for name in self._tables if not read.get(name)]
        if not unread:
            return ()
        named = ", ".join(unread[:NAMED]) + (f" and {len(unread) - NAMED} more" if len(unread) > NAMED else "")
        if all(name in read for name in unread):
            way_out = "the snapshot under way brings them"
        else:
            some = "" if len(unread) == len(self._tables) else "".join(f" --table {shlex.quote(n)}" for n in unread)
            way_out = f"read them anew: tailrace snapshot PIPELINE.yaml{some}"
        return (
            f"it delivers from offset {self._began} on, because the {self._rows:,} changes before that were no longer "
            f"in the log when it began: rows of {named} that have not changed since are missing here; {way_out}",
        )


def look_back(pipeline: Pipeline, layout: Layout, log_id: str, began: Began) -> Missed | None:
    """What a sink of the pipeline missed; None for one that had the whole log, or goes on from its mark. A store or a
    database that does not answer is no error here."""
    missed, source = began.missed, cast("PostgresSource", pipeline.source)
    if missed is None:
        return None
    ledger = cache(lambda: SnapshotLedger(Store(layout.store)))  # opened when it is first asked
    tables: Sequence[str] = missed.tables
    with suppress(TailraceError):  # a database that is away: a table that it no longer has is named all the same
        captured = {table_name(schema, table) for schema, table, _ in source.snapshot_tables()}
        tables = [name for name in tables if name in captured]
    return Missed(began.offset, missed.rows, tables, lambda: ledger().read_since(source.id, log_id, missed.since_us))
