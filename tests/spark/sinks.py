"""A sink whose deliveries can be read back: one line per record, with when and by whom it was written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.contracts import Delivery, Gather, RecordSink, Rejected, Span, Writer, Written
from tailrace.errors import SinkError
from tailrace.machine.durable import replace_file


class LinesSink(RecordSink):
    """Appends; a repeat is a repeat. With `marks` it keeps a mark, written in `commit`, and the dead letters it had."""

    directory: str
    marks: bool = False
    pause_s: float = 0.0
    away: bool = False
    """As a server that does not answer."""
    gather_s: float = 0.0
    most_events: int | None = None

    def columns(self) -> tuple[str, ...]:
        return ("seq", "key", "op", "after", "tx_id")

    def batch_events(self) -> int | None:
        return self.most_events

    def gather(self) -> Gather | None:
        return Gather(self.gather_s, 1 << 30) if self.gather_s else None

    def prepare(self, delivery: Delivery) -> None:
        Path(self.directory).mkdir(parents=True, exist_ok=True)

    def mark(self, delivery: Delivery, log_id: str) -> int:
        file = Path(self.directory) / "mark"
        return int(file.read_text()) if self.marks and file.exists() else 0

    def open(self, delivery: Delivery, span: Span, task: int) -> Writer:
        if self.away:
            (Path(self.directory) / "waiting").touch()
            while not delivery.ending():
                time.sleep(0.01)
            raise SinkError("sink.unavailable", "nobody answers", hint="", where=self.id)
        return LinesWriter(Path(self.directory), delivery, span, task, self.pause_s)

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        if (Path(self.directory) / "refuse-commit").exists():
            raise SinkError("sink.unavailable", "commit refused", hint="remove refuse-commit", where=self.id)
        with (Path(self.directory) / "commits").open("a") as out:
            out.write(json.dumps([span.start, span.end, sorted(receipts)]) + "\n")
        if self.marks and span.letters:
            replace_file(Path(self.directory) / "letters.json", json.dumps(span.letters))
        elif self.marks:
            (Path(self.directory) / "mark").write_text(str(span.end))

    def replayed(self, delivery: Delivery, letters: tuple[str, ...]) -> frozenset[str]:
        file = Path(self.directory) / "letters.json"
        return frozenset(json.loads(file.read_text())) & set(letters) if file.exists() else frozenset()


class RefusingSink(LinesSink):
    """Refuses rows whose `n` is in the file `refused.json`, if there is one."""

    def open(self, delivery: Delivery, span: Span, task: int) -> Writer:
        return RefusingWriter(Path(self.directory), delivery, span, task, self.pause_s)


class RefusingState(RefusingSink):
    """The same, of a target that has the last record of each key alone."""

    keeps = "state"


@dataclass(frozen=True)
class LinesWriter:
    directory: Path
    delivery: Delivery
    span: Span
    task: int
    pause_s: float

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        count = 0
        with (self.directory / "lines").open("a", buffering=1) as out:
            for batch in batches:
                for row in batch.to_pylist():
                    time.sleep(self.pause_s)
                    if (self.directory / "refuse").exists():
                        raise SinkError("sink.unavailable", "refused", hint="remove refuse", where="lines")
                    out.write(json.dumps(self._line(row)) + "\n")
                    count += 1
        return Written(f"{self.task}:{count}")

    def _line(self, row: dict[str, Any]) -> dict[str, Any]:
        after = json.loads(row["after"] or row["key"])
        return {
            "seq": row["seq"],
            "op": row["op"],
            "id": after["id"],
            "n": after.get("n"),
            "tx": row["tx_id"],
            "value": json.loads(row["value"]),
            "span": [self.span.start, self.span.end],
            "task": self.task,
            "attempt": self.delivery.tenant,
            "pid": os.getpid(),
            "at": time.time(),
        }


@dataclass(frozen=True)
class RefusingWriter(LinesWriter):
    """`n` is looked for in `after`, or, where that is cut away, in the record."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        refused: list[Rejected] = []
        written = super().write(self._taken(batches, refused))
        return Written(written.receipt, tuple(refused))

    def _taken(self, batches: Iterator[pa.RecordBatch], refused: list[Rejected]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            passes = []
            for place, after in enumerate(batch.column("after").to_pylist()):
                n = json.loads(after).get("n") if after else None
                passes.append(n not in refused_numbers(self.directory))
                if not passes[-1]:
                    error = SinkError("sink.rejected", f"{n} is not wanted", where="lines")
                    refused.append(Rejected(batch.slice(place, 1), error))
            yield batch.filter(pa.array(passes))


def refuse(directory: Path, *numbers: int) -> None:
    """From now on these are refused, and no others."""
    directory.mkdir(exist_ok=True)
    replace_file(directory / "refused.json", json.dumps(numbers))


def refused_numbers(directory: Path) -> list[int]:
    file = directory / "refused.json"
    found: list[int] = json.loads(file.read_text()) if file.exists() else []
    return found


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """What was delivered, in the order of writing; a line that is being written is left out."""
    file = directory / "lines"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def read_commits(directory: Path) -> list[list[Any]]:
    file = directory / "commits"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
