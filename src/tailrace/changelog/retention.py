"""Who still needs the log, and what may go. Never what a required subscriber has not read (Law 5)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tailrace.changelog import manifest
from tailrace.changelog.manifest import Line
from tailrace.changelog.reader import head
from tailrace.changelog.storage import Directory

FOLDER = "subscribers"


@dataclass(frozen=True)
class Subscriber:
    """A sink's durable progress: everything below `offset` is delivered and will not be asked for again."""

    name: str
    offset: int
    required: bool


class Subscribers:
    """The log's subscribers, one small file each, written by the driver that runs the sink."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._storage = Directory(path)

    def report(self, name: str, offset: int, *, required: bool) -> None:
        """Record progress. A stale value after a crash only keeps more of the log than needed."""
        data = json.dumps({"offset": offset, "required": required}).encode()
        self._storage.replace(_file(name), data)

    def forget(self, name: str) -> None:
        """Remove a subscriber that will not come back, so that the log need not wait for it."""
        self._storage.delete(_file(name))

    def all(self) -> list[Subscriber]:
        found = []
        for file in self._storage.list(FOLDER):
            name = unquote(file.rsplit("/", 1)[1].removesuffix(".json"))
            fields = json.loads(self._storage.tail(file, 0))
            found.append(Subscriber(name, fields["offset"], fields["required"]))
        return found


@dataclass(frozen=True)
class Bounds:
    """How much of what everybody has read is kept."""

    max_bytes: int = 10 << 30
    max_age_s: float = 7 * 86_400.0


@dataclass(frozen=True)
class Verdict:
    """The outcome of a pass: bytes held, and the required subscribers that hold the log above its bound."""

    bytes: int
    dropped: int
    blocked_by: tuple[str, ...]


class Retention:
    """Of one log. Held by the tap only: it is the log's only writer."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._storage, self._subscribers = Directory(path), Subscribers(path)
        self._known: dict[str, _Chapter] = {}

    def enforce(self, bounds: Bounds, clock: Callable[[], float] = time.time) -> Verdict:
        """Drop the oldest manifest files and their segments while they are beyond the bounds and nobody required
        needs them."""
        storage = self._storage
        required = [sub for sub in self._subscribers.all() if sub.required]
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
            return Verdict(total, dropped, ())
        oldest = _oldest_end(storage)
        return Verdict(total, dropped, tuple(sub.name for sub in required if sub.offset < oldest))

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


def _oldest_end(storage: Directory) -> int:
    names = storage.list(manifest.FOLDER)
    header = manifest.header_of(storage, names[1]) if len(names) > 1 else None
    return header.base if header else head(storage.root)


def _file(name: str) -> str:
    return f"{FOLDER}/{quote(name, safe='')}.json"
