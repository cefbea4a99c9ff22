"""The log's only writer: frames into the open segment, then one manifest line, then it is durable (Law 1)."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping

import numpy as np

from tailrace.change import OPS
from tailrace.changelog import frames, manifest
from tailrace.changelog.manifest import Claim, FrameRef, Header, Line
from tailrace.changelog.storage import Directory
from tailrace.contracts import STILL_OPEN, Capture, Frame, LogState
from tailrace.errors import LogError
from tailrace.schema import SchemaBook, TableSchema

SEGMENTS = "segments"
SEGMENT_BYTES = 64 << 20
MANIFEST_BYTES = 4 << 20
SEGMENTS_PER_MANIFEST = 4
"""Retention drops whole manifest files with their segments, so one must not cover much of the log."""
_CROSS_KEY_OPS = OPS.index("t")
"""`t`, `m` and `s` concern more than one key; they are the last of `OPS`."""


class LogWriter:
    """Appends captures. Opening it cuts torn tails and fences every earlier writer."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        source: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        manifest_bytes: int = MANIFEST_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.storage = Directory(path)
        self.source = source
        self._segment_bytes = segment_bytes
        self._manifest_bytes = manifest_bytes
        self._clock = clock
        self._lock: int | None = self._take_lock()
        self.end = 0
        self.versions = 0
        """How many table versions this writer has made durable, with those it found."""
        self._line_tables: set[int] = set()
        self._line_schemas: list[TableSchema] = []
        self._line_ordered = False
        self._staged: list[FrameRef] = []
        self._staged_rows = 0
        self._schemas: dict[int, TableSchema] = {}
        self._resume: Mapping[str, str] | None = None
        try:
            self._recover()
        except BaseException:
            self.close()
            raise
        self.book = SchemaBook(tuple(self._schemas.values()))

    def state(self) -> LogState:
        """Where capture continues: the last durable position and every schema version known."""
        return LogState(self._resume or None, self.book, self.log_id)

    @property
    def segment(self) -> str:
        """The file that is written to. When another one is, the log has grown by a segment."""
        return self._segment

    @property
    def in_transaction(self) -> bool:
        """Whether parts of an open transaction are written: only more of it may be appended now."""
        return bool(self._staged)

    def append(self, capture: Capture) -> int:
        """Make `capture` durable and return the log's next offset.

        A part of an open transaction is written but stays invisible; the append that carries its end registers
        all parts in one line. Nothing else may be appended in between. After an error nothing is known of
        what was written: close the writer and open another, which cuts what is not whole.
        """
        if capture.frame is not None:
            self._write_frame(capture.frame)
        self._remember(capture.schemas)
        if capture.resume is STILL_OPEN:
            return self.end
        self._commit(capture)
        return self.end

    def rollback(self) -> None:
        """Forget the staged parts of a transaction whose end will not come on this connection."""
        self._staged, self._staged_rows = [], 0
        for schema in self._line_schemas:
            del self._schemas[schema.id]
        self.book = SchemaBook(tuple(self._schemas.values()))
        self._start_line()

    def close(self) -> None:
        """Let go of the log; closing twice is harmless."""
        self.storage.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _commit(self, capture: Capture) -> None:
        refs, frame = self._staged, capture.frame
        self._staged, rows, self._staged_rows = [], self._staged_rows, 0
        if refs:
            self.storage.sync(self._segment)
        line = Line(
            epoch=self.epoch,
            base=self.end,
            rows=rows,
            at_us=int(self._clock() * 1e6),
            resume=capture.resume or {},
            frames=tuple(refs),
            tables=tuple(sorted(self._line_tables)),
            schemas=tuple(self._line_schemas),
            xids=capture.xids,
            spilled_tx_rows=_spilled_rows(refs, frame),
            ordered=self._line_ordered,
            admitted=capture.admitted,
        )
        self._put(line)
        self.end, self._resume = line.end, line.resume
        self.versions = len(self._schemas)
        self._start_line()
        self._roll_manifest()

    def _write_frame(self, frame: Frame) -> None:
        self._roll_segment()
        parts = frames.encode(frame)
        length = sum(memoryview(part).nbytes for part in parts)
        self.storage.append(self._segment, *parts)
        lanes = tuple(
            (lane, after - before)
            for lane, (before, after) in enumerate(zip(frame.lanes, frame.lanes[1:], strict=False))
            if after > before
        )
        rows = frame.rows.num_rows
        self._staged.append(
            FrameRef(
                self._segment,
                self._segment_size,
                length,
                frames.checksum(parts),
                self._staged_rows,
                rows,
                lanes,
            )
        )
        self._segment_size += length
        self._staged_rows += rows
        self._line_tables.update(np.flatnonzero(np.bincount(frame.rows.column("schema_id").to_numpy())).tolist())
        self._line_ordered = self._line_ordered or bool((frame.rows.column("op").to_numpy() >= _CROSS_KEY_OPS).any())

    def _remember(self, schemas: tuple[TableSchema, ...]) -> None:
        for schema in schemas:
            if schema.id not in self._schemas:
                self._schemas[schema.id] = schema
                self._line_schemas.append(schema)

    def _start_line(self) -> None:
        self._line_tables = set()
        self._line_schemas = []
        self._line_ordered = False

    def _put(self, entry: manifest.Entry) -> None:
        data = manifest.encode(entry)
        self.storage.append(self._manifest, data)
        self.storage.sync(self._manifest)
        self._manifest_size += len(data)

    def _roll_segment(self) -> None:
        if self._segment_size < self._segment_bytes:
            return
        if self._staged:
            self.storage.sync(self._segment)
        self.storage.finish(self._segment)
        self._open_segment(_number(self._segment) + 1)

    def _open_segment(self, number: int) -> None:
        self._segment, self._segment_size = f"{SEGMENTS}/{number:012d}.seg", 0

    def _roll_manifest(self) -> None:
        far = _number(self._segment) - self._manifest_segment >= SEGMENTS_PER_MANIFEST
        if far or self._manifest_size >= self._manifest_bytes:
            self._begin_manifest(_number(self._manifest) + 1)

    def _begin_manifest(self, number: int) -> None:
        schemas = tuple(self._schemas.values())
        header = Header(self.log_id, self.source, self.epoch, self.end, self._resume, schemas)
        if number:
            self.storage.finish(manifest.file_name(number - 1))
        self._manifest = manifest.file_name(number)
        self.storage.replace(self._manifest, manifest.encode(header))
        self._manifest_size = self.storage.size(self._manifest)
        self._manifest_segment = _number(self._segment)

    # -- opening ---------------------------------------------------------------------------------------------

    def _take_lock(self) -> int:
        lock = self.storage.lock("writer.lock")
        if lock is None:
            raise LogError(
                "log.locked",
                f"another process is writing the change log {self.storage.root}",
                hint="stop the other tap of this source, or give this one another data directory",
            )
        return lock

    def _recover(self) -> None:
        self._start_line()
        files = self._whole_manifests()
        if not files:
            self._create()
            return
        referenced = self._replay(files[-1])
        self._manifest = files[-1]
        self._cut_manifest_tail()
        self._cut_segments(referenced)
        self.epoch += 1
        self._put(Claim(self.epoch))

    def _whole_manifests(self) -> list[str]:
        """Manifest files with an intact header; one that was being begun in a crash is removed."""
        whole = []
        for name in self.storage.list(manifest.FOLDER):
            if manifest.header_of(self.storage, name) is not None:
                whole.append(name)
            else:
                self.storage.delete(name)
        return whole

    def _create(self) -> None:
        generation = self._next_generation()
        self.log_id, self.epoch = uuid.uuid4().hex, 1
        self.end = generation * manifest.GENERATION
        self._open_segment(max(map(_number, self.storage.list(SEGMENTS)), default=0) + 1)
        self._begin_manifest(0)

    def _next_generation(self) -> int:
        beside = Directory(self.storage.root.parent)
        name = f"{self.storage.root.name}.generation"
        number = int(beside.tail(name, 0)) + 1 if beside.exists(name) else 0
        beside.replace(name, b"%d" % number)
        return number

    def _replay(self, name: str) -> dict[str, int]:
        """Read the newest manifest file; returns the last referenced byte of each segment it names."""
        referenced: dict[str, int] = {}
        self._tail = manifest.Tail(self.storage, file=name)
        for entry in self._tail.entries():
            match entry:
                case Header():
                    self.log_id, self.epoch, self.end = entry.log_id, entry.epoch, entry.base
                    self._resume = entry.resume
                    self._schemas = {schema.id: schema for schema in entry.schemas}
                case Claim():
                    self.epoch = entry.epoch
                case Line():
                    self.end, self._resume = entry.end, entry.resume
                    self._schemas |= {schema.id: schema for schema in entry.schemas}
                    for frame in entry.frames:
                        referenced[frame.segment] = frame.offset + frame.length
        return referenced

    def _cut_manifest_tail(self) -> None:
        """Drop a last line without its newline: it was never acknowledged."""
        self._manifest_size = self._tail.offset
        if self.storage.size(self._manifest) > self._manifest_size:
            self.storage.truncate(self._manifest, self._manifest_size)

    def _cut_segments(self, referenced: dict[str, int]) -> None:
        """Drop bytes no line refers to, and begin a segment no earlier writer has touched."""
        names = self.storage.list(SEGMENTS)
        newest = max(referenced, default="")
        for name in names:
            if newest and name > newest:
                self.storage.delete(name)
            elif name in referenced and self.storage.size(name) > referenced[name]:
                self.storage.truncate(name, referenced[name])
        self._open_segment(max(map(_number, names), default=0) + 1)
        self._manifest_segment = _number(self._segment)


def _spilled_rows(refs: list[FrameRef], last: Frame | None) -> int:
    """How many rows the transaction has whose first parts were staged before its end."""
    parts = refs if last is None else refs[:-1]
    if not parts:
        return 0
    staged = parts[-1].row + parts[-1].rows
    return staged if last is None else staged + int(last.txs.column("end_row")[0].as_py())


def _number(name: str) -> int:
    return int(name.rsplit("/", 1)[1].split(".", 1)[0])
