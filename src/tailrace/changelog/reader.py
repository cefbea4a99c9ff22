"""Reading the log: plan ranges on the driver, read slices in tasks. The same range reads the same for ever (Law 2)."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tailrace.change import LANES
from tailrace.changelog import frames, manifest
from tailrace.changelog.contents import contents, keys
from tailrace.changelog.first_read import FirstRead
from tailrace.changelog.manifest import FrameRef, Header, Line
from tailrace.changelog.slices import FramePart, Slice
from tailrace.changelog.storage import Directory
from tailrace.contracts import Content, Portion
from tailrace.errors import LogError
from tailrace.schema import TableSchema

WINDOW_LINES = 20_000
"""Lines a reader holds at most; it forgets what is behind it and reads on, so memory is bounded for any backlog."""

ONE_TASK_ROWS = 5_000
"""A range of fewer rows is one task: starting a second costs more than it saves."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one batch. A transaction larger than the bounds is one batch, unless `respect_source_tx` is off."""

    max_events: int = 200_000
    max_bytes: int = 64 << 20
    respect_source_tx: bool = True
    snapshot_batches: int = 1
    """How many times as much a batch may have of a snapshot's rows."""

    def share(self, line: Line) -> tuple[float, float]:
        """What a line takes of the room for changes, and of that for bytes."""
        times = 1 if line.admitted is None else self.snapshot_batches
        return line.rows / times, line.bytes / times


@dataclass(frozen=True)
class Pending:
    """What waits after an offset; `oldest_us` is when the oldest of it was appended, None when nothing waits."""

    rows: float
    bytes: float
    oldest_us: int | None


@dataclass(frozen=True)
class Trimmed:
    """What retention dropped of a log: `rows` changes of `tables` and of others that are gone. What was appended at
    `since_us` or later is still there."""

    rows: int
    tables: tuple[str, ...]
    since_us: int


