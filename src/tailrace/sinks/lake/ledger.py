"""What a lake sink knows of its tables beside the tables' own marks: a small file, replaced atomically.

The tables are the truth of what they hold. The ledger only says how far they should be, so that a table that was
rolled back, or that halted, is noticed and caught up.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tailrace.machine.durable import replace_file


@dataclass(frozen=True)
class Entry:
    """A table of the source: how far its target should be, and why it halted, if it did."""

    mark: int = 0
    reason: str = ""


@dataclass(frozen=True)
class State:
    log_id: str = ""
    mark: int = 0
    """Everything below is in its table, or waits for one that halted."""
    tables: dict[str, Entry] = field(default_factory=dict)


class TableLedger:
    """The file, and its content in memory."""

    def __init__(self, file: Path, log_id: str) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.state = _load(file, log_id)

    def move(self, mark: int, tables: dict[str, Entry]) -> None:
        """Everything below `mark` is settled, with `tables` as they are now. Durable when it returns."""
        with self._lock:
            self.state = replace(self.state, mark=mark, tables=self.state.tables | tables)
            replace_file(self._file, json.dumps(asdict(self.state)))


def _load(file: Path, log_id: str) -> State:
    """Nothing is known of another log."""
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return State(log_id)
    if found["log_id"] != log_id:
        return State(log_id)
    return State(log_id, found["mark"], {name: Entry(**entry) for name, entry in found["tables"].items()})
