"""Tables that wait apart from the other tables of their sink, and what the log keeps for them."""

from __future__ import annotations

import os

from tailrace.changelog.reader import earliest
from tailrace.changelog.retention import Subscribers


class Holds:
    """Of one sink, whose subscriber is called `sink`. Each is a subscriber `sink/TABLE`, and `required` as the sink is:
    what a table of an optional sink waits for may be dropped."""

    def __init__(self, path: str | os.PathLike[str], sink: str, *, required: bool) -> None:
        self._path, self._sink, self._required = path, sink, required
        self._subscribers = Subscribers(path)
        self._offsets: dict[str, int] = {}

    def hold(self, table: str, offset: int) -> None:
        """Keep what lies at and above `offset` for a table."""
        self._offsets[table] = offset
        self._subscribers.report(self._name(table), offset, required=self._required)

    def let_go(self, table: str) -> None:
        """The table waits no longer."""
        self._offsets.pop(table, None)
        self._subscribers.forget(self._name(table))

    def let_others_go(self) -> tuple[str, ...]:
        """After a start that held what it knows of: whatever else an earlier run held. Returns what to say of it."""
        found = [each for each in self._subscribers.all() if each.name.startswith(self._name(""))]
        others = [each for each in found if each.name.removeprefix(self._name("")) not in self._offsets]
        for each in others:
            self._subscribers.forget(each.name)
        return tuple(
            f"the log was held from offset {each.offset} on for {each.name}, which the sink does not know to have "
            "halted; it is held no longer. Compare the table: tailrace verify PIPELINE.yaml"
            for each in others
        )

    def expired(self) -> tuple[str, ...]:
        """What to say of tables that wait for what is no longer in the log."""
        begins = earliest(self._path) if self._offsets else 0
        return tuple(
            f"{table} waits for changes from offset {offset} on, and the log begins at {begins} (expired): give the "
            "sink another id, then read the tables anew: tailrace snapshot PIPELINE.yaml"
            for table, offset in self._offsets.items()
            if offset < begins
        )

    def _name(self, table: str) -> str:
        return f"{self._sink}/{table}"
