"""The manifest: one checksummed line per commit, the only thing that makes frames part of the log.

A manifest file starts with a header line that repeats the log's whole state (id, epoch, next offset, resume
position, schemas), so older files can go. Lines of an epoch older than the newest claimed one are a fenced
writer's and do not exist.

A line's newline is its last byte. Bytes at the end of the newest file without one are a line that is being written, or
that a crash cut off: they do not exist yet. A line that ends and does not match its checksum is damage, always and for
everyone: `log.corrupt`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.change import LANES
from tailrace.changelog.storage import Directory
from tailrace.contracts import Admitted, ChunkId
from tailrace.errors import LogError
from tailrace.schema import TableSchema

FOLDER = "manifest"
FORMAT = 1
GENERATION = 1 << 40
"""A recreated log's offsets begin at the next multiple, above every offset of the log before it."""


@dataclass(frozen=True)
class FrameRef:
    """Where a frame lies. `row` is the line's row number of its first row; `lanes` lists (lane, rows) pairs."""

    segment: str
    offset: int
    length: int
    checksum: int
    row: int
    rows: int
    lanes: tuple[tuple[int, int], ...]

    def lane_offsets(self) -> list[int]:
        """Row offsets per lane, `LANES + 1` of them."""
        counts = [0] * (LANES + 1)
        for lane, rows in self.lanes:
            counts[lane + 1] = rows
        for lane in range(LANES):
            counts[lane + 1] += counts[lane]
        return counts


@dataclass(frozen=True)
class Line:
    """One commit: rows `[base, base + rows)` and all that must be atomic with them."""

    epoch: int
    base: int
    rows: int
    at_us: int
    resume: Mapping[str, str]
    frames: tuple[FrameRef, ...] = ()
    tables: tuple[int, ...] = ()
    schemas: tuple[TableSchema, ...] = ()
    xids: tuple[int, int] | None = None
    spilled_tx_rows: int = 0
    """Rows of the transaction that its first frames were written for before its end was known; 0: none."""
    ordered: bool = False
    """A change in it concerns all keys of a table (truncate …): its rows must be delivered in `seq` order."""
    admitted: Admitted | None = None
    """The chunk of a snapshot that its rows are."""

    @property
    def end(self) -> int:
        return self.base + self.rows

    @property
    def bytes(self) -> int:
        return sum(frame.length for frame in self.frames)


