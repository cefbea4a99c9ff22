"""Staged chunks: frames of a snapshot in a file of their own, until the log takes them in.

An Arrow IPC stream of `contracts.ROWS` batches, each in lane order with its lane offsets as metadata; the last is empty
and says what the file is, so that a crash does not lose what was read. Not part of a log: a file that is lost is read
again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from tailrace.contracts import ROWS, Frame, Staged
from tailrace.machine.durable import make_directory, private

_LANES, _STAGED = b"lanes", b"staged"


class StagedFile:
    """A file that is there, whole and durable, once the `with` block has ended without an error."""

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, path.with_name(f".{path.name}")
        self.rows = self.bytes = 0

    def __enter__(self) -> Self:
        make_directory(self._path.parent)
        self._file = open(self._draft, "wb", opener=private)
        self._stream = pa.ipc.new_stream(self._file, ROWS)
        return self

    def put(self, frame: Frame) -> None:
        """Add a frame; its transaction is made when it is admitted."""
        self._stream.write_batch(frame.rows, custom_metadata={_LANES: json.dumps(frame.lanes).encode()})
        self.rows += frame.rows.num_rows
        self.bytes += frame.rows.nbytes

    def describe(self, staged: Staged) -> None:
        """The last word: what the file is."""
        told = json.dumps(staged.as_dict()).encode()
        self._stream.write_batch(pa.RecordBatch.from_pylist([], schema=ROWS), custom_metadata={_STAGED: told})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if error is None:
            self._draft.replace(self._path)
        else:
            self._draft.unlink()


def read_staged(path: Path) -> Iterator[tuple[pa.RecordBatch, tuple[int, ...]]]:
    """(rows, lane offsets) of each frame."""
    for batch, metadata in _batches(path):
        if _LANES in metadata:
            yield batch, tuple(json.loads(metadata[_LANES]))


def left_behind(folder: Path) -> Iterator[Staged]:
    """What the whole files in `folder` are."""
    for path in sorted(folder.glob("[!.]*.arrow")):
        for _, metadata in _batches(path):
            if _STAGED in metadata:
                yield Staged.from_dict(json.loads(metadata[_STAGED]))


def remove_others(folder: Path, files: Collection[str]) -> None:
    """Remove what nobody will ask for. No one may be staging files here meanwhile."""
    for path in folder.glob("*"):
        if str(path) not in files:
            path.unlink()


def _batches(path: Path) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes]]]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        while True:
            try:
                yield stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
