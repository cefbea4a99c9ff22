"""Who did what: a row for each change that somebody asked for, written in the change's own transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tailrace.config.secret import redact
from tailrace.control.counters import next_number
from tailrace.control.store import Store
from tailrace.control.tables import audit

_AT = audit.c


@dataclass(frozen=True)
class AuditRow:
    """`action` is like `document.put`; `detail` has no secrets."""

    number: int
    actor: str
    action: str
    kind: str
    name: str
    detail: Mapping[str, Any]
    at_us: int


@dataclass(frozen=True)
class AuditFilter:
    """Rows that fulfil all that is said; times are `[since_us, until_us)`."""

    actor: str | None = None
    action: str | None = None
    kind: str | None = None
    name: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """What SQL asks."""
        equal = {_AT.actor: self.actor, _AT.action: self.action, _AT.kind: self.kind, _AT.name: self.name}
        for column, value in equal.items():
            if value is not None:
                yield column == value
        if self.since_us is not None:
            yield _AT.at_us >= self.since_us
        if self.until_us is not None:
            yield _AT.at_us < self.until_us


EVERYTHING = AuditFilter()


class Audit:
    """The audit rows of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, actor: str, action: str, kind: str, name: str, detail: Mapping[str, Any] | None = None) -> None:
        """A row for what changes nothing in the store, such as a refused login."""
        with self._store.transaction() as connection:
            add_audit(self._store, connection, actor, action, kind, name, detail)

    def list(
        self, wanted: AuditFilter = EVERYTHING, *, before: int | None = None, limit: int = 100
    ) -> Sequence[AuditRow]:
        """The newest first; the next page is `before` the last row's number."""
        query = sa.select(audit).where(*wanted.conditions()).order_by(_AT.number.desc()).limit(limit)
        if before is not None:
            query = query.where(_AT.number < before)
        with self._store.reading() as connection:
            return [AuditRow(**{**row._mapping, "detail": json.loads(row.detail)}) for row in connection.execute(query)]


def add_audit(
    store: Store,
    connection: sa.Connection,
    actor: str,
    action: str,
    kind: str,
    name: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """A row in the transaction of the change. Passwords that its texts show are blanked."""
    row = {"actor": actor, "action": action, "kind": kind, "name": name, "detail": json.dumps(_blanked(detail or {}))}
    number, now = next_number(connection, "audit"), store.now_us(connection)
    connection.execute(sa.insert(audit).values(number=number, at_us=now, **row))


def _blanked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _blanked(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_blanked(each) for each in value]
    return redact(value) if isinstance(value, str) else value
