"""What sinks of files have in common, wherever their files are: formats, rolling, and a ledger that commits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Literal, Protocol

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.change import CHANGES
from tailrace.config import ByteSize, Duration, Model
from tailrace.contracts import Delivery, Gather, RecordSink, Span
from tailrace.sinks.file.writer import Codec, FileKind, FileWriter, Staging

_ROUTING = ("schema", "table", "ts_us", "lane")
_LINES: tuple[Codec, ...] = ("none", "gzip", "zstd")


class Roll(Model):
    """When files are closed and made visible: whichever comes first."""

    every: Annotated[Duration, Field(description="Longest time that changes wait for their file.")] = timedelta(
        seconds=5
    )
    bytes: Annotated[ByteSize, Field(gt=0, description="Size at which a file is full.")] = 64_000_000


class Ledger(Protocol):
    """Decides which files there are: used by the driver only, but for `staging`."""

    def claim(self) -> None:
        """Make the place this sink's own. Two sinks in one place would give files the same names."""
        ...

    def mark(self, log_id: str) -> int: ...

    def replays(self) -> int:
        """How many commits were of dead letters."""
        ...

    def replayed(self, letters: Collection[str]) -> frozenset[str]:
        """Which of these the last such commit had. What became of those before it, the journal knows."""
        ...

    def commit(self, span: Span, receipts: list[str]) -> None:
        """Make the staged files of a span visible and move the mark, or note the letters: both or neither."""
        ...

    def settle(self) -> None:
        """Do what the last commit decided, as far as it has not been done."""
        ...

    def clear_staging(self) -> None:
        """Remove what attempts that died before their commit left."""
        ...

    def staging(self) -> Staging:
        """For a task."""
        ...


class FilesSink(RecordSink):
    """Files of records, per table and day. A subclass says where they are; its docstring, how it absorbs a repeat."""

    format: Annotated[Literal["jsonl", "parquet"], Field(description="What the files hold.")] = "jsonl"
    compression: Annotated[
        Codec | None,
        Field(
            description="Codec of the files. Absent: zstd for Parquet, none for JSON lines, which have no snappy. "
            "Compressed lines end in `.jsonl.gz` or `.jsonl.zst`."
        ),
    ] = None
    roll: Annotated[Roll, Field(description="When files are closed and made visible.")] = Roll()

    @model_validator(mode="after")
    def _codec_of_its_format(self) -> FilesSink:
        if self.format == "jsonl" and self.compression not in (None, *_LINES):
            context = {"hint": "use gzip, zstd or none"}
            raise PydanticCustomError("config.invalid_value", "JSON lines cannot be compressed so", context)
        return self

    def columns(self) -> tuple[str, ...]:
        if self.format == "jsonl":
            return _ROUTING
        return (*CHANGES.names, "event_id")

    def wants_value(self) -> bool:
        return self.format == "jsonl"

    def gather(self) -> Gather:
        return Gather(self.roll.every.total_seconds(), self.roll.bytes)

    def prepare(self, delivery: Delivery) -> None:
        with self._explained():
            ledger = self._ledger(delivery)
            ledger.claim()
            ledger.settle()
            ledger.clear_staging()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        with self._explained():
            return self._ledger(delivery).mark(log_id)

    def replayed(self, delivery: Delivery, letters: tuple[str, ...]) -> frozenset[str]:
        with self._explained():
            return self._ledger(delivery).replayed(letters)

    def open(self, delivery: Delivery, span: Span, task: int) -> FileWriter:
        codec = self.compression or ("zstd" if self.format == "parquet" else "none")
        ledger, kind = self._ledger(delivery), FileKind(self.format, codec)
        if span.letters:
            mark = ledger.mark(span.log_id)
            span, task = replace(span, start=mark, end=mark), ledger.replays()
        return FileWriter(ledger.staging(), span, task, self.roll.bytes, kind)

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        with self._explained():
            self._ledger(delivery).commit(span, receipts)

    @abstractmethod
    def _ledger(self, delivery: Delivery) -> Ledger: ...

    @abstractmethod
    def _explained(self) -> AbstractContextManager[None]:
        """Turns refusals of the place into errors that say whether waiting can help."""
