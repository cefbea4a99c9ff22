"""Finding what some transactions did to a table, anywhere in a log, without reading the rest of it.

The manifest's lines name the smallest and largest transaction id in them; an index of those, a few bytes a line, leaves
only the lines to read that can have one of the wanted transactions.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailrace.changelog import frames, manifest
from tailrace.changelog.manifest import Claim, FrameRef, Line
from tailrace.changelog.storage import Directory

_HALF = 1 << 31


@dataclass(frozen=True)
class Found:
    """Rows of a frame, in source order, that were wanted: `rows` has the columns `contracts.ROWS`."""

    rows: pa.RecordBatch
    lanes: np.ndarray


class TransactionIndex:
    """Where in a log which transactions are. `refresh` sees what was appended since.

    Where the source began anew, what lies before is forgotten: its transaction ids are of another history.
    """

    def __init__(self, storage: Directory, since: int = 0) -> None:
        self._storage, self._since = storage, since
        self._tail = manifest.Tail(storage)
        self.began: Mapping[str, str] | None = None
        """Where at the source the stream begins that the log has, as far back as the log goes."""
        self.replaced: dict[tuple[str, str], str] = {}
        """By table: its newest reset's `Admitted.replaces`."""
        self._forget()

    def refresh(self) -> None:
        for entry in self._tail.entries():
            if isinstance(entry, Claim):
                continue
            if not entry.resume:
                self._forget()
            elif self.began is None:
                self.began = entry.resume
            if isinstance(entry, Line) and entry.admitted is not None and entry.admitted.replaces:
                chunk = entry.admitted.chunk
                self.replaced[chunk.schema, chunk.table] = entry.admitted.replaces
            if isinstance(entry, Line) and entry.xids is not None and entry.rows and entry.end > self._since:
                self._enter(entry)

    def find(
        self,
        tables: frozenset[int],
        may_have: Callable[[np.ndarray], np.ndarray],
        wanted: Callable[[int], bool],
        before: int | None = None,
    ) -> Iterator[Found]:
        """The rows of `tables` (schema ids) that wanted transactions changed, in the log's order; with `before` only
        those at offsets below it.

        `may_have` is asked with the largest transaction id of each line, `wanted` with single ones. Raises
        `log.expired` where a line that may have one is no longer retained.
        """
        if not self._low:
            return
        low, high = np.array(self._low), np.array(self._high)
        for place in np.flatnonzero(may_have(high) | (high - low > _HALF)).tolist():
            yield from self._in_line(place, tables, wanted, before)

    @property
    def size(self) -> int:
        """Lines it knows, for `since`."""
        return len(self._low)

    def since(self, tables: frozenset[int], first: int, at_us: int) -> Iterator[Found]:
        """The rows of `tables` in lines from the `first` known on that were appended at `at_us` or later."""
        for place in range(first, len(self._low)):
            if self._at_us[place] >= at_us:
                yield from self._in_line(place, tables, lambda _: True)

    def _in_line(
        self, place: int, tables: frozenset[int], wanted: Callable[[int], bool], before: int | None = None
    ) -> Iterator[Found]:
        line = self._line(place)
        if tables.intersection(line.tables) and (before is None or line.base < before):
            for ref in line.frames:
                rows = ref.rows if before is None else before - line.base - ref.row
                yield from self._look(ref, tables, wanted, rows)

    def _forget(self) -> None:
        self.began, self.replaced = None, {}
        self._files: list[str] = []
        self._file, self._start, self._size = array("q"), array("q"), array("q")
        self._low, self._high, self._at_us = array("q"), array("q"), array("q")

    def _enter(self, line: Line) -> None:
        name = self._tail.file or ""
        if not self._files or self._files[-1] != name:
            self._files.append(name)
        assert line.xids is not None
        self._file.append(len(self._files) - 1)
        self._start.append(self._tail.line_start)
        self._size.append(self._tail.offset - self._tail.line_start)
        self._low.append(line.xids[0])
        self._high.append(line.xids[1])
        self._at_us.append(line.at_us)

    def _line(self, place: int) -> Line:
        name = self._files[self._file[place]]
        return manifest.line_at(self._storage, name, self._start[place], self._size[place])

    def _look(
        self, ref: FrameRef, tables: frozenset[int], wanted: Callable[[int], bool], first: int
    ) -> Iterator[Found]:
        """Among the `first` rows of the frame in source order."""
        rows, txs = frames.read(self._storage, ref)
        mine = np.isin(rows.column("schema_id").to_numpy(), list(tables)) & (rows.column("row").to_numpy() < first)
        if not mine.any():
            return
        names: list[str] = txs.column("tx_id").to_pylist()  # type: ignore[assignment]
        chosen = np.array([_is_number(name) and wanted(int(name)) for name in names])
        places = np.flatnonzero(mine & chosen[rows.column("tx").to_numpy()])
        if len(places):
            order = places[np.argsort(rows.column("row").to_numpy()[places])]
            lanes = np.searchsorted(np.array(ref.lane_offsets()), order, side="right") - 1
            yield Found(rows.take(order), lanes)


def _is_number(name: str) -> bool:
    """Transactions of the source have numbers; what the tap itself adds has names."""
    return name.isdigit() and name != "0"