@dataclass(frozen=True)
class Header:
    """The log's state when this manifest file was begun."""

    log_id: str
    source: str
    epoch: int
    base: int
    resume: Mapping[str, str] | None = None
    schemas: tuple[TableSchema, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Claim:
    """A new writer took over: lines of earlier epochs after this one are void."""

    epoch: int


Entry = Header | Line | Claim
_KINDS: dict[str, type[Header] | type[Line] | type[Claim]] = {"header": Header, "line": Line, "claim": Claim}


def encode(entry: Entry) -> bytes:
    """`crc32 json\\n`; the newline and the checksum make a torn line recognisable."""
    kind = type(entry).__name__.lower()
    body = json.dumps({kind: _plain(entry)}, separators=(",", ":"), ensure_ascii=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Entry | None:
    """The entry, or None for bytes that are not a whole, intact line."""
    body = line[9:]
    if len(line) < _SMALLEST or line[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        [(kind, fields)] = json.loads(body).items()
        return _build(kind, fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@dataclass
class Tail:
    """A reader's place in the manifest; `entries` yields what was committed since the last call."""

    storage: Directory
    file: str | None = None
    offset: int = 0
    epoch: int = 0
    line_start: int = 0
    """Where the entry yielded last begins in `file`; it ends at `offset`."""

    def entries(self) -> Iterator[Entry]:
        """New entries in order, crossing to newer manifest files; stops at an unfinished line. Raises `log.corrupt` at
        a damaged one, and there again whenever it is asked."""
        while True:
            yield from self.rest_of_file()
            following = self._next_file()
            if following is None:
                return
            # The file is finished once a newer one exists: what a slow reader missed is read before moving on.
            yield from self.rest_of_file()
            if self.file is not None and self._new_bytes():
                raise damaged(self.storage, self.file, self.offset)
            self.file, self.offset = following, 0

    def rest_of_file(self) -> Iterator[Entry]:
        """The same, of the file where this place is."""
        *lines, _unfinished = self._new_bytes().split(b"\n")
        for line in lines:
            entry = decode(line)
            if entry is None:
                raise damaged(self.storage, self.file or "", self.offset)
            self.line_start, self.offset = self.offset, self.offset + len(line) + 1
            if entry.epoch < self.epoch:
                continue
            self.epoch = entry.epoch
            yield entry

    def _new_bytes(self) -> bytes:
        try:
            if self.file is None or self.storage.size(self.file) <= self.offset:
                return b""
            return self.storage.tail(self.file, self.offset)
        except FileNotFoundError:  # retention removed it; the next file's header says where the log begins now
            return b""

    def _next_file(self) -> str | None:
        names = self.storage.list(FOLDER)
        later = [name for name in names if self.file is None or name > self.file]
        return later[0] if later else None


def file_name(number: int) -> str:
    return f"{FOLDER}/{number:012d}.jsonl"


def header_of(storage: Directory, name: str) -> Header | None:
    """The state a manifest file begins with; None for one whose first line never became whole, or that is gone. Raises
    `log.corrupt` where the line is damaged."""
    line = storage.first_line(name)
    if not line.endswith(b"\n"):
        return None
    entry = decode(line[:-1])
    if not isinstance(entry, Header):
        raise damaged(storage, name, 0)
    return entry


def line_at(storage: Directory, name: str, start: int, size: int) -> Line:
    """The line at these bytes of a file, where an earlier reading found one."""
    entry = decode(bytes(memoryview(storage.read(name, start, size)))[:-1])
    if not isinstance(entry, Line):
        raise damaged(storage, name, start)
    return entry


def damaged(storage: Directory, name: str, start: int) -> LogError:
    """The line that begins at byte `start` of a manifest file is not what was written."""
    data, file = storage.tail(name, 0), storage.root / name
    number, is_last = data.count(b"\n", 0, start) + 1, b"\n" not in data[start:].rstrip(b"\n")
    hint = "restore the file from a backup, or remove the log and start again with a `snapshot` in the source"
    if is_last:
        hint += f"; if the machine lost power while the line was written, cut it off: truncate -s {start} '{file}'"
    text = f"line {number} of the change log's {name} is damaged"
    return LogError("log.corrupt", text, hint=hint, where=f"{file}:{number}")


def _plain(entry: Entry) -> dict[str, Any]:
    fields = asdict(entry)
    if not isinstance(entry, Claim):
        fields["schemas"] = [schema.as_dict() for schema in entry.schemas]
    if isinstance(entry, Line):
        fields["frames"] = [
            [f.segment, f.offset, f.length, f.checksum, f.row, f.rows, [n for pair in f.lanes for n in pair]]
            for f in entry.frames
        ]
        fields = {name: value for name, value in fields.items() if value or name in _ALWAYS}
    return fields


_SMALLEST = 10
"""A checksum, a space and something."""
_ALWAYS = {"epoch", "base", "rows", "at_us", "resume"}


def _build(kind: str, fields: dict[str, Any]) -> Entry:
    if kind == "header" and fields["format"] != FORMAT:
        raise LogError(
            "log.format",
            f"the change log has format {fields['format']}, this Tailrace reads {FORMAT}",
            hint="run the Tailrace version that wrote it",
        )
    if "schemas" in fields:
        fields["schemas"] = tuple(TableSchema.from_dict(schema) for schema in fields["schemas"])
    if "frames" in fields:
        fields["frames"] = tuple(_frame(*values) for values in fields["frames"])
    if "admitted" in fields:
        admitted = fields["admitted"]
        chunk = ChunkId(**admitted["chunk"])
        owed, paid = tuple(admitted["owed"]), tuple(admitted["paid"])
        others = admitted.get("replaces", ""), admitted.get("disjoint", False)
        fields["admitted"] = Admitted(chunk, admitted["rows"], owed, paid, *others)
    for name in ("tables", "xids"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return _KINDS[kind](**fields)


def _frame(segment: str, offset: int, length: int, check: int, row: int, rows: int, lanes: list[int]) -> FrameRef:
    pairs = tuple(zip(lanes[::2], lanes[1::2], strict=True))
    return FrameRef(segment, offset, length, check, row, rows, pairs)
