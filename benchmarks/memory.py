"""`memory`: the tap's largest resident size on one transaction, and on one five times as large."""

from __future__ import annotations

from benchmarks.meter import Meter
from benchmarks.readers import running_tap
from benchmarks.report import Bar, Measurement
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until

TIMES = 5
LARGEST_MIB = 450.0
GROWTH_PERCENT = 20.0


def memory(stage: Stage, rows: int) -> tuple[list[Measurement], list[Bar]]:
    """One tap process for each size, so that neither inherits the other's peak."""
    table = Table(stage.dsn, "memory")
    small, large = (_measure(stage, table, size) for size in (rows, TIMES * rows))
    table.close()
    before, after = (each.usage.peak_mib["tap"] for each in (small, large))
    growth = 100 * (after / before - 1)
    return [small, large], [
        Bar(f"tap RSS, transaction of {TIMES * rows:,} rows", after, "≤", LARGEST_MIB, "MiB"),
        Bar(f"growth of it from {rows:,} rows", growth, "≤", GROWTH_PERCENT, "%"),
    ]


def _measure(stage: Stage, table: Table, rows: int) -> Measurement:
    with running_tap(stage, f"memory_{rows}", table) as tap:
        say(f"memory: writing one transaction of {rows:,} rows")
        sender = stage.walsender(tap.slot)
        assert sender is not None
        with Meter(tap.roles() | {sender.pid: "walsender"}) as meter:
            table.write(rows, per_transaction=rows)
            until(lambda: tap.rows() >= rows, f"{rows} rows in the log", seconds=1800)
        say(f"memory: the tap's largest size was {meter.usage().peak_mib['tap']:.0f} MiB")
        return Measurement(f"memory {rows:,}", rows, meter.usage())
