"""Dead letters on their way: tasks write them to files, and the driver brings them into the journal before it commits.

The files are in the query's state directory, named after what the task read, and begin anew with every batch: a batch
that comes again writes them again, and the journal knows each letter by its event id.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import CHANGES, event_id
from tailrace.changelog import Holds, Owner
from tailrace.contracts import (
    Delivery,
    Failed,
    Letter,
    LetterRecord,
    OnError,
    Processor,
    RecordSink,
    Rejected,
    Span,
)
from tailrace.contracts.letters import packed
from tailrace.control.journal import Journal
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.machine.durable import make_directory, replace_file

SUFFIX = ".jsonl"
HELD_CODE = "dlq.held"
"""The code of letters that nobody refused: an earlier change of their key was."""
HOLD = "(dead letters)"
"""What the log is held under, beside the sink's tables."""
KEPT = (*CHANGES.names, "event_id")
"""The columns of a change that a letter keeps, beside those that the sink wants."""
KEPT_PROCESSED = (*KEPT, "tags", "synthetic", "part")
_VALUES = ("before", "after", "value")
"""The columns that are left out of a letter that is too large."""
SYSTEMIC = 20
"""This many changes must be refused before the breaker looks at their share."""
SHOWN = 3
"""How many reasons an error quotes."""

_UNASKED = "letter:"
"""How columns are called that a writer is given only for letters: whatever it looks for, it does not find them."""

Key = tuple[str, str, str]
"""Schema, table and key of a row."""


@dataclass(frozen=True)
class LetterFiles:
    """The files of one query."""

    folder: Path

    def begin(self) -> None:
        """Forget what was written for a batch that was given up, or that is over."""
        make_directory(self.folder)
        for file in self.folder.glob(f"*{SUFFIX}"):
            file.unlink()

    def put(self, label: str, letters: Iterable[Letter]) -> None:
        """In a task: its letters of what `label` names."""
        text = "".join(json.dumps(each.as_dict()) + "\n" for each in letters)
        replace_file(self.folder / (label + SUFFIX), text)

    def found(self) -> list[Letter]:
        """The letters of all tasks, in the log's order."""
        lines = (line for file in self.folder.glob(f"*{SUFFIX}") for line in file.open())
        return sorted((Letter(**json.loads(line)) for line in lines), key=lambda each: (each.seq, each.part))


@dataclass(frozen=True)
class ChainLetters:
    """In a task: letters of changes that a chain of processors fails for. `sink` is who does not get them; `hides`:
    something in the chain makes values unreadable, so that not even the key is kept."""

    files: LetterFiles
    sink: str
    log_id: str
    hides: bool

    def put(self, label: str, failures: Sequence[Failed]) -> None:
        self.files.put(f"{label}-chain", map(self._letter, failures))

    def _letter(self, failed: Failed) -> Letter:
        row = failed.change.to_pylist()[0]
        event = event_id(row["source"], row["position"], row["tx_ordinal"], row["part"])
        letter = _letter(self.sink, self.log_id, {**row, "event_id": event}, failed.error.code, failed.error.message)
        return replace(letter, processor=failed.processor, key=None if self.hides else letter.key)


@dataclass(frozen=True)
class Refusals:
    """What tasks do about records that are refused; picklable. `held` is where the driver says which keys wait behind
    a letter; None: none do."""

    sink: str
    on_error: OnError
    files: LetterFiles
    max_event_bytes: int = 0
    held: Path | None = None

    def columns(self, *, processed: bool) -> tuple[str, ...]:
        """What tasks must be given, beside what the sink wants."""
        if self.on_error == "dlq":
            return KEPT_PROCESSED if processed else KEPT
        return ("schema_id",) if self.on_error == "skip" else ()

    def open(self, span: Span, task: int) -> RefusedHere:
        """In a task: for its part of a span."""
        return RefusedHere(self, span, task, {} if self.held is None else load_held(self.held))


@dataclass
class RefusalCount:
    """What was refused, by the id of the table version and the error's code; how many letters were written, and the
    first few reasons."""

    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    letters: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, rejected: Rejected) -> None:
        self.refused[int(plain(rejected.row).column("schema_id")[0].as_py()), rejected.error.code] += 1
        if len(self.reasons) < SHOWN:
            self.reasons.append(str(rejected.error))

    def merge(self, other: RefusalCount) -> None:
        self.refused += other.refused
        self.letters += other.letters
        self.reasons = (self.reasons + other.reasons)[:SHOWN]

    def pack(self) -> str:
        """For an outcome row; empty where there is nothing to say."""
        if not self.refused and not self.letters:
            return ""
        return json.dumps([[[*key, count] for key, count in self.refused.items()], self.letters, self.reasons])

    @classmethod
    def unpack(cls, text: str) -> RefusalCount:
        if not text:
            return cls()
        refused, letters, reasons = json.loads(text)
        return cls(Counter({(number, code): count for number, code, count in refused}), letters, reasons)


