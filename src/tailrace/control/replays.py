"""Replays: dead letters that somebody chose to deliver again, what would happen to each, and what did.

    frozen (a dry run: the choice and its verdicts) → requested → done | failed

A replay takes the letters of its choice and no others, however many came since.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from tailrace.control.store import Store
from tailrace.control.tables import letter_replays, replayed_letters
from tailrace.errors import ConfigError

ReplayState = Literal["frozen", "requested", "done", "failed"]
Verdict = Literal["deliver", "supersede", "refuse"]
"""What would happen to a letter: it is delivered again; it is closed, because the target has newer; or it stays."""
Outcome = Literal["replayed", "superseded", "refused", "rejected", "gone", "untried"]
"""What did. `rejected`: the target refused it again. `gone`: somebody closed or purged it meanwhile. `untried`: the
replay stopped before it."""

_REPLAY, _LETTER = letter_replays.c, replayed_letters.c


@dataclass(frozen=True)
class Replay:
    """A choice of letters. `rate` bounds how many are delivered a second; `forced`: also those that were overtaken."""

    id: str
    pipeline: str
    state: ReplayState
    forced: bool
    rate: int | None
    created_us: int
    error: str | None


@dataclass(frozen=True)
class ChosenLetter:
    """A letter of a replay. `reason` is why, of the verdict or, once there is one, of the outcome."""

    number: int
    sink: str
    verdict: Verdict
    reason: str
    outcome: Outcome | None = None


class Replays:
    """The replays of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store, self._pipeline = store, pipeline

    def freeze(self, letters: Sequence[ChosenLetter]) -> Replay:
        """A choice that can be carried out later."""
        made = {"id": uuid.uuid4().hex[:8], "pipeline": self._pipeline, "state": "frozen", "forced": 0}
        with self._store.transaction() as connection:
            connection.execute(sa.insert(letter_replays).values(**made, created_us=int(time.time() * 1e6)))
            rows = [
                {"replay": made["id"], "number": each.number, "sink": each.sink, "verdict": each.verdict}
                | {"reason": each.reason, "outcome": each.outcome}
                for each in letters
            ]
            if rows:
                connection.execute(sa.insert(replayed_letters), rows)
        return self.get(str(made["id"]))

    def get(self, replay: str) -> Replay:
        """Raises `dlq.no_replay`."""
        query = sa.select(letter_replays).where(_REPLAY.id == replay, _REPLAY.pipeline == self._pipeline)
        with self._store.transaction() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise ConfigError(
                "dlq.no_replay",
                f"there is no replay {replay!r} of this pipeline",
                hint="make one: tailrace dlq replay PIPELINE.yaml",
            )
        return _replay(row)

    def requested(self) -> list[Replay]:
        """What waits for the pipeline's process, the oldest first."""
        of_pipeline = (_REPLAY.pipeline == self._pipeline, _REPLAY.state == "requested")
        query = sa.select(letter_replays).where(*of_pipeline).order_by(_REPLAY.created_us)
        with self._store.transaction() as connection:
            return [_replay(row) for row in connection.execute(query)]

    def request(self, replay: str, *, forced: bool, rate: int | None) -> Replay:
        """It is to be carried out. One that is over stays so."""
        waiting = sa.update(letter_replays).where(_REPLAY.id == replay, _REPLAY.state.in_(["frozen", "requested"]))
        with self._store.transaction() as connection:
            connection.execute(waiting.values(state="requested", forced=int(forced), rate=rate))
        return self.get(replay)

    def letters(self, replay: str, sink: str | None = None) -> list[ChosenLetter]:
        """In the order of their numbers."""
        query = sa.select(replayed_letters).where(_LETTER.replay == replay).order_by(_LETTER.number)
        if sink is not None:
            query = query.where(_LETTER.sink == sink)
        with self._store.transaction() as connection:
            return [_chosen(row) for row in connection.execute(query)]

    def note(self, replay: str, outcomes: Sequence[tuple[int, Outcome, str]]) -> None:
        """What became of letters, by their numbers, and why."""
        this = (_LETTER.replay == replay, _LETTER.number == sa.bindparam("of_number"))
        told = sa.update(replayed_letters).where(*this)
        rows = [{"of_number": number, "outcome": outcome, "reason": reason} for number, outcome, reason in outcomes]
        if rows:
            with self._store.transaction() as connection:
                connection.execute(told, rows)

    def settle(self, replay: str, error: str | None = None) -> Replay:
        """It is over once every letter has an outcome; failed, where there is an `error` of one sink."""
        open_letters = sa.exists().where(_LETTER.replay == replay, _LETTER.outcome.is_(None))
        this = sa.update(letter_replays).where(_REPLAY.id == replay)
        with self._store.transaction() as connection:
            if error is not None:
                connection.execute(this.values(error=error))
            over = this.where(_REPLAY.state == "requested", ~open_letters)
            failed = sa.case((_REPLAY.error.is_(None), "done"), else_="failed")
            connection.execute(over.values(state=failed))
        return self.get(replay)

    def counts(self, replay: str) -> Counter[str]:
        """How many letters have each outcome, or, without one, each verdict."""
        return Counter(each.outcome or each.verdict for each in self.letters(replay))


def _replay(row: sa.Row[Any]) -> Replay:
    return Replay(**{**row._mapping, "forced": bool(row.forced)})


def _chosen(row: sa.Row[Any]) -> ChosenLetter:
    return ChosenLetter(row.number, row.sink, row.verdict, row.reason, row.outcome)
