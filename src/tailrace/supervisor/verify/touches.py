"""What the log did to a table after reads of the source: the only thing that may make the lake differ from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.snapshot.visibility import Visibility
from tailrace.changelog import LogReader, head
from tailrace.changelog.storage import Directory
from tailrace.changelog.touched import Touched
from tailrace.changelog.transactions import Found, TransactionIndex
from tailrace.contracts import Staged
from tailrace.errors import LogError


class TouchedKeys:
    """Looks into one log. What a read did not see is told by its snapshot, never by positions."""

    def __init__(self, source: PostgresSource, log: Path) -> None:
        self._source, self._log = source, log
        self._index = TransactionIndex(Directory(log))
        self._index.refresh()

    def since(self, reads: Sequence[Staged], before: int) -> Touched:
        """What transactions that one of the `reads` of a table did not see did to it, at offsets below `before`."""
        try:
            return self._since(reads, before)
        except LogError as error:
            if error.code != "log.expired":
                raise
            self._index = TransactionIndex(Directory(self._log))  # it has what is still retained
            return self._since(reads, before)

    def _since(self, reads: Sequence[Staged], before: int) -> Touched:
        self._index.refresh()
        sights = _Sights(tuple(self._source.sight(each.seen) for each in reads))
        chunk = reads[0].chunk
        known = LogReader(self._log, head(self._log)).schemas.values()
        tables = frozenset(each.id for each in known if (each.schema, each.table) == (chunk.schema, chunk.table))
        touches = Touched()
        for found in self._index.find(tables, sights.may_miss, sights.missed, before):
            _collect(touches, found)
        return touches


@dataclass(frozen=True)
class _Sights:
    """What one of several reads did not see."""

    each: tuple[Visibility, ...]

    def may_miss(self, newest: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.logical_or.reduce([sight.may_miss(newest) for sight in self.each])
        return found

    def missed(self, xid: int) -> bool:
        return any(sight.missed(xid) for sight in self.each)


def _collect(touches: Touched, found: Found) -> None:
    columns = (found.rows.column(name).to_pylist() for name in ("op", "key", "after", "unchanged"))
    for op, key, after, unchanged in zip(*columns, strict=True):
        touches.add(op, key, after, unchanged)
