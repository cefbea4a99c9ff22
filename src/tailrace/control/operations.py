"""Operations: long work that somebody asked for, and how far it is.

queued ─▶ running ─┬─▶ done | failed
   ▲         │     └─▶ cancelled     by whoever does it, once it was asked to
   │         └──▶ queued             whoever did it is gone
   └──────────▶ cancelled            nobody had begun
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from tailrace.control.audit import add_audit
from tailrace.control.counters import next_number
from tailrace.control.events import add_event
from tailrace.control.store import Store
from tailrace.control.tables import operations
from tailrace.errors import ConfigError, TailraceError

OperationState = Literal["queued", "running", "done", "failed", "cancelled"]
Json = Mapping[str, Any]
_AT = operations.c
_JSON = ("request", "progress", "result", "error")


@dataclass(frozen=True)
class Operation:
    """Work of a `kind` on an `object`, as `request` says. `holder`: who does it. `error` is a `TailraceError` as a
    dictionary."""

    id: str
    number: int
    kind: str
    object: str
    actor: str
    request: Json
    idempotency_key: str | None
    state: OperationState
    holder: str | None
    progress: Json
    result: Json | None
    error: Json | None
    requested_us: int
    started_us: int | None
    ended_us: int | None
    cancel_requested: bool

    @property
    def ended(self) -> bool:
        return self.ended_us is not None


@dataclass(frozen=True)
class OperationFilter:
    """Operations that fulfil all that is said."""

    kind: str | None = None
    object: str | None = None
    states: tuple[OperationState, ...] = ()

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """What SQL asks."""
        if self.kind is not None:
            yield _AT.kind == self.kind
        if self.object is not None:
            yield _AT.object == self.object
        if self.states:
            yield _AT.state.in_(self.states)


ANY = OperationFilter()


class Operations:
    """The operations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def request(
        self, kind: str, object: str, request: Json | None = None, *, actor: str, idempotency_key: str | None = None
    ) -> Operation:
        """New work; under a key that this kind has had, the operation that it made. Raises `store.conflict` where
        that one was for something else."""
        asked = json.dumps(dict(request or {}), sort_keys=True)
        with self._store.transaction() as connection:
            known = _of_key(connection, kind, idempotency_key)
            if known is not None:
                return _same_request(known, object, asked)
            row = {"id": str(uuid.uuid4()), "number": next_number(connection, "operations"), "kind": kind}
            row |= {"object": object, "actor": actor, "request": asked, "idempotency_key": idempotency_key}
            row |= {"state": "queued", "progress": "{}", "requested_us": self._store.now_us(connection)}
            connection.execute(sa.insert(operations).values(**row))
            add_audit(self._store, connection, actor, "operation.request", kind, object, {"id": row["id"]})
            return self._told(connection, str(row["id"]))

    def get(self, operation: str) -> Operation:
        """Raises `operation.missing`."""
        with self._store.reading() as connection:
            return _get(connection, operation)

    def list(
        self, wanted: OperationFilter = ANY, *, before: int | None = None, limit: int = 100
    ) -> Sequence[Operation]:
        """The newest first; the next page is `before` the last one's number."""
        query = sa.select(operations).where(*wanted.conditions()).order_by(_AT.number.desc()).limit(limit)
        if before is not None:
            query = query.where(_AT.number < before)
        with self._store.reading() as connection:
            return [_operation(row) for row in connection.execute(query)]

    def claim(self, holder: str, kinds: Sequence[str]) -> Operation | None:
        """The oldest that waits, for `holder` to do. Nobody else gets it."""
        waiting = sa.select(_AT.id).where(_AT.state == "queued", _AT.kind.in_(kinds)).order_by(_AT.number).limit(1)
        with self._store.transaction() as connection:
            found = connection.execute(waiting).scalar_one_or_none()
            if found is None:
                return None
            values = {"state": "running", "holder": holder, "started_us": self._store.now_us(connection)}
            connection.execute(sa.update(operations).where(_AT.id == found).values(**values))
            return self._told(connection, found)

    def report(self, operation: str, holder: str, progress: Json) -> bool:
        """How far it is. False: `holder` is to stop, because it was asked to or no longer has it."""
        with self._store.transaction() as connection:
            mine = sa.update(operations).where(*_held(operation, holder)).values(progress=json.dumps(dict(progress)))
            if not connection.execute(mine).rowcount:
                return False
            return not self._told(connection, operation).cancel_requested

    def finish(
        self, operation: str, holder: str, *, result: Json | None = None, error: TailraceError | None = None
    ) -> bool:
        """It is done; failed, where there is an `error`. False where `holder` no longer has it."""
        values = {
            "state": "done" if error is None else "failed",
            "result": None if result is None else json.dumps(dict(result)),
            "error": None if error is None else json.dumps(error.as_dict()),
        }
        return self._end(operation, holder, values)

    def stop(self, operation: str, holder: str) -> bool:
        """`holder` gave it up, because it was asked to."""
        return self._end(operation, holder, {"state": "cancelled"})

    def cancel(self, operation: str, *, actor: str) -> Operation:
        """End it where nobody has begun; ask whoever does it to stop; leave alone what is over."""
        with self._store.transaction() as connection:
            found = _get(connection, operation)
            if found.ended or found.cancel_requested:
                return found
            values: dict[str, Any] = {"cancel_requested": 1}
            if found.state == "queued":
                values |= {"state": "cancelled", "ended_us": self._store.now_us(connection)}
            connection.execute(sa.update(operations).where(_AT.id == operation).values(**values))
            add_audit(self._store, connection, actor, "operation.cancel", found.kind, found.object, {"id": operation})
            return self._told(connection, operation)

    def requeue(self, holder: str) -> Sequence[Operation]:
        """What a `holder` that is gone had begun waits again, or is cancelled where that was asked for."""
        with self._store.transaction() as connection:
            held = sa.select(_AT.id, _AT.cancel_requested).where(_AT.state == "running", _AT.holder == holder)
            now, left = self._store.now_us(connection), connection.execute(held.order_by(_AT.number)).all()
            again = {"state": "queued", "started_us": None}
            for found, cancelled in left:
                values = {"state": "cancelled", "ended_us": now} if cancelled else again
                connection.execute(sa.update(operations).where(_AT.id == found).values(**values, holder=None))
            return [self._told(connection, found) for found, _ in left]

    def _end(self, operation: str, holder: str, values: dict[str, Any]) -> bool:
        with self._store.transaction() as connection:
            values = {**values, "ended_us": self._store.now_us(connection)}
            mine = sa.update(operations).where(*_held(operation, holder)).values(**values)
            if not connection.execute(mine).rowcount:
                return False
            self._told(connection, operation)
        return True

    def _told(self, connection: sa.Connection, operation: str) -> Operation:
        """The operation as it is now, after an event says so."""
        found = _get(connection, operation)
        data = {"id": found.id, "state": found.state, "progress": found.progress}
        add_event(self._store, connection, found.kind, found.object, "operation", data)
        return found


