"""Looking into a change log, also while its tap is writing. Nothing here changes it but `forget`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tailrace.changelog import LogReader, Subscribers, manifest, read_slice
from tailrace.changelog.manifest import FrameRef, Header, Line
from tailrace.changelog.storage import Directory
from tailrace.errors import LogError
from tailrace.schema import TableSchema
from tailrace.supervisor.layout import Layout


@dataclass(frozen=True)
class SegmentSummary:
    """A file of frames: the offsets and rows in it, and when they were appended."""

    name: str
    start: int
    end: int
    rows: int
    bytes: int
    oldest_us: int
    newest_us: int


@dataclass(frozen=True)
class TableSummary:
    """A table the log has changes of, as its newest version describes it."""

    name: str
    columns: int
    key: tuple[str, ...]
    versions: int


@dataclass(frozen=True)
class SubscriberSummary:
    """A sink that reads the log. What a required one has not read is never dropped; where there is a `quorum`, what
    fewer than so many of its pipeline have read. A released one is no longer in its pipeline."""

    name: str
    offset: int
    lag_rows: int
    required: bool
    released: bool
    quorum: int = 0


@dataclass(frozen=True)
class LogSummary:
    """What a log holds: offsets `[earliest, end)`, and `resume`, where its tap continues at the source."""

    path: str
    log_id: str
    source: str
    earliest: int
    end: int
    resume: Mapping[str, str] | None
    segments: tuple[SegmentSummary, ...]
    tables: tuple[TableSummary, ...]
    subscribers: tuple[SubscriberSummary, ...]

    @property
    def rows(self) -> int:
        return self.end - self.earliest

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


def find_log(name: str, data_dir: Path) -> Path:
    """The log's directory, for the directory itself or for a source's id under `data_dir`."""
    given, by_id = Path(name), Layout(data_dir).log(name)
    for path in (given, by_id):
        if (path / manifest.FOLDER).is_dir():
            return path
    logs = by_id.parent.iterdir() if by_id.parent.is_dir() else ()
    known = sorted(log.name for log in logs if (log / manifest.FOLDER).is_dir())
    raise LogError(
        "log.missing",
        f"there is no change log {name!r}",
        hint=f"{by_id.parent} has {', '.join(known) or 'none'}; name one, give a path, or use --data-dir",
    )


def summarize(path: Path) -> LogSummary:
    """One pass over the manifest: no frame is read, so it is quick for a large log."""
    reader = LogReader(path)  # raises `log.missing`
    storage = Directory(path)
    schemas: dict[int, TableSchema] = {}
    segments: dict[str, SegmentSummary] = {}
    resume: Mapping[str, str] | None = None
    earliest = end = reader.earliest
    for entry in manifest.Tail(storage, file=storage.list(manifest.FOLDER)[0]).entries():
        if isinstance(entry, Header | Line):
            resume, schemas = entry.resume, schemas | {schema.id: schema for schema in entry.schemas}
        if isinstance(entry, Line):
            end = entry.end
            for frame in entry.frames:
                segments[frame.segment] = _grown(segments.get(frame.segment), entry, frame)
    return LogSummary(
        str(path),
        reader.log_id,
        reader.source,
        earliest,
        end,
        resume,
        tuple(segments.values()),
        _tables(schemas.values()),
        tuple(
            SubscriberSummary(one.name, one.offset, max(0, end - one.offset), one.required, one.released, one.quorum)
            for one in Subscribers(path).all()
        ),
    )


def read(path: Path, start: int | None, limit: int) -> Iterator[pa.RecordBatch]:
    """Up to `limit` changes from offset `start` (default: the oldest), in order, as `change.CHANGES`."""
    reader = LogReader(path, start)
    at = reader.earliest if start is None else start
    while limit > 0 and _reaches(reader, at):
        end = min(at + limit, reader.end)
        for piece in reader.slices(at, end, 1):
            yield from read_slice(piece)
        limit, at = limit - (end - at), end


def forget(path: Path, name: str) -> None:
    """Remove a subscriber that will not come back, so that the log need not wait for it."""
    subscribers = Subscribers(path)
    known = [one.name for one in subscribers.all()]
    if name not in known:
        raise LogError(
            "log.no_subscriber",
            f"the log has no subscriber {name!r}",
            hint=f"its subscribers are: {', '.join(known)}" if known else "it has no subscriber at all",
            where=str(path),
        )
    subscribers.forget(name)


def _reaches(reader: LogReader, at: int) -> bool:
    """Whether there is a change at `at`; moves the reader's window there."""
    seen = -1
    while reader.end <= at and reader.end != seen:
        seen = reader.end
        reader.forget(at)
        reader.refresh()
    return reader.end > at


def _grown(segment: SegmentSummary | None, line: Line, frame: FrameRef) -> SegmentSummary:
    first, after = line.base + frame.row, line.base + frame.row + frame.rows
    size = frame.offset + frame.length
    if segment is None:
        return SegmentSummary(frame.segment, first, after, frame.rows, size, line.at_us, line.at_us)
    rows = segment.rows + frame.rows
    return SegmentSummary(frame.segment, segment.start, after, rows, size, segment.oldest_us, line.at_us)


def _tables(schemas: Iterable[TableSchema]) -> tuple[TableSummary, ...]:
    versions: dict[str, list[TableSchema]] = {}
    for schema in schemas:
        versions.setdefault(schema.name, []).append(schema)
    return tuple(
        TableSummary(name, len(found[-1].columns), found[-1].key, len(found))
        for name, found in sorted(versions.items())
    )
