"""What a tap shows of its stream."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.capture.postgres.health import Reading


@dataclass
class Vitals:
    """How far the stream is, and how its slot fares."""

    received_lsn: int = 0
    durable_lsn: int = 0
    rows: int = 0
    transactions: int = 0
    last_commit_us: int = 0
    wal_status: str = ""
    lag_bytes: int = 0
    lag_s: float | None = None
    held_bytes: int = 0
    safe_wal_size: int | None = None
    time_to_loss_s: float | None = None

    def take(self, reading: Reading) -> None:
        """The slot's part, from a new look at it."""
        self.wal_status, self.lag_bytes, self.lag_s = reading.wal_status, reading.lag_bytes, reading.lag_s
        self.held_bytes, self.safe_wal_size = reading.held_bytes, reading.safe_wal_size
        self.time_to_loss_s = reading.time_to_loss_s
