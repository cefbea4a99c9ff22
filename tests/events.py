"""What a target has of a log: every event once, counted by its id, with the content that it has in the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tailrace.change import event_id
from tailrace.changelog import LogReader, read_slice

Content = tuple[str, Any, Any]
"""An event's operation, and its row before and after."""


def check_events(log: Path, records: Iterable[dict[str, Any]]) -> int:
    """Fail where an event was lost, repeated or changed. `records` are in the `native` envelope. Returns how many
    events there are."""
    found = [(record["event_id"], (record["op"], record["before"], record["after"])) for record in records]
    wanted = dict(logged_events(LogReader(log)))
    delivered = Counter(event for event, _ in found)
    assert sorted(wanted.keys() - delivered.keys()) == [], "lost"
    assert sorted(event for event, times in delivered.items() if times > 1 or event not in wanted) == [], "repeated"
    assert [event for event, told in found if told != wanted[event]] == [], "changed"
    return len(wanted)


def logged_events(log: LogReader) -> Iterator[tuple[str, Content]]:
    """The id and content of every change of a log that has lost none yet."""
    assert log.earliest == 0
    for piece in log.slices(0, log.end, 1):
        for batch in read_slice(piece):
            for row in batch.to_pylist():
                before, after = (None if row[name] is None else json.loads(row[name]) for name in ("before", "after"))
                yield event_id(row["source"], row["position"], row["tx_ordinal"]), (row["op"], before, after)
