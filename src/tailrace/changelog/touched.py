"""What some transactions did to a table, key by key: the one account of it, for snapshots and for verification.

Whoever read the table without seeing these transactions asks here: which of its rows are older than the log's, which
rows the log knows in every column, and which it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from tailrace.change import OPS

_TRUNCATE, _DELETE = OPS.index("t"), OPS.index("d")
_CHANGES = frozenset(OPS.index(op) for op in "cud")


class Known(Enum):
    """What the changes of a key, taken together, say of its row."""

    GONE = auto()
    WHOLE = auto()
    """The last change has every column."""
    IN_PARTS = auto()
    """The last change leaves columns out that an earlier one has."""
    PARTLY = auto()
    """Columns are left out that no change has."""


@dataclass
class Touched:
    """Changes are added in the log's order. Keys are spelled as in the log."""

    rows: dict[str, Known] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    """The last image of keys whose row is `WHOLE`, where images were given."""
    truncated: bool = False
    keyless: bool = False
    """Whether there were changes that name no row."""

    def add(self, op: int, key: str | None, after: str | None, unchanged: str | None) -> None:
        if op == _TRUNCATE:
            self.truncated, self.rows = True, dict.fromkeys(self.rows, Known.GONE)
            self.images.clear()
        elif op in _CHANGES and key is None:
            self.keyless = True
        elif op in _CHANGES and key is not None:
            self.rows[key] = known = self._known(op, key, unchanged)
            self.images.pop(key, None)
            if known is Known.WHOLE and after is not None:
                self.images[key] = after

    def _known(self, op: int, key: str, unchanged: str | None) -> Known:
        if op == _DELETE:
            return Known.GONE
        if unchanged is None:
            return Known.WHOLE
        # Over a row that is gone, columns are left out of one that had another key before.
        told = self.rows.get(key) in (Known.WHOLE, Known.IN_PARTS)
        return Known.IN_PARTS if told else Known.PARTLY

    @property
    def everything(self) -> bool:
        """Whether no row can be said to be untouched."""
        return self.truncated or self.keyless

    @property
    def keys(self) -> set[str]:
        return set(self.rows)

    @property
    def partial(self) -> set[str]:
        """Keys of which no single change has the whole row."""
        return self._with(Known.IN_PARTS, Known.PARTLY)

    @property
    def owed(self) -> set[str]:
        """Keys of which all changes together do not have the whole row: only the source does."""
        return self._with(Known.PARTLY)

    def _with(self, *states: Known) -> set[str]:
        return {key for key, known in self.rows.items() if known in states}
