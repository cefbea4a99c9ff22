"""What happened, for those that watch: the newest events, under numbers that only grow.

An event is written in the transaction of what it tells, and numbers become visible in their order: whoever has read up
to a number has missed nothing before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tailrace.control.counters import next_number
from tailrace.control.store import Store
from tailrace.control.tables import events

KEPT = 10_000
"""Events, at most."""
_AT = events.c


@dataclass(frozen=True)
class Event:
    """`type` is like `document.put`; `kind` and `name` say of which object."""

    number: int
    at_us: int
    kind: str
    name: str
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class EventPage:
    """Events in order. `missed`: there were others before them, which are no longer kept, so the reader looks at the
    objects themselves."""

    events: tuple[Event, ...]
    missed: bool


class Events:
    """The events of a store, the newest `kept` of them."""

    def __init__(self, store: Store, kept: int = KEPT) -> None:
        self._store, self._kept = store, kept

    def add(self, kind: str, name: str, type: str, data: Mapping[str, Any] | None = None) -> Event:
        """An event of something that is no change of the store."""
        with self._store.transaction() as connection:
            return add_event(self._store, connection, kind, name, type, data, kept=self._kept)

    def after(self, number: int, limit: int = 100) -> EventPage:
        """Those after `number`, the oldest first."""
        query = sa.select(events).where(_AT.number > number).order_by(_AT.number).limit(limit)
        with self._store.reading() as connection:
            found = tuple(_event(row) for row in connection.execute(query))
        return EventPage(found, missed=bool(found) and found[0].number > number + 1)

    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        with self._store.reading() as connection:
            return connection.execute(sa.select(sa.func.max(_AT.number))).scalar_one_or_none() or 0


def add_event(
    store: Store,
    connection: sa.Connection,
    kind: str,
    name: str,
    type: str,
    data: Mapping[str, Any] | None = None,
    *,
    kept: int = KEPT,
) -> Event:
    """An event in the transaction of what it tells."""
    made = Event(next_number(connection, "events"), store.now_us(connection), kind, name, type, dict(data or {}))
    row = {"number": made.number, "at_us": made.at_us, "kind": kind, "name": name, "type": type}
    connection.execute(sa.insert(events).values(**row, data=json.dumps(made.data)))
    connection.execute(sa.delete(events).where(_AT.number <= made.number - kept))
    return made


def _event(row: sa.Row[Any]) -> Event:
    return Event(**{**row._mapping, "data": json.loads(row.data)})
