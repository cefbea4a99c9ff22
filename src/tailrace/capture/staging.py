"""Staged chunks: frames of a snapshot in a file of their own, until the log takes them in.

An Arrow IPC stream of `contracts.ROWS` batches, each in lane order with its lane offsets as metadata. Not part of a
log: a file that is lost is read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from tailrace.contracts import ROWS, Frame

_LANES = b"lanes"


class StagedFile:
    """A file that is there, whole and durable, once the `with` block has ended without an error."""

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, path.with_name(f".{path.name}")
        self.rows = self.bytes = 0

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._draft, "wb")
        self._stream = pa.ipc.new_stream(self._file, ROWS)
        return self

    def put(self, frame: Frame) -> None:
        """Add a frame; its transaction is made when it is admitted."""
        self._stream.write_batch(frame.rows, custom_metadata={_LANES: json.dumps(frame.lanes).encode()})
        self.rows += frame.rows.num_rows
        self.bytes += frame.rows.nbytes

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
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        while True:
            try:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            yield batch, tuple(json.loads(metadata[_LANES]))
