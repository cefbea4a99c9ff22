"""What a verification found, and where it is kept for later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace.machine.durable import make_directory, replace_file

Values = Mapping[str, str | None]


@dataclass(frozen=True)
class Shown:
    """A differing row in detail. Values are texts, by column; None where a side has no such row."""

    key: Mapping[str, Any]
    kind: str
    columns: tuple[str, ...]
    source: Values | None
    lake: Values | None


@dataclass
class TableReport:
    """One table. `offset` and `position`: everything of the source up to there was compared."""

    sink: str
    table: str
    rows: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    """How many there are of each kind."""
    unsettled: int = 0
    """Rows that changed so often that nothing can be said about them."""
    repaired: int = 0
    shown: list[Shown] = field(default_factory=list)
    offset: int | None = None
    position: str | None = None
    at_us: int = 0
    problem: str = ""
    """Why the table could not be compared."""

    @property
    def differing(self) -> int:
        return sum(self.differences.values())

    @property
    def equal(self) -> bool:
        return not (self.differing or self.unsettled or self.problem)

    def as_dict(self, *, values: bool) -> dict[str, Any]:
        """For machines; the rows' values, which are the user's data, only where they are asked for. Keys are, too: they
        are what names a row."""
        hidden = () if values else ("source", "lake")
        shown = [{k: v for k, v in asdict(each).items() if k not in hidden} for each in self.shown]
        return {**asdict(self), "shown": shown, "equal": self.equal}


def save(file: Path, log_id: str, reports: list[TableReport]) -> None:
    """Remember the tables' newest verification, beside what is known of others."""
    known = load(file)
    told = {each.table: {**each.as_dict(values=False), "log_id": log_id} for each in reports}
    for each in told.values():
        del each["shown"]
    make_directory(file.parent)
    replace_file(file, json.dumps(known | told, indent=1))


def load(file: Path) -> dict[str, Any]:
    """The tables' last verifications, by name; nothing where there was none."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    return found
