"""Look into a pipeline's log, change by change, as a sink's chain leaves it: the whole of what is retained, page by
page. Nothing is written, no sink is asked, and what a chain hides stays hidden without the right to raw values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.changelog.history import History, Stretch
from tailrace.contracts import Place, Processor, Sink
from tailrace.errors import ConfigError, ProcessorError
from tailrace.processors.chain import Chain
from tailrace.processors.tables import by_table
from tailrace.schema import TableSchema
from tailrace.spec import Pipeline
from tailrace.supervisor.explore.child import ChildPassing, TooLate, needs_child
from tailrace.supervisor.explore.cursor import Cursor, digest
from tailrace.supervisor.explore.entries import Content, Entry, entry_of
from tailrace.supervisor.explore.fates import Fates
from tailrace.supervisor.explore.passing import Passing, Seen
from tailrace.supervisor.explore.question import Filter, Order
from tailrace.supervisor.explore.scan import Bounds, Reason, Scan
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.trial import Trial

PAGE = 50
LARGEST_PAGE = 500
ALL = Filter()


@dataclass(frozen=True)
class Scanned:
    """The offsets `[start, end)` that a page was looked for in, how many changes were read there, and how many of the
    range retention dropped before they were."""

    start: int
    end: int
    changes: int
    lost: int


@dataclass(frozen=True)
class Page:
    """Changes in the order asked for. The log has `[earliest, log_end)`.

    `cursor` goes on behind what was scanned; None: nothing can follow. `partial`: a bound (`stopped_by`: changes or
    time) ended the look before the page was full, so that more may follow, or nothing."""

    entries: tuple[Entry, ...]
    cursor: str | None
    partial: bool
    stopped_by: Reason
    scanned: Scanned
    earliest: int
    log_end: int
    log_id: str
    sink: str
    raw: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("cursor", "partial", "stopped_by", "earliest", "log_end")},
            **{"log_id": self.log_id, "sink": self.sink, "raw": self.raw},
            "scanned": vars(self.scanned),
            "changes": [each.as_dict() for each in self.entries],
        }


class Explorer:
    """Of one pipeline's log, as the chain before `sink` leaves it (absent: before the first). `raw`: as the source sent
    it, which is a right of its own: whoever calls asks for it.

    A chain with code of the user's, or over frames, runs in a process of its own, which `close` ends. One look at a
    time: whoever has several threads gives each an explorer, or takes turns."""

    def __init__(self, pipeline: Pipeline, layout: Layout, *, sink: str | None = None, raw: bool = False) -> None:
        self.pipeline, self.layout, self.raw = pipeline, layout, raw
        self.sink: Sink = Trial.of(pipeline, sink).sink
        chain = () if raw else pipeline.chain(self.sink)
        self._passing: Passing | ChildPassing = _passing(pipeline, self.sink, chain)
        self._chain, self._keeping = Chain(chain), dict[TableSchema, bool]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if isinstance(self._passing, ChildPassing):
            self._passing.close()

    def history(self) -> History:
        """The log as it is now. Raises `log.missing`."""
        return History(self.layout.log(self.pipeline.source_id))

    def look(
        self,
        wanted: Filter = ALL,
        *,
        order: Order = "newest",
        limit: int = PAGE,
        cursor: str | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 -- it is frozen
    ) -> Page:
        """A page. Raises `explore.filter` and `explore.cursor`."""
        wanted.check()
        if not 1 <= limit <= LARGEST_PAGE:
            hint = f"ask for 1 to {LARGEST_PAGE}, and go on from the cursor"
            raise ConfigError("explore.filter", f"a page cannot have {limit} changes", hint=hint, where="limit")
        history = self.history()
        question = self._question(wanted, order)
        return _Look(self, history, wanted, question).page(order, limit, cursor, bounds)

    def passed(self, changes: pa.RecordBatch, history: History, seconds: float) -> Seen:
        """Changes behind the chain. Raises `TooLate`."""
        if isinstance(self._passing, ChildPassing):
            return self._passing(changes, history.schemas, seconds)
        return self._passing(changes, history.schemas)

    def keeps_keys(self, table: TableSchema | None) -> bool:
        """Whether the chain leaves every key of a table as it is; of one that nobody knows, it is not known."""
        if table is None or not self._chain:
            return not self._chain
        if table not in self._keeping:
            try:
                self._keeping[table] = self._chain.keeps_keys(table)
            except ProcessorError:  # the chain fails for the table's changes
                self._keeping[table] = False
        return self._keeping[table]

    def get_ready(self) -> None:
        """Start what the chain needs, so that no look pays for it."""
        if isinstance(self._passing, ChildPassing):
            self._passing.start()

    def is_past(self, position: str, other: str) -> bool:
        """Whether a position of the source is at or after another. Raises `explore.filter` for what is none."""
        try:
            found: bool = self.pipeline.source.is_past(position, other)  # type: ignore[attr-defined]
        except (ValueError, AttributeError):
            message = f"{other!r} is no position of this source" if other else "this source has no positions to compare"
            hint = "copy one from what the explorer shows"
            raise ConfigError("explore.filter", message, hint=hint, where="position") from None
        return found

    def _question(self, wanted: Filter, order: Order) -> str:
        return digest([self.pipeline.name, self.sink.id, self.raw, order, wanted.as_dict()])


def _passing(pipeline: Pipeline, sink: Sink, chain: tuple[Processor, ...]) -> Passing | ChildPassing:
    connector = pipeline.provenance.connector
    place = Place(pipeline.name, pipeline.metadata.tenant, connector, {}, sink.mirrors())
    return ChildPassing(place, chain) if needs_child(chain) else Passing(place, chain)


class _Look:
    """One question to one log."""

    def __init__(self, explorer: Explorer, history: History, wanted: Filter, question: str) -> None:
        self._explorer, self._history, self._wanted, self._question = explorer, history, wanted, question

    def page(self, order: Order, limit: int, cursor: str | None, bounds: Bounds) -> Page:
        newest_first = order == "newest"
        earliest, start, end = self._range(cursor, newest_first=newest_first)
        self._explorer.get_ready()
        scan = Scan(self._history, start, end, bounds, newest_first=newest_first)
        found: list[Entry] = []
        for entry in self._entries(scan):
            found.append(entry)
            if len(found) == limit:
                scan.stop_at(entry.offset)
                break
        full = len(found) == limit
        fates = Fates(self._explorer.pipeline, self._explorer.layout, self._history.log_id)
        known = fates.of((each.offset, each.table) for each in found)
        told = Scanned(*((scan.at, end) if newest_first else (start, scan.at)), scan.changes, scan.lost)
        return Page(
            tuple(each.with_fates(known[each.offset]) for each in found),
            self._next(scan, newest_first=newest_first),
            bool(scan.stopped) and not full and not scan.is_done,
            "" if full else scan.stopped,
            told,
            earliest,
            self._history.end,
            self._history.log_id,
            self._explorer.sink.id,
            self._explorer.raw,
        )

    def _range(self, cursor: str | None, *, newest_first: bool) -> tuple[int, int, int]:
        """(where the log begins, where to look from, where to)."""
        history, wanted = self._history, self._wanted
        earliest = history.earliest
        start, end = max(wanted.start or 0, earliest), history.end
        end = end if wanted.end is None else min(wanted.end, end)
        if cursor is not None:
            at = Cursor.read(cursor, history.log_id, self._question).offset
            start, end = (start, min(end, at)) if newest_first else (max(start, at), end)
        return earliest, min(start, end), end

    def _next(self, scan: Scan, *, newest_first: bool) -> str | None:
        """Oldest first, the log may grow behind its end."""
        ends = scan.is_done and (newest_first or (self._wanted.end is not None and scan.at >= self._wanted.end))
        return None if ends else Cursor(self._history.log_id, self._question, scan.at).text()

    def _entries(self, scan: Scan) -> Iterator[Entry]:
        try:
            for piece in scan.pieces(self._wanted.wants_table, self._narrow()):
                changes = piece.filter(pa.array(self._of_source(piece)))
                if changes.num_rows:
                    seen = self._explorer.passed(changes, self._history, scan.left_s)
                    found = list(self._shown(changes, seen))
                    yield from reversed(found) if scan.newest_first else found
        except TooLate:
            scan.stopped = "time"

    def _narrow(self) -> Any:
        """Frames that cannot have the key are passed over, where keys are what they are in the log."""
        row = self._wanted.row
        tables = [each for each in self._history.tables() if each.columns and self._wanted.wants_table(each)]
        if row is None or not all(self._explorer.keeps_keys(each) for each in tables):
            return None
        texts = tuple(row.texts())

        def narrowed(stretch: Stretch) -> Stretch:
            return self._history.narrowed(stretch, texts)

        return narrowed if texts else None

    def _of_source(self, changes: pa.RecordBatch) -> np.ndarray:
        """Which changes are wanted by what the source says of them outside their rows."""
        wanted = self._wanted
        fits = np.ones(changes.num_rows, dtype=np.bool_)
        if wanted.tables:
            fits &= by_table(changes, wanted.patterns.fit).astype(np.bool_)
        times = changes.column("ts_us").to_numpy()
        if wanted.since_us is not None:
            fits &= times >= wanted.since_us
        if wanted.until_us is not None:
            fits &= times < wanted.until_us
        if wanted.row is not None:
            fits &= wanted.of_row(changes) | ~self._keeps_keys(changes)
        return self._by_position(changes, fits)

    def _by_position(self, changes: pa.RecordBatch, fits: np.ndarray) -> np.ndarray:
        low, high = self._wanted.from_position, self._wanted.to_position
        if low is None and high is None:
            return fits
        is_past = self._explorer.is_past
        encoded: Any = changes.column("position").dictionary_encode()
        good = [
            (low is None or is_past(each, low)) and (high is None or is_past(high, each))
            for each in encoded.dictionary.to_pylist()
        ]
        within: np.ndarray = fits & np.array(good, dtype=np.bool_)[encoded.indices.to_numpy()]
        return within

    def _shown(self, changes: pa.RecordBatch, seen: Seen) -> Iterator[Entry]:
        """The entries of those of these changes that are wanted by what comes out for them, in the log's order."""
        out = _offsets(seen.rows)
        fitting = _offsets(seen.rows.filter(pa.array(self._of_view(seen.rows))))
        fitting |= self._without_rows(changes, out)
        if not fitting:
            return
        chosen = pa.array(sorted(fitting), pa.int64())
        contents: dict[int, list[Content]] = {}
        for row in seen.rows.filter(pc.is_in(seen.rows.column("seq"), chosen)).to_pylist():
            contents.setdefault(row["seq"], []).append(Content.of(row))
        for change in changes.filter(pc.is_in(changes.column("seq"), chosen)).to_pylist():
            mine = tuple(sorted(contents.get(change["seq"], []), key=lambda each: each.part or ""))
            shows_key = self._explorer.keeps_keys(self._history.schemas.get(change["schema_id"]))
            yield entry_of(change, mine, seen, shows_key=shows_key)

    def _of_view(self, rows: pa.RecordBatch) -> np.ndarray:
        """Which rows are wanted by what they have."""
        fits = np.ones(rows.num_rows, dtype=np.bool_)
        if self._wanted.ops:
            fits &= np.asarray(pc.is_in(rows.column("op"), pa.array(sorted(self._wanted.letters))))
        if self._wanted.asked is not None and rows.num_rows:
            fits &= self._wanted.asked.fits(rows)
        if self._wanted.row is not None:
            fits &= self._wanted.of_row(rows) | self._keeps_keys(rows)
        return fits

    def _without_rows(self, changes: pa.RecordBatch, out: set[int]) -> set[int]:
        """Offsets of changes for which nothing comes out, and of which nothing is asked that they would need."""
        if self._wanted.asked is not None:
            return set()
        fits = np.ones(changes.num_rows, dtype=np.bool_)
        if self._wanted.row is not None:
            fits &= self._keeps_keys(changes)
        if self._wanted.letters:
            fits &= np.asarray(pc.is_in(changes.column("op"), pa.array(sorted(self._wanted.letters))))
        return _offsets(changes.filter(pa.array(fits))) - out

    def _keeps_keys(self, changes: pa.RecordBatch) -> np.ndarray:
        """Which changes are of tables of which the chain leaves every key as it is."""
        numbers, which = np.unique(changes.column("schema_id").to_numpy(), return_inverse=True)
        tables = (self._history.schemas.get(int(number)) for number in numbers)
        return np.array([self._explorer.keeps_keys(each) for each in tables], dtype=np.bool_)[which]


def _offsets(changes: pa.RecordBatch) -> set[int]:
    return set(changes.column("seq").to_numpy().tolist())


__all__ = ["ALL", "LARGEST_PAGE", "PAGE", "Bounds", "Explorer", "Filter", "Page", "Scanned"]