@dataclass
class RefusedHere:
    """What was refused in one task."""

    rules: Refusals
    span: Span
    task: int
    held: Mapping[Key, int]
    letters: list[Letter] = field(default_factory=list)
    told: RefusalCount = field(default_factory=RefusalCount)
    _given: list[pa.RecordBatch] = field(default_factory=list)

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose keys nothing holds; the others become letters."""
        if self.rules.held is None:
            return batch
        waits = _places(batch, self.held)
        self._hold(batch, np.flatnonzero(waits))
        passing = batch.filter(pa.array(~waits)) if waits.any() else batch
        self._given.append(passing)
        return passing

    def settle(self, rejected: Sequence[Rejected]) -> None:
        """What becomes of these, as the sink's `on_error` says: the first one's error is raised, or they are counted,
        or they are durable as letters."""
        if rejected and self.rules.on_error == "fail":
            raise rejected[0].error
        for each in rejected:
            self.told.add(each)
        if self.rules.on_error == "dlq":
            self._write(rejected)

    def _write(self, rejected: Sequence[Rejected]) -> None:
        limit = self.rules.max_event_bytes
        for each in rejected:
            row = plain(each.row)
            letter = self._letter(row, each.error.code, str(each.error))
            self.letters.append(letter if row.nbytes <= limit else _cut(letter, row))
        self._hold_behind(rejected)
        if self.letters:
            self.told.letters = len(self.letters)
            self.rules.files.put(f"{self.span.start}-{self.span.end}-{self.task}", self.letters)

    def _hold_behind(self, rejected: Sequence[Rejected]) -> None:
        """What was given to the writer behind a record that it refused, of the same key."""
        first: dict[Key, int] = {}
        refused = set()
        for letter in self.letters[len(self.letters) - len(rejected) :]:
            refused.add(letter.event_id)
            if letter.key is not None:
                key = (letter.schema, letter.table, letter.key)
                first[key] = min(letter.seq, first.get(key, letter.seq))
        for batch in self._given if first else ():
            events = np.asarray(pc.is_in(batch.column("event_id"), pa.array(sorted(refused))))
            self._hold(batch, np.flatnonzero(_places(batch, first) & ~events))

    def _hold(self, batch: pa.RecordBatch, places: Iterable[int]) -> None:
        for place in places:
            row = batch.slice(int(place), 1)
            letter = self._letter(row, HELD_CODE, "an earlier change of its key is a dead letter")
            letter = letter if row.nbytes <= self.rules.max_event_bytes else _cut(letter, row)
            self.letters.append(replace(letter, state="held"))

    def _letter(self, row: pa.RecordBatch, code: str, message: str) -> Letter:
        letter = _letter(self.rules.sink, self.span.log_id, row.to_pylist()[0], code, message)
        return replace(letter, row=packed(row))


@dataclass
class Breaker:
    """Stops a sink whose target refuses too much: then it is not the records that are wrong."""

    sink: str
    share: float
    _in_a_row: int = 0

    def look(self, refused: int, rows: int, reasons: Sequence[str]) -> None:
        """At a batch of `rows`, of which `refused` were. Raises `sink.too_many_rejected`."""
        self._in_a_row = self._in_a_row + refused if refused > self.share * rows else 0
        if self._in_a_row < SYSTEMIC:
            return
        raise SinkError(
            "sink.too_many_rejected",
            f"{refused} of {rows} changes were refused, {self._in_a_row} in a row: {'; '.join(reasons)}",
            hint="see to the target or the processor and start again: nothing of the batch was set aside; "
            "`max_rejected_share: 1` lets all of them go to the dead letters",
            where=self.sink,
        )


@dataclass(frozen=True)
class LetterKeeping:
    """A pipeline's journal, and what goes into it."""

    journal: Journal
    max_event_bytes: int = 262_144
    hold_key: bool = False


@dataclass(frozen=True)
class Rerun:
    """What became of a letter's change in the chain of now: the rows that the writer is given, each alone, or the
    `error` of the processor that failed for it again. With neither, the chain drops it."""

    rows: tuple[pa.RecordBatch, ...] = ()
    error: tuple[str, str] | None = None


def of_letter(part: str, letter: Letter, processors: Sequence[str]) -> bool:
    """Whether a row with this `part`, of the letter's offset, is the letter's change, or made of it at or behind the
    processor that failed. What others made before was delivered then."""
    if part == letter.part:
        return True
    above = f"{letter.part}/" if letter.part else ""
    maker = part.removeprefix(above).partition(":")[0]
    return (
        bool(letter.processor)
        and part.startswith(above)
        and maker in processors
        and letter.processor in processors
        and processors.index(maker) >= processors.index(letter.processor)
    )


