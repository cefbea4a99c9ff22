"""Leases: which of several servers is the active one, by the store's clock.

Each new holder gets a higher epoch, by which whoever keeps it refuses what an earlier holder still sends. A holder
knows by its own clock when its lease lapses at the latest, and must have ended what it holds the lease for by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from tailrace.control.store import Store
from tailrace.control.tables import leases
from tailrace.control.upsert import insert_or

_AT = leases.c
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Epoch:
    """A holder's time with a lease. `lapses`: when it is over, unless it is renewed, by the holder's monotonic
    clock."""

    name: str
    holder: str
    number: int
    lapses: float


@dataclass(frozen=True)
class LeaseRow:
    """A lease as the store has it. Without a `holder`: it is free."""

    name: str
    holder: str | None
    epoch: int


class Leases:
    """The leases of a store. `monotonic` is the caller's own clock."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic

    def acquire(self, name: str, holder: str, ttl: timedelta) -> Epoch | None:
        """The lease, where nobody else has it. A holder is one process: whoever has it already keeps its epoch, and
        after it has lapsed even the same holder gets the next one."""
        lapses = self._monotonic() + ttl.total_seconds()
        with self._store.statement() as connection:
            now = self._store.now_us(connection)
            row = {"name": name, "holder": holder, "epoch": 1, "expires_us": now + ttl // _MICROSECOND}
            mine = sa.and_(_AT.holder == holder, _AT.expires_us > now)
            change = {"holder": holder, "expires_us": row["expires_us"]}
            change |= {"epoch": _AT.epoch + sa.case((mine, 0), else_=1)}
            taken = insert_or(connection, leases, row, change, sa.or_(mine, _AT.expires_us <= now))
            epoch = connection.execute(taken.returning(_AT.epoch)).scalar_one_or_none()
        return None if epoch is None else Epoch(name, holder, epoch, lapses)

    def renew(self, epoch: Epoch, ttl: timedelta) -> Epoch | None:
        """The same epoch for longer; None where it has lapsed, even if nobody else has taken it since."""
        lapses = self._monotonic() + ttl.total_seconds()
        with self._store.statement() as connection:
            now = self._store.now_us(connection)
            longer = sa.update(leases).where(*_of(epoch), _AT.expires_us > now)
            renewed = connection.execute(longer.values(expires_us=now + ttl // _MICROSECOND)).rowcount
        return replace(epoch, lapses=lapses) if renewed else None

    def release(self, epoch: Epoch) -> None:
        """Whoever wants it next need not wait. One that has lapsed is left alone."""
        with self._store.statement() as connection:
            connection.execute(sa.update(leases).where(*_of(epoch)).values(expires_us=0))

    def look(self, name: str) -> LeaseRow | None:
        """Who has it; None where nobody ever had."""
        with self._store.reading() as connection:
            now = self._store.now_us(connection)
            row: Any = connection.execute(sa.select(leases).where(_AT.name == name)).one_or_none()
        return None if row is None else LeaseRow(name, row.holder if row.expires_us > now else None, row.epoch)


def _of(epoch: Epoch) -> tuple[sa.ColumnElement[bool], ...]:
    return _AT.name == epoch.name, _AT.holder == epoch.holder, _AT.epoch == epoch.number
