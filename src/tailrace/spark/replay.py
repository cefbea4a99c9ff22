"""Delivering dead letters again: through the sink's own writer, in order, and only where that harms nothing.

Whether a letter was overtaken is decided when its turn comes, between two batches of its sink: the log knows what came
later of its key. What the log no longer knows counts as overtaken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tailrace.changelog import LogReader, earliest
from tailrace.changelog.later import LaterChanges
from tailrace.contracts import OPEN, Delivery, Letter, RecordSink, Rejected, Span, Written
from tailrace.contracts.letters import unpacked
from tailrace.control.journal import Journal, KeptLetter, LetterFilter, LetterPlace
from tailrace.control.replays import ChosenLetter, Outcome, Replay, Replays, Verdict
from tailrace.errors import Action, SinkError, SparkError, TailraceError, decide
from tailrace.failpoints import failpoint
from tailrace.spark.letters import Breaker, Rerun, hold_log

PIECE = 100
"""Letters that are delivered at once, at most."""

Turn = Callable[[], AbstractContextManager[int]]
"""While it is entered no batch runs; it yields the offset below which the sink has everything."""


class Rerunning(Protocol):
    """Runs the chain of now over changes that only the log has."""

    def __call__(self, letters: Sequence[KeptLetter]) -> Mapping[int, Rerun]: ...


@dataclass
class Judgement:
    """What would happen to letters of one sink, of those whose numbers are `chosen`."""

    journal: Journal
    sink: RecordSink
    log_path: Path
    chosen: frozenset[int]
    seqs: Sequence[int]
    forced: bool = False
    _open: list[LetterPlace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log_id = LogReader(self.log_path).log_id
        self._later = LaterChanges(self.log_path, self.log_id, self.seqs)

    def look(self, offset: int) -> None:
        """At the log up to `offset`, and at what is open now."""
        self._offset, self._begins = offset, earliest(self.log_path)
        self._later.advance(max((offset, *(seq + 1 for seq in self.seqs))))
        self._open = self.journal.places(open_letters(self.sink))
        self._waiting = {place.seq for place in self._open if place.log_id == self.log_id}

    def of(self, letter: Letter) -> tuple[Verdict, str]:
        """The verdict and why."""
        reason = self._cannot(letter)
        if reason:
            return "refuse", reason
        reason = self._overtaken(letter)
        if not reason:
            return "deliver", ""
        if self.sink.keeps == "state":
            return "supersede", reason
        return ("deliver", f"forced: {reason}") if self.forced else ("refuse", f"{reason}: deliver it with --force")

    def _cannot(self, letter: Letter) -> str:
        in_log = letter.log_id == self.log_id and self._begins <= letter.seq
        if letter.needs_log and not in_log:
            return "only the log had all of the change, and no longer has it"
        lacks = () if letter.needs_log else missing_columns(self.sink, letter)
        if lacks:
            return f"the sink now wants what the letter does not have: {', '.join(lacks)}"
        if letter.state == "held":
            before = [place.number for place in self._open if _is_before(place, letter)]
            behind = next((number for number in before if number not in self.chosen), None)
            return "" if behind is None else f"it is held behind letter {behind}, which is not chosen"
        return ""

    def _overtaken(self, letter: Letter) -> str:
        behind = self._later.behind(letter.seq) if letter.log_id == self.log_id else None
        if behind is None:
            return "the log can no longer tell whether a newer change of its key was delivered"
        if letter.op == "t" and self._offset > letter.seq + 1:
            return "a truncate that comes late would take newer rows"
        newer = next((at for at in behind if at < self._offset and at not in self._waiting), None)
        return "" if newer is None else f"the newer change at offset {newer} was delivered"


def open_letters(sink: RecordSink) -> LetterFilter:
    """A sink's letters that something is left to do about."""
    return LetterFilter(sink=sink.id, states=OPEN)


def missing_columns(sink: RecordSink, letter: Letter) -> tuple[str, ...]:
    """What the sink wants of a row that the letter's does not have."""
    wanted = [*sink.columns(), *sink.routes(), *(("value",) if sink.wants_value() else ())]
    names = unpacked(letter.row).schema.names
    return tuple(name for name in wanted if name not in names)


