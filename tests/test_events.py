"""The comparison that proofs of exactly-once rest on sees what is lost, repeated or changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.changelog import LogReader
from tailrace.testing.feed import Feed, schema_of
from tests.events import check_events, logged_events

ITEMS = schema_of(1, "items", {"id": "bigint", "v": "text"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    feed = Feed(tmp_path / "log")
    for number in range(3):
        feed.add(ITEMS, "c", {"id": number, "v": "new"})
    feed.add(ITEMS, "d", {"id": 1}).flush(0)
    return feed.path


@pytest.fixture
def records(log: Path) -> list[dict[str, Any]]:
    found = logged_events(LogReader(log))
    return [{"event_id": event, "op": op, "before": old, "after": new} for event, (op, old, new) in found]


def test_what_is_there_once_is_counted(log: Path, records: list[dict[str, Any]]) -> None:
    assert [(each["op"], each["before"], each["after"]) for each in records[2:]] == [
        ("c", None, {"id": 2, "v": "new"}),
        ("d", {"id": 1}, None),
    ]
    assert check_events(log, reversed(records)) == 4


def test_lost_repeated_and_changed_are_told_apart(log: Path, records: list[dict[str, Any]]) -> None:
    stranger = {**records[0], "event_id": "another"}
    changed = {**records[0], "after": {"id": 0, "v": "old"}}
    for wrong, word in (
        (records[1:], "lost"),
        ([*records, records[0]], "repeated"),
        ([*records, stranger], "repeated"),
        ([changed, *records[1:]], "changed"),
    ):
        with pytest.raises(AssertionError, match=word):
            check_events(log, wrong)
