"""How the slot fares: what it holds back, what the server will still keep for it, and when that ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.capture.postgres.catalog import PostgresCatalog, Table
from tailrace.capture.postgres.connection import REPAIR
from tailrace.config.values import MIB
from tailrace.errors import SetupError, SourceError

POLL_S = 10.0
WARN_SHARE = 0.5
REFUSE_SHARE = 0.8
WAL_PER_BYTE = 2
"""WAL that is written while a table of one byte is read: a cautious guess, since it depends on the other writers."""
_SAMPLES = 30

# Columns that not every version has are taken out of the row as JSON, which has what is there.
_LOOK = """
SELECT s.wal_status, (w.lsn - '0/0')::int8, coalesce(w.lsn - s.restart_lsn, 0)::int8, s.safe_wal_size,
       nullif((SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), -1) << 20,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool THEN 'conflict' END, '')
FROM pg_replication_slots s,
     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) w(lsn)
WHERE s.slot_name = %s
"""

_SIZE = """
SELECT coalesce(sum(pg_table_size(coalesce(p.relid, c.oid))), 0)::int8
FROM unnest(%s::text[], %s::text[]) t(schema, name)
JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
LEFT JOIN LATERAL pg_partition_tree(c.oid) p ON true
"""


@dataclass(frozen=True)
class SlotHealth:
    """A slot as the server sees it. `held_bytes` of WAL are kept for it; `budget` is how much may be, if bounded."""

    wal_status: str
    wal_lsn: int
    held_bytes: int
    safe_wal_size: int | None
    budget: int | None
    reason: str

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost" or bool(self.reason)


@dataclass(frozen=True)
class Finding:
    """Something a person should know before it becomes an error."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class SlotReading:
    """One look at the slot and at how far the log is behind the server.

    `lag_s` is an upper bound: everything older is in the log; None while there is nothing to tell it by.
    `time_to_loss_s` is how long the server's room for the slot lasts at the rate at which it shrank lately; None
    where it does not shrink or has no end.
    """

    wal_status: str
    lag_bytes: int
    lag_s: float | None
    held_bytes: int
    safe_wal_size: int | None
    time_to_loss_s: float | None
    findings: tuple[Finding, ...] = ()


def look(catalog: PostgresCatalog, slot: str) -> SlotHealth | None:
    """The slot's health on any supported version; None where there is no such slot."""
    found = catalog.rows(_LOOK, slot)
    if not found:
        return None
    status, lsn, held, safe, budget, reason = found[0]
    return SlotHealth(status or "lost", lsn, max(0, held), safe, budget, reason)


def check(slot: str, health: SlotHealth | None) -> list[Finding]:
    """Raise when the slot cannot give our changes any more; otherwise tell what may lead there."""
    if health is None:
        raise SourceError("source.position_lost", f"the replication slot {slot!r} is gone", hint=REPAIR)
    if health.lost:
        why = f" ({health.reason})" if health.reason else ""
        raise SourceError("source.position_lost", f"the replication slot {slot!r} lost its WAL{why}", hint=REPAIR)
    if health.wal_status == "unreserved":
        text = f"the slot {slot!r} is about to lose its WAL, at the server's next checkpoint"
        return [Finding("source.slot_endangered", text, "let the tap catch up, or raise max_slot_wal_keep_size")]
    if health.budget and health.held_bytes >= WARN_SHARE * health.budget:
        share = f"{health.held_bytes / MIB:,.0f} MiB of the {health.budget / MIB:,.0f} MiB that the server keeps for it"
        text = f"the slot {slot!r} holds {share}"
        return [Finding("source.slot_filling", text, "let the tap catch up, or raise max_slot_wal_keep_size")]
    return []


def preflight(catalog: PostgresCatalog, slot: str, tables: Sequence[Table]) -> list[Finding]:
    """Before a snapshot of `tables`: will the server keep the slot's WAL until it is done?

    Raises `source.wal_budget` where it most likely will not. A slot that does not exist yet holds nothing.
    """
    health = look(catalog, slot)
    findings = check(slot, health) if health else []
    limit = int(catalog.rows("SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size'")[0][0]) * MIB
    if limit < 0:
        return findings
    names = [table.schema for table in tables], [table.table for table in tables]
    [(size,)] = catalog.rows(_SIZE, *names)
    expected = (health.held_bytes if health else 0) + WAL_PER_BYTE * size
    text = (
        f"a snapshot of {size / MIB:,.0f} MiB may make the slot hold {expected / MIB:,.0f} MiB of WAL, "
        f"and the server keeps {limit / MIB:,.0f} MiB (max_slot_wal_keep_size)"
    )
    hint = "raise max_slot_wal_keep_size and reload the server, or take fewer tables at a time"
    if expected >= REFUSE_SHARE * limit:
        raise SetupError("source.wal_budget", text, hint=hint)
    if expected >= WARN_SHARE * limit:
        findings.append(Finding("source.wal_budget", text, hint))
    return findings


class SlotGuard:
    """Looks at a slot again and again, and remembers enough to see where it is going."""

    def __init__(self, catalog: PostgresCatalog, slot: str) -> None:
        self._catalog = catalog
        self._slot = slot
        self._samples: deque[tuple[float, SlotHealth]] = deque(maxlen=_SAMPLES)

    def read(self, now: float, settled: int, last_commit_s: float) -> SlotReading:
        """One more look, at time `now`, with the log's own position; raises when the slot is lost."""
        health = look(self._catalog, self._slot)
        findings = check(self._slot, health)
        assert health is not None
        self._samples.append((now, health))
        return SlotReading(
            health.wal_status,
            max(0, health.wal_lsn - settled),
            self._lag(now, settled, last_commit_s),
            health.held_bytes,
            health.safe_wal_size,
            self._time_to_loss(),
            tuple(findings),
        )

    @property
    def wal_lsn(self) -> int:
        """Where the server's WAL ended at the last look."""
        return self._samples[-1][1].wal_lsn if self._samples else 0

    def _lag(self, now: float, settled: int, last_commit_s: float) -> float | None:
        """Both the last look that is behind us and the newest commit we have bound what can be missing."""
        past = [at for at, health in self._samples if health.wal_lsn <= settled]
        known = max([*past, last_commit_s])
        return round(max(0.0, now - known), 3) if known else None

    def _time_to_loss(self) -> float | None:
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        if first.safe_wal_size is None or last.safe_wal_size is None or first.safe_wal_size <= last.safe_wal_size:
            return None
        rate = (first.safe_wal_size - last.safe_wal_size) / (end - start)
        return round(max(0, last.safe_wal_size) / rate, 1)