class LogReader:
    """A view of a log's committed lines from `start` (default: the oldest retained) on."""

    def __init__(self, path: str | os.PathLike[str], start: int | None = None) -> None:
        self.storage = Directory(path)
        self._lines: list[Line] = []
        self._schemas: dict[int, TableSchema] = {}
        self._open(start)
        self.refresh()

    @property
    def earliest(self) -> int:
        """The oldest retained offset."""
        return self._earliest()

    @property
    def end(self) -> int:
        """The offset after the newest change this reader has seen."""
        return self._end

    @property
    def lines(self) -> list[Line]:
        return list(self._lines)

    @property
    def schemas(self) -> dict[int, TableSchema]:
        return dict(self._schemas)

    def refresh(self) -> None:
        """See what was committed since. Cheap when nothing was: one `stat`."""
        if len(self._lines) >= WINDOW_LINES:
            return
        for entry in self._tail.entries():
            if isinstance(entry, Header):
                self._enter(entry)
            if isinstance(entry, Line):
                self._add(entry)
            if len(self._lines) >= WINDOW_LINES:
                return

    def forget(self, before: int) -> None:
        """Let go of lines that end at or below `before`."""
        keep = bisect.bisect_right(self._lines, before, key=lambda line: line.end)
        del self._lines[:keep]

    def pending(self, start: int, limits: Limits) -> Pending:
        """How much waits at and after `start`, in shares of the room that `limits` give it."""
        lines = self._after(start)
        if not lines:
            return Pending(0, 0, None)
        shares = [limits.share(line) for line in lines]
        behind = shares[0][0] * max(0, start - lines[0].base) / max(1, lines[0].rows)
        return Pending(sum(rows for rows, _ in shares) - behind, sum(size for _, size in shares), lines[0].at_us)

    def cut(self, start: int, limits: Limits) -> int:
        """Where a batch that begins at `start` ends: a transaction's end, within `limits` where one fits (Law 8)."""
        end, events, room = start, float(limits.max_events), float(limits.max_bytes)
        for line in self._after(start):
            rows, size = limits.share(line)
            if end <= line.base and rows <= events and size <= room:
                end, events, room = line.end, events - rows, room - size
                continue
            return end if end > start else self._cut_inside(line, start, limits)
        return end

    def slices(
        self,
        start: int,
        end: int,
        tasks: int,
        version: int | None = None,
        *,
        last: bool = False,
        portion: Portion | None = None,
    ) -> list[Slice]:
        """The range `[start, end)` as one slice per task; whole lanes each, so order per key needs no shuffle. With
        `version` only the changes of that version of a table, with `last` only the last of each key, and with `portion`
        only that portion of them."""
        if last and version is None:
            raise ValueError("the last change of each key needs a version: tables may have keys that look alike")
        self._require(start, end)
        lines = [line for line in self._after(start) if line.base < end]
        if version is not None:
            lines = [line for line in lines if version in line.tables]
        rows = sum(line.rows for line in lines)
        alone = tasks <= 1 or rows < ONE_TASK_ROWS or any(line.ordered for line in lines)
        groups = [(0, LANES)] if alone else _lane_groups(tasks)
        used = {table for line in lines for table in line.tables}
        names = {
            schema.id: (schema.database, schema.schema, schema.table)
            for schema in self._schemas.values()
            if schema.id in used
        }
        first = None if portion is None or version is None else self._first_read(portion, version, end)
        if first is not None and portion is not None and portion.new:
            lines = [line for line in lines if first.has(line.base)]
        parts = [
            replace(part_of(line, frame, start, end), is_first_read=first is not None and first.has(line.base))
            for line in lines
            for frame in line.frames
        ]
        whole = Slice(str(self.storage.root), self.source, names, tuple(parts), 0, LANES, version, last)
        if first is not None and portion is not None:
            whole = replace(whole, new=portion.new, touched=first.touched())
        return [replace(whole, lane_low=low, lane_high=high) for low, high in groups]

    def _first_read(self, portion: Portion, version: int, end: int) -> FirstRead:
        found = FirstRead(self.storage.root, portion.began, self._schemas[version])
        if not found.advance(end):
            raise LogError(
                "log.expired",
                f"which rows are new since offset {portion.began} can no longer be told from the log",
                hint="it is retried as if none were",
                where=str(self.storage.root),
            )
        return found

    def contents(self, start: int, end: int) -> list[Content]:
        """What `[start, end)` has of each table, by the place of its first change. Texts of rows are not looked at."""
        [everything] = self.slices(start, end, 1)
        return contents(everything)

    def keys(self, start: int, end: int, version: int, portion: Portion | None = None) -> Iterator[pa.Array[Any]]:
        """The keys of a table version's changes in `[start, end)`."""
        [everything] = self.slices(start, end, 1, version, portion=portion)
        return keys(everything)

    def _open(self, start: int | None) -> None:
        headers = self._headers()
        if not headers:
            raise LogError(
                "log.missing",
                f"there is no change log in {self.storage.root}",
                hint="start the pipeline: its tap creates the log",
            )
        below = [pair for pair in headers if start is None or pair[1].base <= start]
        name, header = headers[0] if start is None or not below else below[-1]
        self.log_id, self.source, self._end = header.log_id, header.source, header.base
        self._start = start or 0  # lines before it would only fill the window
        self._tail = manifest.Tail(self.storage, file=name)
        self._first_file: tuple[str, int] | None = None

    def _headers(self) -> list[tuple[str, Header]]:
        found = ((name, manifest.header_of(self.storage, name)) for name in self.storage.list(manifest.FOLDER))
        return [(name, header) for name, header in found if header is not None]

    def _earliest(self) -> int:
        names = self.storage.list(manifest.FOLDER)
        if self._first_file is None or self._first_file[0] != names[0]:
            name, header = self._headers()[0]
            self._first_file = (name, header.base)
        return self._first_file[1]

    def _enter(self, header: Header) -> None:
        """Cross to another manifest file. Where retention took files between, what is held before the gap goes
        too, so that a range across it is refused as expired and never comes out shorter (Law 2)."""
        if header.log_id != self.log_id:
            raise _replaced(self.storage, f"the log {self.log_id} was replaced by {header.log_id}")
        if header.base != self._end:
            self._lines.clear()
        self._schemas |= {schema.id: schema for schema in header.schemas}
        self._end = header.base

    def _add(self, line: Line) -> None:
        self._schemas |= {schema.id: schema for schema in line.schemas}
        self._end = line.end
        if line.rows and line.end > self._start:
            self._lines.append(line)

    def _after(self, start: int) -> list[Line]:
        return self._lines[bisect.bisect_right(self._lines, start, key=lambda line: line.end) :]

    def _require(self, start: int, end: int) -> None:
        """Hold every line of `[start, end)`, or raise."""
        if end > self._end:
            self.forget(start)
            self.refresh()
        if start < self._held or end > self._end:
            self._go_back(start)
        if start < self._held:
            raise LogError(
                "log.expired",
                f"offsets {start} to {self.earliest} are no longer in the log",
                hint="give the sink another id, then read the tables anew: tailrace snapshot PIPELINE.yaml",
                where=str(self.storage.root),
            )
        if end > self._end:
            raise _replaced(self.storage, f"the log ends at {self._end}, before offset {end}")

    @property
    def _held(self) -> int:
        """The first offset in memory."""
        return self._lines[0].base if self._lines else self._end

    def _go_back(self, start: int) -> None:
        known = self.log_id
        self._lines, self._schemas = [], {}
        self._open(start)
        if self.log_id != known:
            raise _replaced(self.storage, f"the log {known} was replaced by {self.log_id}")
        self.refresh()

    def _cut_inside(self, line: Line, start: int, limits: Limits) -> int:
        ends = list(self._transaction_ends(line))
        first = next((end for end, _ in ends if end > start), line.end)
        begun = next((size for end, size in reversed(ends) if end <= start), 0)
        fitting = [
            end
            for end, size in ends
            if end > start and end - start <= limits.max_events and size - begun <= limits.max_bytes
        ]
        if fitting:
            return fitting[-1]
        if limits.respect_source_tx:
            return first
        by_bytes = max(1, limits.max_bytes * line.rows // max(1, line.bytes))
        return min(first, start + min(limits.max_events, by_bytes))

    def _transaction_ends(self, line: Line) -> Iterator[tuple[int, int]]:
        """(offset, bytes so far) after each transaction of a line."""
        behind = 0
        for frame in line.frames:
            buffer = self.storage.read(frame.segment, frame.offset, frame.length)
            txs = frames.decode_txs(buffer)
            ends, sizes = (txs.column(name).to_numpy() for name in ("end_row", "end_bytes"))
            for row, size in zip(ends.tolist(), sizes.tolist(), strict=True):
                if row >= 0:
                    yield line.base + frame.row + row, behind + size
            behind += frame.length


def head(path: str | os.PathLike[str]) -> int:
    """The offset after the log's newest change."""
    return tip(path)[0]


def tip(path: str | os.PathLike[str]) -> tuple[int, Mapping[str, str] | None]:
    """(the offset after the log's newest change, the source's position that the log has passed there)."""
    storage = Directory(path)
    for name in reversed(storage.list(manifest.FOLDER)):
        found = [entry for entry in manifest.Tail(storage, file=name).entries() if isinstance(entry, Line | Header)]
        if found:
            last = found[-1]
            return last.end if isinstance(last, Line) else last.base, last.resume
    return 0, None


def earliest(path: str | os.PathLike[str]) -> int:
    """The oldest retained offset; 0 where there is no log."""
    storage = Directory(path)
    headers = (manifest.header_of(storage, name) for name in storage.list(manifest.FOLDER))
    return next((header.base for header in headers if header is not None), 0)


def trimmed(path: str | os.PathLike[str], now_us: int) -> Trimmed | None:
    """What is no longer in the log; None where all of it is. `tables` are those it knew when its oldest change came."""
    storage = Directory(path)
    headers = (manifest.header_of(storage, name) for name in storage.list(manifest.FOLDER))
    first = next((header for header in headers if header is not None), None)
    rows = 0 if first is None else first.base % manifest.GENERATION
    if first is None or not rows:
        return None
    newest = {schema.name: schema for schema in first.schemas if schema.schema}
    oldest = line_of(storage, first.base)
    tables = tuple(sorted(name for name, schema in newest.items() if schema.columns))
    return Trimmed(rows, tables, now_us if oldest is None else oldest.at_us)


def line_of(storage: Directory, offset: int) -> Line | None:
    """The line that has the change at `offset`; None where the log ends before it."""
    lines = (entry for entry in tail_from(storage, offset).entries() if isinstance(entry, Line))
    return next((line for line in lines if line.end > offset), None)


def tail_from(storage: Directory, offset: int) -> manifest.Tail:
    """The manifest from the beginning of the file that has `offset`."""
    headers = [(name, manifest.header_of(storage, name)) for name in storage.list(manifest.FOLDER)]
    before = [name for name, header in headers if header is not None and header.base <= offset]
    return manifest.Tail(storage, file=before[-1] if before else None)


def admissions(storage: Directory, since: int) -> Iterator[Line]:
    """The lines at or after offset `since` that took a chunk of a snapshot in."""
    for entry in tail_from(storage, since).entries():
        if isinstance(entry, Line) and entry.admitted is not None and entry.end >= since:
            yield entry


def _replaced(storage: Directory, what: str) -> LogError:
    return LogError(
        "log.replaced",
        what,
        hint="the log was recreated or restored: delete the sink's checkpoint to start over on this log",
        where=str(storage.root),
    )


def part_of(line: Line, frame: FrameRef, start: int, end: int) -> FramePart:
    """What `[start, end)` has of a frame."""
    return FramePart(
        segment=frame.segment,
        offset=frame.offset,
        length=frame.length,
        checksum=frame.checksum,
        base=line.base + frame.row,
        lanes=tuple(frame.lane_offsets()),
        low=start if start > line.base else None,
        high=end if end < line.end else None,
        captured_us=line.at_us,
        spilled_tx_rows=line.spilled_tx_rows,
    )


def _lane_groups(tasks: int) -> list[tuple[int, int]]:
    tasks = min(tasks, LANES)
    return [(LANES * task // tasks, LANES * (task + 1) // tasks) for task in range(tasks)]
