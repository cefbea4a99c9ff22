"""Who still needs the log, and what may go. Never what a required subscriber has not read (Law 5).

A subscriber is called `PIPELINE/SINK`, or `PIPELINE/SINK/TABLE` for a table that waits apart from the others of its
sink: the name says whose it is. One whose sink its pipeline no longer has is *released*: it keeps its place, the log
keeps what it has not read only within the bounds, and the sink goes on from there if it comes back. One that has not
read what was dropped is *expired*.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tailrace.changelog import manifest
from tailrace.changelog.manifest import Line
from tailrace.changelog.reader import earliest, head, line_of
from tailrace.changelog.storage import Directory

FOLDER = "subscribers"


@dataclass(frozen=True)
class Owner:
    """Whose progress a subscriber is. `table` is empty for the sink as a whole."""

    pipeline: str
    sink: str
    table: str = ""

    @property
    def name(self) -> str:
        """What its subscriber is called."""
        return "/".join(part for part in (self.pipeline, self.sink, self.table) if part)


@dataclass(frozen=True)
class Subscriber:
    """A sink's durable progress: everything below `offset` is delivered and will not be asked for again."""

    name: str
    offset: int
    required: bool
    released: bool = False
    quorum: int = 0
    """Of the required subscribers of its pipeline so many must have read what is dropped; 0: this one must."""

    @property
    def owner(self) -> Owner | None:
        """None for a subscriber that is no pipeline's. Names of pipelines and sinks have no slash; a table's may."""
        parts = self.name.split("/", 2)
        return Owner(*parts) if len(parts) > 1 else None


LONGEST_NAME = 200


class Subscribers:
    """The log's subscribers, one small file each, written by the driver that runs the sink."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._storage = Directory(path)

    def report(self, name: str, offset: int, *, required: bool, quorum: int = 0) -> None:
        """Record progress. A stale value after a crash only keeps more of the log than needed."""
        self._write(name, {"offset": offset, "required": required} | ({"quorum": quorum} if quorum else {}))

    def release(self, name: str, offset: int) -> None:
        """Hold the log no longer than an optional subscriber does; `report` undoes it."""
        self._write(name, {"offset": offset, "required": False, "released": True})

    def forget(self, name: str) -> None:
        """Remove a subscriber that will not come back, so that the log need not wait for it."""
        self._storage.delete(_file(name))

    def all(self) -> list[Subscriber]:
        found = []
        for file in self._storage.list(FOLDER):
            try:
                fields = json.loads(self._storage.tail(file, 0))
            except FileNotFoundError:  # somebody forgot it just now
                continue
            name = fields.get("name") or unquote(file.rsplit("/", 1)[1].removesuffix(".json"))
            more = fields.get("released", False), fields.get("quorum", 0)
            found.append(Subscriber(name, fields["offset"], fields["required"], *more))
        return found

    def _write(self, name: str, fields: dict[str, int | bool]) -> None:
        self._storage.replace(_file(name), json.dumps({"name": name, **fields}).encode())


def waited_for(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """Those that the log waits for. Of a pipeline with a quorum that is the one whose progress completes it: as many
    others are further as the quorum needs besides."""
    required = [each for each in subscribers if each.required]
    found = [each for each in required if not each.quorum]
    voters: dict[str, list[Subscriber]] = {}
    for each in required:
        if each.quorum and each.owner is not None:
            voters.setdefault(each.owner.pipeline, []).append(each)
    for group in voters.values():
        quorum = max(each.quorum for each in group)
        found.append(sorted(group, key=lambda each: -each.offset)[min(quorum, len(group)) - 1])
    return found


@dataclass(frozen=True)
class Bounds:
    """How much of what everybody has read is kept."""

    max_bytes: int = 10 << 30
    max_age_s: float = 7 * 86_400.0


@dataclass(frozen=True)
class Holder:
    """A required subscriber that holds the log above its bound: so many rows and bytes in it are unread."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class RetentionOutcome:
    """The outcome of a pass: bytes held, segments dropped, and who holds the log above its bound."""

    bytes: int
    dropped: int
    holders: tuple[Holder, ...]

    @property
    def blocked_by(self) -> tuple[str, ...]:
        return tuple(holder.name for holder in self.holders)


class Retention:
    """Of one log. Held by the tap only: it is the log's only writer."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._storage, self._subscribers = Directory(path), Subscribers(path)
        self._known: dict[str, _Chapter] = {}

    def enforce(self, bounds: Bounds, clock: Callable[[], float] = time.time) -> RetentionOutcome:
        """Drop the oldest manifest files and their segments while they are beyond the bounds and nobody required
        needs them."""
        storage = self._storage
        required = waited_for(self._subscribers.all())
        sizes = {name: storage.size(name) for name in storage.list("segments")}
        total, dropped = sum(sizes.values()), 0
        for name in storage.list(manifest.FOLDER)[:-1]:  # the newest is being written
            chapter = self._chapter(name)
            expired = chapter.newest_us < (clock() - bounds.max_age_s) * 1e6
            if not expired and total <= bounds.max_bytes:
                break
            if any(sub.offset < chapter.end for sub in required):
                break
            storage.delete(name)
            self._known.pop(name, None)
            for segment in [s for s in sizes if s < chapter.next_segment]:
                storage.delete(segment)
                total, dropped = total - sizes.pop(segment), dropped + 1
        if total <= bounds.max_bytes:
            return RetentionOutcome(total, dropped, ())
        oldest = _oldest_end(storage)
        return RetentionOutcome(
            total, dropped, tuple(_holder(storage, sub, sizes) for sub in required if sub.offset < oldest)
        )

    def _chapter(self, name: str) -> _Chapter:
        """Read once: a manifest file that others follow does not change."""
        known = self._known.get(name)
        if known is None:
            known = _chapter(self._storage, name)
            if known.next_segment:
                self._known[name] = known
        return known


@dataclass(frozen=True)
class _Chapter:
    end: int
    newest_us: int
    next_segment: str
    """The first segment that the next manifest file still refers to."""


def _chapter(storage: Directory, name: str) -> _Chapter:
    tail = manifest.Tail(storage, file=name)
    end, newest, next_segment = 0, 0, ""
    for entry in tail.entries():
        if not isinstance(entry, Line):
            continue
        if tail.file == name:
            end, newest = entry.end, entry.at_us
        elif entry.frames:
            next_segment = entry.frames[0].segment
            break
    return _Chapter(end, newest, next_segment)


def _holder(storage: Directory, subscriber: Subscriber, sizes: dict[str, int]) -> Holder:
    """Bytes are counted from the first frame of the line that has the subscriber's next change."""
    start = max(subscriber.offset, earliest(storage.root))
    line = line_of(storage, start)
    if line is None or not line.frames:
        return Holder(subscriber.name, 0, 0)
    first = line.frames[0]
    unread = sum(size for name, size in sizes.items() if name >= first.segment) - first.offset
    return Holder(subscriber.name, head(storage.root) - start, unread)


def _oldest_end(storage: Directory) -> int:
    names = storage.list(manifest.FOLDER)
    header = manifest.header_of(storage, names[1]) if len(names) > 1 else None
    return header.base if header else head(storage.root)


def _file(name: str) -> str:
    """A file system takes 255 bytes of a name: a longer one ends in a hash of it."""
    encoded = quote(name, safe="")
    if len(encoded) > LONGEST_NAME:
        encoded = f"{encoded[:LONGEST_NAME]}~{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
    return f"{FOLDER}/{encoded}.json"
