"""Results: measurements, the bars they are held against, and how both are shown."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.meter import Usage

ROLES = ("tap", "driver", "spark jvm", "spark workers", "connect", "broker", "walsender", "pg_recvlogical")


@dataclass(frozen=True)
class Measurement:
    """What one reader did with `rows` rows. `more` has what only it can say, units in the names."""

    name: str
    rows: int
    usage: Usage
    more: dict[str, float] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.usage.wall_s

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_s": round(self.rows_per_s)}


@dataclass(frozen=True)
class Bar:
    """A promise: `value` is at least (or at most) `limit`."""

    name: str
    value: float
    relation: str
    limit: float
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.relation == "≥" else self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "value": round(self.value, 3), "met": self.met}


@dataclass
class Report:
    """All results of a run."""

    rows: int
    measurements: list[Measurement] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    profiles: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, measurements: Iterable[Measurement], bars: Iterable[Bar]) -> None:
        self.measurements += measurements
        self.bars += bars

    def as_json(self) -> str:
        parts = {
            "machine": machine(),
            "rows": self.rows,
            "bars": [bar.as_dict() for bar in self.bars],
            "measurements": [measurement.as_dict() for measurement in self.measurements],
            "profiles": self.profiles,
        }
        return json.dumps(parts, indent=2, ensure_ascii=False)

    def show(self, console: Console) -> None:
        console.print(self._measurement_table())
        if self.bars:
            console.print(self._bar_table())
        for name, shares in self.profiles.items():
            console.print(_profile_table(name, shares))
        missed = [bar.name for bar in self.bars if not bar.met]
        if self.bars:
            console.print(f"MISSED: {', '.join(missed)}" if missed else "Every bar is met.")

    def _measurement_table(self) -> Table:
        roles = [role for role in ROLES if any(role in each.usage.cpu_s for each in self.measurements)]
        table = Table("", "rows", "wall s", "rows/s", *(f"{role}\nCPU-s / MiB" for role in roles), "others\ncores", "")
        for each in self.measurements:
            usage = each.usage
            costs = [
                f"{usage.cpu_s[role]:.2f} / {usage.peak_mib[role]:.0f}" if role in usage.cpu_s else "" for role in roles
            ]
            more = ", ".join(f"{name} {value:g}" for name, value in each.more.items())
            rate = f"{each.rows_per_s:,.0f}"
            table.add_row(
                each.name,
                f"{each.rows:,}",
                f"{usage.wall_s:.2f}",
                rate,
                *costs,
                f"{usage.other_cores:.2f}",
                more,
            )
        return table

    def _bar_table(self) -> Table:
        table = Table("bar", "measured", "wanted", "")
        for bar in self.bars:
            wanted = f"{bar.relation} {bar.limit:g} {bar.unit}"
            table.add_row(bar.name, f"{bar.value:.3g} {bar.unit}", wanted, "met" if bar.met else "MISSED")
        return table


def best(measurements: Iterable[Measurement], name: str) -> Measurement:
    """The fastest of those called `name`: noise only ever makes one slower."""
    return max((each for each in measurements if each.name == name), key=lambda each: each.rows_per_s)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    packages = {name: version(name) for name in ("pyspark", "pyarrow", "psycopg", "confluent-kafka")}
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **packages,
    }


def _profile_table(name: str, shares: dict[str, float]) -> Table:
    table = Table(name, "share")
    for place, share in shares.items():
        table.add_row(place, f"{share:.1%}")
    return table
