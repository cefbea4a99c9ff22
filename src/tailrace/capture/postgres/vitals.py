"""What a tap shows of its stream."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.capture.postgres.health import SlotReading


@dataclass
class Vitals:
    """How far the stream is, and how its slot fared when it was last looked at, at `slot_at` (seconds since 1970)."""

    received_lsn: int = 0
    durable_lsn: int = 0
    rows: int = 0
    transactions: int = 0
    last_commit_us: int = 0
    slot_at: float | None = None
    wal_status: str = ""
    lag_bytes: int | None = None
    lag_s: float | None = None
    held_bytes: int | None = None
    safe_wal_size: int | None = None
    time_to_loss_s: float | None = None

    def take(self, reading: SlotReading, at: float) -> None:
        """The slot's part, from a new look at it."""
        self.slot_at = at
        self.wal_status, self.lag_bytes, self.lag_s = reading.wal_status, reading.lag_bytes, reading.lag_s
        self.held_bytes, self.safe_wal_size = reading.held_bytes, reading.safe_wal_size
        self.time_to_loss_s = reading.time_to_loss_s