@dataclass(frozen=True)
class Redelivery:
    """Of one sink's letters. `rerun` is there where Spark is."""

    journal: Journal
    replays: Replays
    sink: RecordSink
    delivery: Delivery
    log_path: Path
    turn: Turn
    rerun: Rerunning | None = None

    def carry_out(self, replay: Replay, pause: Callable[[float], bool]) -> None:
        """Every letter of the sink that has no outcome yet gets one. `pause` waits, and says whether to stop; then, and
        where the target cannot be reached, which is raised, the rest waits for another time. Whatever else is wrong
        ends the replay, and stops no sink."""
        chosen = [each for each in self.replays.letters(replay.id, self.sink.id) if each.outcome is None]
        breaker = Breaker(self.sink.id, self.sink.max_rejected_share)
        error = None
        for piece in self._pieces(chosen, replay, self._judgement(chosen, replay)):
            try:
                count = piece(breaker)
            except TailraceError as failure:
                if decide(failure) is Action.RETRY:
                    raise
                error = str(failure)
                break
            if pause(count / replay.rate if replay.rate else 0):
                return
        self._give_up_the_rest(replay, error)
        self._let_go()
        self.replays.settle(replay.id, error)

    def _judgement(self, chosen: Sequence[ChosenLetter], replay: Replay) -> Judgement:
        numbers = frozenset(each.number for each in self.replays.letters(replay.id, self.sink.id))
        mine = {each.number for each in chosen}
        seqs = [place.seq for place in self.journal.places(open_letters(self.sink)) if place.number in mine]
        return Judgement(self.journal, self.sink, self.log_path, numbers, seqs, replay.forced)

    def _pieces(
        self, chosen: Sequence[ChosenLetter], replay: Replay, judgement: Judgement
    ) -> Iterator[Callable[[Breaker], int]]:
        """What is to be called for each piece: its letters are of different keys, in the log's order."""
        places = {place.number: place for place in self.journal.places(open_letters(self.sink))}
        closed = [each.number for each in chosen if each.number not in places]
        self.replays.note(replay.id, [(number, "gone", "somebody closed or purged it") for number in closed])
        ordered = [place for number, place in places.items() if number in {each.number for each in chosen}]
        size = PIECE if replay.rate is None else max(1, min(PIECE, math.ceil(replay.rate)))
        for numbers in _cut(ordered, size):
            yield lambda breaker, numbers=numbers: self._deliver(replay, numbers, judgement, breaker)  # type: ignore[misc]

    def _deliver(self, replay: Replay, numbers: Sequence[int], judgement: Judgement, breaker: Breaker) -> int:
        """One piece, between two batches. Returns how many letters went out."""
        with self.turn() as offset:
            judgement.look(offset)
            kept = self.journal.find(LetterFilter(numbers=tuple(numbers), states=OPEN))
            passing: list[KeptLetter] = []
            for each in sorted(kept, key=lambda one: (one.letter.seq, one.letter.part)):
                verdict, reason = self._verdict(judgement, each)
                if verdict == "deliver":
                    passing.append(each)
                else:
                    self._close(replay, each, "superseded" if verdict == "supersede" else "refused", reason)
            rejected = self._write(replay, passing) if passing else ()
            breaker.look(len(rejected), len(passing), rejected[:3])
        return len(passing)

    def _verdict(self, judgement: Judgement, kept: KeptLetter) -> tuple[Verdict, str]:
        """Behind a letter that stays open, one that is held stays too."""
        verdict, reason = judgement.of(kept.letter)
        if kept.letter.state == "held" and verdict == "deliver":
            before = [place.number for place in judgement._open if _is_before(place, kept.letter)]
            if before:
                return "refuse", f"it is held behind letter {before[0]}"
        return verdict, reason

    def _write(self, replay: Replay, letters: Sequence[KeptLetter]) -> tuple[str, ...]:
        """Returns why the target refused some again."""
        delivered = self.sink.replayed(self.delivery, tuple(each.letter.event_id for each in letters))
        sent = [each for each in letters if each.letter.event_id not in delivered]
        rows, failed = self._rows(sent)
        refused = {each.letter.event_id: error for each, error in failed}
        refused |= self._send([each for each in sent if each.letter.event_id not in refused], rows)
        failpoint("dlq.replay.delivered")
        for each in letters:
            error = refused.get(each.letter.event_id)
            if error is None:
                reason = "the chain drops it now" if each in sent and not rows.get(each.number) else ""
                self._close(replay, each, "replayed", reason)
            else:
                self.journal.refused_again(each.number, *error)
                self.replays.note(replay.id, [(each.number, "rejected", error[1])])
        return tuple(message for _, message in refused.values())

    def _rows(
        self, letters: Sequence[KeptLetter]
    ) -> tuple[dict[int, tuple[pa.RecordBatch, ...]], list[tuple[KeptLetter, tuple[str, str]]]]:
        """What the writer is given for each letter, and those that a processor failed for again."""
        rows: dict[int, tuple[pa.RecordBatch, ...]] = {
            each.number: (unpacked(each.letter.row),) for each in letters if not each.letter.needs_log
        }
        of_log = [each for each in letters if each.letter.needs_log]
        if not of_log:
            return rows, []
        if self.rerun is None:
            raise SparkError("spark.internal", "letters that only the log has need Spark", hint="please report it")
        reruns = self.rerun(of_log)
        rows |= {number: each.rows for number, each in reruns.items()}
        errors = [(each, reruns[each.number].error) for each in of_log]
        return rows, [(each, error) for each, error in errors if error is not None]

    def _send(
        self, letters: Sequence[KeptLetter], rows: Mapping[int, tuple[pa.RecordBatch, ...]]
    ) -> dict[str, tuple[str, str]]:
        """Deliver and commit; returns what the target refuses, by event id."""
        batches = [(each, row) for each in letters for row in rows[each.number]]
        if not batches:
            return {}
        seqs = [each.letter.seq for each, _ in batches]
        ids = tuple(each.letter.event_id for each, _ in batches)
        span = Span(batches[0][0].letter.log_id, min(seqs), max(seqs) + 1, ids)
        written = self._written(span, [row for _, row in batches])
        refused = {_event_of(each, batches): (each.error.code, str(each.error)) for each in written.rejected}
        accepted = tuple(dict.fromkeys(event for event in ids if event not in refused))
        if accepted:
            done = Span(span.log_id, span.start, span.end, accepted)
            self.sink.commit(self.delivery, done, [written.receipt])
        return refused

    def _written(self, span: Span, rows: Sequence[pa.RecordBatch]) -> Written:
        try:
            return self.sink.open(self.delivery, span, 0).write(iter(rows))
        except TailraceError:
            raise
        except Exception as failure:
            text = f"{type(failure).__name__}: {failure}"
            hint = "This is a defect of the sink: please report it"
            raise SinkError("sink.failed", text, hint=hint, where=self.sink.id) from failure

    def _close(self, replay: Replay, kept: KeptLetter, outcome: Outcome, reason: str) -> None:
        if outcome in {"replayed", "superseded"}:
            self.journal.close(LetterFilter(numbers=(kept.number,)), outcome)
        self.replays.note(replay.id, [(kept.number, outcome, reason)])

    def _give_up_the_rest(self, replay: Replay, error: str | None) -> None:
        left = [each.number for each in self.replays.letters(replay.id, self.sink.id) if each.outcome is None]
        if error is None:
            self.replays.note(replay.id, [(number, "gone", "somebody closed or purged it") for number in left])
        else:
            self.replays.note(replay.id, [(number, "untried", error) for number in left])

    def _let_go(self) -> None:
        log_id = LogReader(self.log_path).log_id
        hold_log(self.journal, self.sink.id, log_id, self.log_path, required=self.sink.required)


def _is_before(place: LetterPlace, letter: Letter) -> bool:
    same = (place.log_id, place.schema, place.table) == (letter.log_id, letter.schema, letter.table)
    return same and place.key == letter.key and place.seq < letter.seq


def _cut(places: Sequence[LetterPlace], size: int) -> Iterator[list[int]]:
    """In order, in pieces of at most `size` in which no key is twice: what is behind a letter waits for its outcome."""
    piece: list[int] = []
    keys: set[tuple[str, str, str]] = set()
    for place in places:
        key = None if place.key is None else (place.schema, place.table, place.key)
        if piece and (len(piece) == size or key in keys or key is None):
            yield piece
            piece, keys = [], set()
        piece.append(place.number)
        if key is not None:
            keys.add(key)
    if piece:
        yield piece


def _event_of(rejected: Rejected, batches: Sequence[tuple[KeptLetter, pa.RecordBatch]]) -> str:
    """Whose row was refused: the letter's, of which it was made."""
    seq, event = (rejected.row.column(name)[0].as_py() for name in ("seq", "event_id"))
    same = [each.letter.event_id for each, row in batches if row.column("event_id")[0].as_py() == event]
    return same[0] if same else next(each.letter.event_id for each, _ in batches if each.letter.seq == seq)
