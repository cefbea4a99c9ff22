"""What the log did to a table after reads of the source: the only thing that may make the lake differ from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.snapshot.visibility import Visibility
from tailrace.change import OPS
from tailrace.changelog import LogReader, head
from tailrace.changelog.storage import Directory
from tailrace.changelog.transactions import Found, TransactionIndex
from tailrace.contracts import Staged
from tailrace.errors import LogError

_TRUNCATE, _DELETE, _CHANGES = OPS.index("t"), OPS.index("d"), frozenset(OPS.index(op) for op in "cud")


@dataclass
class Touches:
    """Keys, as the log spells them, that transactions changed which a read had not seen."""

    everything: bool = False
    """Whether no row can be told to be untouched."""
    keys: set[str] = field(default_factory=set)
    images: dict[str, str] = field(default_factory=dict)
    """What they left of keys, where that is known in every column; keys that are gone are not in it."""
    partial: set[str] = field(default_factory=set)
    """Keys of which it is not known."""

    def add(self, op: int, key: str | None, after: str | None, unchanged: str | None) -> None:
        if op == _TRUNCATE or (op in _CHANGES and key is None):
            self.everything = True
        elif op in _CHANGES and key is not None:
            self.keys.add(key)
            self._image(key, None if op == _DELETE else after, partial=op != _DELETE and unchanged is not None)

    def _image(self, key: str, after: str | None, *, partial: bool) -> None:
        self.images.pop(key, None)
        (self.partial.add if partial else self.partial.discard)(key)
        if after is not None and not partial:
            self.images[key] = after


class TouchedKeys:
    """Looks into one log. What a read did not see is told by its snapshot, never by positions."""

    def __init__(self, source: PostgresSource, log: Path) -> None:
        self._source, self._log = source, log
        self._index = TransactionIndex(Directory(log))
        self._index.refresh()

    def since(self, reads: Sequence[Staged], before: int) -> Touches:
        """What transactions that one of the `reads` of a table did not see did to it, at offsets below `before`."""
        try:
            return self._since(reads, before)
        except LogError as error:
            if error.code != "log.expired":
                raise
            self._index = TransactionIndex(Directory(self._log))  # it has what is still retained
            return self._since(reads, before)

    def _since(self, reads: Sequence[Staged], before: int) -> Touches:
        self._index.refresh()
        sights = _Sights(tuple(self._source.sight(each.seen) for each in reads))
        chunk = reads[0].chunk
        known = LogReader(self._log, head(self._log)).schemas.values()
        tables = frozenset(each.id for each in known if (each.schema, each.table) == (chunk.schema, chunk.table))
        touches = Touches()
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


def _collect(touches: Touches, found: Found) -> None:
    columns = (found.rows.column(name).to_pylist() for name in ("op", "key", "after", "unchanged"))
    for op, key, after, unchanged in zip(*columns, strict=True):
        touches.add(op, key, after, unchanged)
