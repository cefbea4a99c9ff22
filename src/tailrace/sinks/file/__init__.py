"""Files: JSON lines or Parquet, per table and day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tailrace.change import CHANGES
from tailrace.config import ByteSize, Duration, Model
from tailrace.contracts import Check, Delivery, Gather, RecordSink, Span, Subject
from tailrace.contracts.checking import check_directory
from tailrace.sinks.file.layout import explained
from tailrace.sinks.file.ledger import FileLedger
from tailrace.sinks.file.writer import Codec, FileWriter

_ROUTING = ("schema", "table", "ts_us", "lane")


class Roll(Model):
    """When files are closed and made visible: whichever comes first."""

    every: Annotated[Duration, Field(description="Longest time that changes wait for their file.")] = timedelta(
        seconds=5
    )
    bytes: Annotated[ByteSize, Field(gt=0, description="Size at which a file is full.")] = 64_000_000


class FileSink(RecordSink):
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
        AfterValidator(Path.absolute),
    ]
    format: Annotated[Literal["jsonl", "parquet"], Field(description="What the files hold.")] = "jsonl"
    compression: Annotated[Codec, Field(description="Codec of Parquet files.")] = "zstd"
    roll: Annotated[Roll, Field(description="When files are closed and made visible.")] = Roll()

    def columns(self) -> tuple[str, ...]:
        if self.format == "jsonl":
            return _ROUTING
        return (*CHANGES.names, "event_id")

    def wants_value(self) -> bool:
        return self.format == "jsonl"

    def gather(self) -> Gather:
        return Gather(self.roll.every.total_seconds(), self.roll.bytes)

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_directory(subject, self.path)

    def prepare(self, delivery: Delivery) -> None:
        with explained(self.path):
            ledger = self._ledger(delivery)
            ledger.claim()
            ledger.settle()
            ledger.clear_staging()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        with explained(self.path):
            return self._ledger(delivery).mark(log_id)

    def replayed(self, delivery: Delivery, letters: tuple[str, ...]) -> frozenset[str]:
        with explained(self.path):
            return self._ledger(delivery).replayed(letters)

    def open(self, delivery: Delivery, span: Span, task: int) -> FileWriter:
        codec = self.compression if self.format == "parquet" else None
        ledger = self._ledger(delivery)
        if span.letters:
            mark = ledger.mark(span.log_id)
            span, task = replace(span, start=mark, end=mark), ledger.replays()
        return FileWriter(self.path, ledger.staging, span, task, self.roll.bytes, codec)

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        with explained(self.path):
            self._ledger(delivery).commit(span, receipts)

    def _ledger(self, delivery: Delivery) -> FileLedger:
        return FileLedger(self.path, f"{delivery.pipeline}.{self.id}")