class LetterDesk:
    """In the driver: brings the letters of one sink's batches into the journal."""

    def __init__(
        self,
        keeping: LetterKeeping,
        sink: RecordSink,
        delivery: Delivery,
        log_path: Path,
        state: Path,
        *,
        required: bool,
    ) -> None:
        self.journal, self.sink, self.log_path = keeping.journal, sink.id, log_path
        self._sink, self._delivery = sink, delivery
        self.files = LetterFiles(state / "letters")
        self.held = state / "held.json" if keeping.hold_key else None
        self.max_event_bytes = keeping.max_event_bytes
        self._required = required

    def begin(self) -> None:
        """Before a batch. Raises `dlq.full`."""
        self.journal.refuse_when_full()
        self.files.begin()
        if self.held is not None:
            replace_file(self.held, json.dumps(self.journal.held_keys(self.sink)))

    def found(self) -> list[Letter]:
        """What tasks wrote since."""
        return self.files.found()

    def keep(self, letters: Sequence[Letter], log_id: str) -> None:
        """Durable when it returns, and held in the log where only that has all of a change; then in the sink's topic
        for them, too. Raises what publishing raises."""
        if not letters:
            return
        self.journal.put(letters)
        if any(each.needs_log for each in letters):
            hold_log(self.journal, self.sink, log_id, self.log_path, required=self._required)
        failpoint("dlq.letters.durable")
        if self._sink.publishes_letters():
            self._sink.publish_letters(self._delivery, self._records(letters))
            failpoint("dlq.letters.published")

    def keep_left(self, span: Span) -> None:
        """The letters of a span that the sink committed in its task, where the driver died before it kept them."""
        left = [each for each in self.found() if each.log_id == span.log_id and span.start <= each.seq < span.end]
        self.keep(left, span.log_id)

    def _records(self, letters: Sequence[Letter]) -> list[LetterRecord]:
        """The letters as a topic gets them. One that the journal's bound let go at once is a first try."""
        tries, now = self.journal.tries(letters), int(time.time() * 1e6)
        who = (self._delivery.pipeline, self._delivery.tenant)
        return [LetterRecord(each, *who, *tries.get((each.sink, each.event_id), (1, now))) for each in letters]

    def chain_letters(self, log_id: str, processors: Sequence[Processor]) -> ChainLetters:
        """For tasks."""
        return ChainLetters(self.files, self.sink, log_id, any(each.hides() for each in processors))


def hold_log(journal: Journal, sink: str, log_id: str, log_path: Path, *, required: bool) -> None:
    """Keep in the log what open letters of the sink have only there, and nothing else."""
    holds = Holds(log_path, Owner(journal.pipeline, sink).name, required=required)
    needed = journal.needed_from(sink, log_id)
    if needed is None:
        holds.let_go(HOLD)
    else:
        holds.hold(HOLD, needed)


def for_writer(batch: pa.RecordBatch, sink: RecordSink) -> pa.RecordBatch:
    """The batch as the sink's writer is given it: what it did not ask for has other names."""
    asked = {*sink.columns(), *sink.routes(), *sink.routed(), "value"}
    return batch.rename_columns([name if name in asked else _UNASKED + name for name in batch.schema.names])


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What `for_writer` was given."""
    return batch.rename_columns([name.removeprefix(_UNASKED) for name in batch.schema.names])


def load_held(file: Path) -> dict[Key, int]:
    """What the driver wrote of keys that wait: their first offset."""
    return {(schema, table, key): seq for schema, table, key, seq in json.loads(file.read_text())}


def _places(batch: pa.RecordBatch, held: Mapping[Key, int]) -> np.ndarray[Any, Any]:
    """Which rows have one of these keys, at its offset or behind it."""
    found = np.zeros(batch.num_rows, np.bool_)
    if not held:
        return found
    keys = pa.array(sorted({key for _, _, key in held}), pa.string())
    for place in np.flatnonzero(np.asarray(pc.is_in(batch.column("key"), keys))).tolist():
        schema, table, key, seq = (batch.column(name)[place].as_py() for name in ("schema", "table", "key", "seq"))
        found[place] = seq >= held.get((schema, table, key), seq + 1)
    return found


def _letter(sink: str, log_id: str, row: Mapping[str, Any], code: str, message: str) -> Letter:
    names = ("source", "seq", "event_id", "op", "schema", "table", "key", "schema_id", "position", "ts_us")
    part = row.get("part") or ""
    return Letter(
        sink=sink, processor="", log_id=log_id, part=part, code=code, message=message, **{n: row[n] for n in names}
    )


def _cut(letter: Letter, row: pa.RecordBatch) -> Letter:
    """The letter without the values."""
    for name in _VALUES:
        if name in row.schema.names:
            place = row.schema.get_field_index(name)
            row = row.set_column(place, name, pa.nulls(1, row.schema.field(name).type))
    return replace(letter, cut=True, row=packed(row))
