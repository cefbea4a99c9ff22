"""A log walked through in small stretches, the newest first or the oldest first, for whoever looks into it.

Each stretch is cheap to take and says which offsets it covers, so that whoever walks can stop behind any of them and
go on from there another time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import LANES, OPS
from tailrace.changelog import frames, manifest
from tailrace.changelog.manifest import FrameRef, Header, Line
from tailrace.changelog.reader import earliest, part_of, tail_from, tip
from tailrace.changelog.slices import FramePart, Slice, read_slice
from tailrace.changelog.storage import Directory
from tailrace.errors import LogError
from tailrace.schema import TableSchema

STRETCH_ROWS, STRETCH_BYTES = 10_000, 4 << 20
"""A stretch ends behind the frame that reaches one of these."""
SKIPPED_LINES = 2_000
"""A stretch of which nothing is wanted ends after so many lines."""

Wanted = Callable[[TableSchema], bool]
"""Whether changes of a version of a table are wanted. Lines that have none are passed over."""


@dataclass
class Stretch:
    """Offsets `[start, end)`, and the frames in it that may have what is wanted, in the log's order."""

    start: int
    end: int
    parts: list[FramePart] = field(default_factory=list)


class History:
    """Of the log at `path` as it is now: it has the changes `[earliest, end)`. Raises `log.missing` where there is
    none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._storage = Directory(path)
        self._schemas: dict[int, TableSchema] = {}
        self._newest = self._header()
        self.log_id, self.source = self._newest.log_id, self._newest.source
        self.end, _ = tip(path)

    @property
    def earliest(self) -> int:
        """The oldest retained offset. It grows while retention is at work."""
        return earliest(self._storage.root)

    @property
    def schemas(self) -> Mapping[int, TableSchema]:
        """The table versions met so far, by their ids; those of every stretch that was walked are among them."""
        return self._schemas

    def tables(self) -> list[TableSchema]:
        """Every version of a table that the log knows when it is asked; the newest of a table last."""
        for entry in manifest.Tail(self._storage, file=self._files()[-1]).entries():
            self._note(entry)
        return [self._schemas[number] for number in sorted(self._schemas)]

    def walk(self, start: int, end: int, wanted: Wanted, *, newest_first: bool) -> Iterator[Stretch]:
        """Stretches that together cover what the log still has of `[start, end)`."""
        if newest_first:
            for lines in self._backwards(start, end):
                yield from self._stretches(reversed(lines), start, end, wanted, newest_first=True)
        else:
            yield from self._stretches(self._forwards(start, end), start, end, wanted, newest_first=False)

    def read(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """Its changes in `change.CHANGES` form and the log's order. Raises `log.expired` where retention was faster."""
        names = {each.id: (each.database, each.schema, each.table) for each in self._schemas.values()}
        whole = Slice(str(self._storage.root), self.source, names, tuple(stretch.parts), 0, LANES)
        return read_slice(whole)

    def narrowed(self, stretch: Stretch, texts: Iterable[str]) -> Stretch:
        """The stretch without frames in which no key has all of these texts in it, and that have no truncate."""
        kept = [part for part in stretch.parts if self._may_have(part, texts)]
        return Stretch(stretch.start, stretch.end, kept)

    def _may_have(self, part: FramePart, texts: Iterable[str]) -> bool:
        rows, _ = frames.read(self._storage, part)
        ops = rows.column("op").to_numpy()
        return bool((ops == OPS.index("t")).any() or keys_with(rows.column("key"), texts).any())

    def _header(self) -> Header:
        for name in reversed(self._files()):
            found = manifest.header_of(self._storage, name)
            if found is not None:
                return found
        raise LogError(
            "log.missing",
            f"there is no change log in {self._storage.root}",
            hint="start the pipeline: its tap creates the log",
        )

    def _files(self) -> list[str]:
        return self._storage.list(manifest.FOLDER)

    def _backwards(self, start: int, end: int) -> Iterator[list[Line]]:
        """The lines of `[start, end)`, file by file, the newest file first and the lines of each in their order."""
        for name in reversed(self._files()):
            header = manifest.header_of(self._storage, name)
            if header is None or header.base >= end:
                continue
            found = list(manifest.Tail(self._storage, file=name).rest_of_file())
            for entry in found:
                self._note(entry)
            yield [each for each in found if isinstance(each, Line) and each.end > start and each.base < end]
            if header.base <= start:
                return

    def _forwards(self, start: int, end: int) -> Iterator[Line]:
        for entry in tail_from(self._storage, start).entries():
            self._note(entry)
            if isinstance(entry, Line) and entry.base >= end:
                return
            if isinstance(entry, Line) and entry.end > start:
                yield entry

    def _note(self, entry: manifest.Entry) -> None:
        if isinstance(entry, Header) and entry.log_id != self.log_id:
            raise LogError(
                "log.replaced",
                f"the log {self.log_id} was replaced by {entry.log_id} while it was looked into",
                hint="look again",
                where=str(self._storage.root),
            )
        if isinstance(entry, Header | Line):
            self._schemas |= {schema.id: schema for schema in entry.schemas}

    def _stretches(
        self, lines: Iterable[Line], start: int, end: int, wanted: Wanted, *, newest_first: bool
    ) -> Iterator[Stretch]:
        gathered = _Gathering(start, end, newest_first=newest_first)
        for line in lines:
            if not line.rows:
                continue
            if not any(wanted(self._schemas[number]) for number in line.tables):
                yield from gathered.skip(line)
                continue
            for frame in reversed(line.frames) if newest_first else line.frames:
                yield from gathered.take(line, frame)
        yield from gathered.rest()


