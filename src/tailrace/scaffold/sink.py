"""Lines: keys and records appended to one text file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from pydantic import Field

from tailrace.contracts import Delivery, RecordSink, Span, Written
from tailrace.errors import SinkError


class LineSink(RecordSink):
    """Appends one line per change. A repeated batch is appended again: delivery is at least once."""

    path: Annotated[Path, Field(description="The file.")]

    def columns(self) -> tuple[str, ...]:
        return ("key",)

    def tasks(self) -> int:
        return 1  # several would write into each other's lines

    def open(self, delivery: Delivery, span: Span, task: int) -> _Lines:
        return _Lines(self.path, self.id)


class _Lines:
    def __init__(self, path: Path, sink: str) -> None:
        self._path, self._sink = path, sink

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        try:
            with open(self._path, "ab+") as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    file.write(b"\n")  # an attempt was killed inside a line, which comes again
                for batch in batches:
                    rows = zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
                    file.write("".join(f"{key}\t{value}\n" for key, value in rows).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            hint = "see to the path, or to its disk: the batch comes again"
            raise SinkError("sink.unavailable", f"cannot write: {error}", hint=hint, where=self._sink) from error
        return Written()
