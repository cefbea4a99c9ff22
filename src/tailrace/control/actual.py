"""What is: the actual state of pipelines and their parts, and how each came there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from tailrace.control.counters import next_number
from tailrace.control.events import add_event
from tailrace.control.store import Store
from tailrace.control.tables import actual_states, transitions
from tailrace.control.upsert import printable, put

State = Literal["created", "starting", "snapshotting", "running", "degraded", "paused", "stopped", "failed"]
SYSTEM = "system"
"""The actor of what nobody asked for."""
KEPT = 1_000
"""Transitions of one object, at most."""
_AT, _STEP = actual_states.c, transitions.c


@dataclass(frozen=True)
class Subject:
    """What has a state: an object, or a `part` of it, such as `sink:ID`, `source:ID` or `table:SINK/NAME`."""

    name: str
    part: str = ""
    kind: str = "pipeline"


@dataclass(frozen=True)
class Reason:
    """Why something is as it is: nothing, where that needs no words."""

    code: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Actual:
    """The state of a subject, since when, and why."""

    subject: Subject
    state: State
    since_us: int
    reason: Reason


@dataclass(frozen=True)
class Transition:
    """A step from one state, or from none, to another; or to another reason of the same state. `cause` says why."""

    number: int
    subject: Subject
    before: State | None
    after: State
    code: str
    cause: str
    actor: str
    at_us: int


class States:
    """The actual states in a store."""

    def __init__(self, store: Store, kept: int = KEPT) -> None:
        self._store, self._kept = store, kept

    def set(
        self, subject: Subject, state: State, reason: Reason | None = None, *, cause: str, actor: str = SYSTEM
    ) -> bool:
        """Whether that is a change of the state or of the reason's code: only then there is a transition. Other
        words for the same reason are kept without one."""
        reason = _printable(reason or Reason())
        with self._store.transaction() as connection:
            before = _current(connection, subject)
            if before is not None and (before.state, before.reason) == (state, reason):
                return False
            now = self._store.now_us(connection)
            since = now if before is None or before.state != state else before.since_us
            put(connection, actual_states, {**vars(subject), "state": state, "since_us": since, **vars(reason)})
            changed = before is None or (before.state, before.reason.code) != (state, reason.code)
            if changed:
                self._add(
                    connection, subject, None if before is None else before.state, state, reason.code, cause, actor, now
                )
        return changed

    def get(self, subject: Subject) -> Actual | None:
        with self._store.reading() as connection:
            return _current(connection, subject)

    def of(self, name: str, kind: str = "pipeline") -> Mapping[str, Actual]:
        """The states of an object (`""`) and its parts."""
        query = sa.select(actual_states).where(_AT.kind == kind, _AT.name == name).order_by(_AT.part)
        with self._store.reading() as connection:
            return {row.part: _actual(row) for row in connection.execute(query)}

    def all(self, kind: str = "pipeline") -> list[Actual]:
        """Every object's and every part's, by name."""
        query = sa.select(actual_states).where(_AT.kind == kind).order_by(_AT.name, _AT.part)
        with self._store.reading() as connection:
            return [_actual(row) for row in connection.execute(query)]

    def transitions(
        self, name: str, kind: str = "pipeline", *, before: int | None = None, limit: int = 100
    ) -> list[Transition]:
        """Of an object and its parts, the newest first; the next page is `before` the last one's number."""
        query = sa.select(transitions).where(_STEP.kind == kind, _STEP.name == name)
        if before is not None:
            query = query.where(_STEP.number < before)
        with self._store.reading() as connection:
            return [_transition(row) for row in connection.execute(query.order_by(_STEP.number.desc()).limit(limit))]

    def forget(self, subject: Subject) -> None:
        """The part is gone; where it has no `part`, the object with its parts and their transitions."""
        with self._store.transaction() as connection:
            if subject.part:
                connection.execute(sa.delete(actual_states).where(*_same(subject)))
                return
            for table in (actual_states, transitions):
                of_object = (table.c.kind == subject.kind, table.c.name == subject.name)
                connection.execute(sa.delete(table).where(*of_object))

    def _add(
        self,
        connection: sa.Connection,
        subject: Subject,
        before: State | None,
        after: State,
        code: str,
        cause: str,
        actor: str,
        now: int,
    ) -> None:
        """A transition, in place of the oldest where there are too many, and its event."""
        step = {"before": before, "after": after, "code": code, "cause": cause, "actor": actor}
        number = next_number(connection, "transitions")
        connection.execute(sa.insert(transitions).values(number=number, **vars(subject), **step, at_us=now))
        of_object = (_STEP.kind == subject.kind, _STEP.name == subject.name)
        newest = sa.select(_STEP.number).where(*of_object).order_by(_STEP.number.desc())
        too_old = newest.offset(self._kept).limit(1).scalar_subquery()
        connection.execute(sa.delete(transitions).where(*of_object, _STEP.number <= too_old))
        add_event(self._store, connection, subject.kind, subject.name, "state", {"part": subject.part, **step})


def _printable(reason: Reason) -> Reason:
    return replace(reason, message=printable(reason.message), hint=printable(reason.hint))


def _same(subject: Subject) -> tuple[sa.ColumnElement[bool], ...]:
    return _AT.kind == subject.kind, _AT.name == subject.name, _AT.part == subject.part


def _current(connection: sa.Connection, subject: Subject) -> Actual | None:
    row = connection.execute(sa.select(actual_states).where(*_same(subject))).one_or_none()
    return None if row is None else _actual(row)


def _actual(row: sa.Row[Any]) -> Actual:
    subject = Subject(row.name, row.part, row.kind)
    return Actual(subject, row.state, row.since_us, Reason(row.code, row.message, row.hint))


def _transition(row: sa.Row[Any]) -> Transition:
    subject = Subject(row.name, row.part, row.kind)
    return Transition(row.number, subject, row.before, row.after, row.code, row.cause, row.actor, row.at_us)