def _held(operation: str, holder: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _AT.id == operation, _AT.state == "running", _AT.holder == holder


def _of_key(connection: sa.Connection, kind: str, key: str | None) -> Operation | None:
    if key is None:
        return None
    same = sa.select(operations).where(_AT.kind == kind, _AT.idempotency_key == key)
    row = connection.execute(same).one_or_none()
    return None if row is None else _operation(row)


def _same_request(known: Operation, object: str, asked: str) -> Operation:
    if (known.object, json.dumps(known.request, sort_keys=True)) == (object, asked):
        return known
    raise ConfigError(
        "store.conflict",
        f"the idempotency key {known.idempotency_key!r} was used for another request",
        hint="a new request needs a new key; the same request again must be the same in every field",
        where=f"operation/{known.id}",
    )


def _get(connection: sa.Connection, operation: str) -> Operation:
    row = connection.execute(sa.select(operations).where(_AT.id == operation)).one_or_none()
    if row is None:
        hint = "list the operations: it may be of another store"
        raise ConfigError("operation.missing", f"there is no operation {operation!r}", hint=hint)
    return _operation(row)


def _operation(row: sa.Row[Any]) -> Operation:
    values = dict(row._mapping)
    parsed = {name: None if values[name] is None else json.loads(values[name]) for name in _JSON}
    return Operation(**{**values, **parsed, "cancel_requested": bool(values["cancel_requested"])})
