"""Files: JSON lines or Parquet, per table and day."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tailrace.contracts import Check, Delivery, Subject
from tailrace.contracts.checking import check_directory
from tailrace.sinks.file.layout import explained
from tailrace.sinks.file.ledger import FileLedger
from tailrace.sinks.file.records import FilesSink


def _directory(path: Path) -> Path:
    if path.parts and path.parts[0].endswith(":"):
        context = {"hint": "use the sink type s3, with bucket and prefix, for object storage"}
        raise PydanticCustomError("config.invalid_value", "not a directory", context)
    return path.absolute()


class FileSink(FilesSink):
    """Writes `<path>/<schema>.<table>/<day>/<start>-<end>-<task>-<part>.jsonl` (or `.parquet`).

    `start` and `end` are the offsets of the batch, `day` is the commit day in UTC of all rows in the folder. Read a
    table's files in the order of their *names*, whatever their folders: that is the order of delivery, in which each
    key's changes are in order. Folders alone do not tell it, because commit times may go back. JSON lines hold records
    in the sink's envelope; Parquet holds the canonical change with typed columns.

    A repeat changes nothing: the sink keeps its mark in `<path>/_tailrace`, in the same atomic step that
    decides which files exist, so delivery is exactly once and one commit covers a whole batch. A file is
    complete and synced to disk from the moment it is visible. A crash leaves nothing but staged files under
    `_tailrace`, which the next start renames into place or removes. Dead letters that are delivered again come
    in files of their own, named after the offset at which the sink then is, and a crash repeats none of them.
    `path` must be one file system that driver and tasks share, and belong to this sink alone.
    """

    path: Annotated[
        Path,
        Field(description="Directory of the files; relative to where the pipeline starts."),
        AfterValidator(_directory),
    ]

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_directory(subject, self.path)

    def _ledger(self, delivery: Delivery) -> FileLedger:
        return FileLedger(self.path, f"{delivery.pipeline}.{self.id}")

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.path)
