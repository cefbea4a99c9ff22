"""Looks after the slot while the stream runs, on the other connection: its health, and heartbeats."""

from __future__ import annotations

import time

from tailrace.capture.postgres import health
from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.vitals import Vitals
from tailrace.errors import Action, TailraceError, decide

HEARTBEAT = "tailrace.heartbeat"
"""The prefix of the messages we put into the WAL ourselves."""
HEARTBEAT_BYTES = 1 << 20
"""WAL that others must have written since the last heartbeat: a heartbeat alone must not keep a server busy."""


class SlotWatch:
    """The watch over one slot. `heartbeat_s` is 0 where there are no heartbeats."""

    def __init__(
        self, catalog: PostgresCatalog, slot: str, vitals: Vitals, *, heartbeat_s: float, position: int
    ) -> None:
        self._catalog, self._vitals = catalog, vitals
        self._guard = health.SlotGuard(catalog, slot)
        self._heartbeat_s, self._heartbeat_lsn = heartbeat_s, position
        self._last_look = 0.0
        self.warnings: list[str] = []

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._last_look + min(health.POLL_S, self._heartbeat_s or health.POLL_S)

    def look(self, settled: int, last_arrival: float) -> None:
        """The slot's health, and a heartbeat where the stream was silent for long enough.

        Raises when the slot is lost. A look that fails is left out: the stream itself may be well.
        """
        self._last_look = now = time.monotonic()
        try:
            at = time.time()
            self._show(self._guard.read(at, settled, self._vitals.last_commit_us / 1e6), at)
            self._beat(now - last_arrival)
        except TailraceError as error:
            if decide(error) is not Action.RETRY:
                raise

    def _show(self, reading: health.SlotReading, at: float) -> None:
        self._vitals.take(reading, at)
        self.warnings = [f"{one.message}: {one.hint}" for one in reading.findings]

    def _beat(self, silent_s: float) -> None:
        """Put a message into WAL that others fill while our tables are idle: decoding it lets the slot move on."""
        grown = self._guard.wal_lsn - self._heartbeat_lsn
        if not self._heartbeat_s or silent_s < self._heartbeat_s or grown < HEARTBEAT_BYTES:
            return
        self._heartbeat_lsn = self._guard.wal_lsn
        self._catalog.execute("SELECT pg_logical_emit_message(false, %s, '')", HEARTBEAT)