class _Gathering:
    """Frames side by side, until they are a stretch."""

    def __init__(self, start: int, end: int, *, newest_first: bool) -> None:
        self._bounds, self._newest_first = (start, end), newest_first
        self._now: Stretch | None = None
        self._rows = self._bytes = self._skipped = 0

    def take(self, line: Line, frame: FrameRef) -> Iterator[Stretch]:
        low, high = line.base + frame.row, line.base + frame.row + frame.rows
        yield from self._before_a_gap(low, high)
        if not self._grow(low, high):
            return
        part = part_of(line, frame, *self._bounds)
        assert self._now is not None
        self._now.parts.insert(0 if self._newest_first else len(self._now.parts), part)
        self._rows, self._bytes = self._rows + frame.rows, self._bytes + frame.length
        if self._rows >= STRETCH_ROWS or self._bytes >= STRETCH_BYTES:
            yield from self.rest()

    def skip(self, line: Line) -> Iterator[Stretch]:
        yield from self._before_a_gap(line.base, line.end)
        self._skipped += self._grow(line.base, line.end)
        if self._skipped >= SKIPPED_LINES:
            yield from self.rest()

    def rest(self) -> Iterator[Stretch]:
        found, self._now = self._now, None
        self._rows = self._bytes = self._skipped = 0
        if found is not None:
            yield found

    def _before_a_gap(self, low: int, high: int) -> Iterator[Stretch]:
        """Retention may have taken what is in between: a stretch covers nothing that is gone."""
        if self._now is not None and (low > self._now.end or high < self._now.start):
            yield from self.rest()

    def _grow(self, low: int, high: int) -> bool:
        """Whether the offsets are among those that are asked for; then the stretch reaches that far."""
        low, high = max(low, self._bounds[0]), min(high, self._bounds[1])
        if low >= high:
            return False
        now = self._now or Stretch(low, high)
        now.start, now.end = min(now.start, low), max(now.end, high)
        self._now = now
        return True


def keys_with(keys: pa.Array, texts: Iterable[str]) -> np.ndarray:  # type: ignore[type-arg]
    """Which keys have all of these texts in them."""
    found = np.asarray(pc.is_valid(keys))
    for text in texts:
        found &= np.asarray(pc.match_substring(keys, text).fill_null(False))
    return found
