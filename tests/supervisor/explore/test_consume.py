"""Records as a sink would be given them, from a log alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace import changelog
from tailrace.changelog import LogReader, Retention, Subscribers
from tailrace.errors import LogError
from tailrace.supervisor.explore import Bounds, Filter
from tailrace.supervisor.explore.consume import Consumer, Record
from tests.supervisor.explore.looking import MASK, NOTES, ONLY_PAID, ORDERS, Place, after, order

AWAY = "127.0.0.1:1"
KAFKA = {
    "type": "kafka",
    "config": {"id": "kafka", "brokers": AWAY, "topic": "shop.${source.table}", "envelope": {"type": "debezium"}},
}
LAKE = {"type": "delta", "config": {"id": "lake", "path": "/nowhere", "write_mode": "append"}}
LOUD = {"type": "sql", "id": "loud", "select": "after.*, upper(after.status) AS loud", "tables": ["orders"]}


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    """0 to 3: two orders that are paid and two that are not; 4: a note."""
    place = Place(tmp_path)
    feed = place.feed
    for number in range(4):
        feed.add(ORDERS, "c", order(number, status=("paid", "new")[number % 2]))
    feed.add(NOTES, "c", {"id": 1, "lang": "de", "text": "x"}).flush(0)
    Subscribers(place.layout.log("shop")).report("shop/kafka", 1, required=True)
    return place


def consumed(place: Place, *processors: Any, sink: Any = KAFKA, **more: Any) -> list[Record]:
    pipeline = place.pipeline(sink, processors=processors)
    with Consumer(pipeline, place.layout) as consumer:
        return list(consumer.records(**more))


def test_records_through_chain_and_envelope_of_a_sink_that_is_away(place: Place) -> None:
    before = {file: file.read_bytes() for file in place.layout.root.rglob("*") if file.is_file()}
    first, second = consumed(place, ONLY_PAID, MASK, start=0, limit=2)
    assert [(each.offset, each.table, each.op) for each in (first, second)] == [
        (0, "public.orders", "c"),
        (2, "public.orders", "c"),
    ]
    payload = json.loads(first.value or "")["payload"]
    assert (payload["after"]["email"], payload["source"]["table"]) == ("***", "orders")
    assert (first.given["topic"], first.given["key"]) == ("shop.orders", '{"id": 0}')
    assert before == {file: file.read_bytes() for file in place.layout.root.rglob("*") if file.is_file()}


def test_from_where_and_how_many(place: Place) -> None:
    assert [each.offset for each in consumed(place, start=3)] == [3, 4]
    assert [each.offset for each in consumed(place, start=1, limit=1)] == [1]
    assert consumed(place, start="latest") == []
    assert consumed(place, start=99) == []


def test_following_waits_for_what_comes(place: Place) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            place.feed.add(ORDERS, "c", order(9)).flush(0)

    with Consumer(place.pipeline(KAFKA), place.layout) as consumer:
        records: Iterator[Record] = consumer.records(
            "latest", follow=True, is_over=lambda: len(waited) > 4, sleep=sleep
        )
        found = list(records)
    assert [(each.offset, json.loads(each.value or "")["payload"]["after"]["id"]) for each in found] == [(5, 9)]


def test_a_change_that_the_chain_fails_for_is_told_where_there_is_a_journal(place: Place) -> None:
    code = {
        "type": "python",
        "id": "mine",
        "on_error": "skip",
        "inline": "def process(event):\n    return event if event['key']['id'] != 2 else 1 / 0",
    }
    assert [each.offset for each in consumed(place, code)] == [0, 1, 3, 4]


def test_a_sink_for_tables_gets_changes(place: Place) -> None:
    found = consumed(place, ONLY_PAID, MASK, sink=LAKE, limit=2)
    assert [(each.offset, json.loads(each.value or "")["email"]) for each in found] == [(0, "***"), (2, "***")]


def test_what_is_no_longer_there(place: Place) -> None:
    path = place.layout.log("shop")
    begins = place.feed.trim() - 1
    Retention(path).enforce(changelog.Bounds(max_bytes=0))
    with pytest.raises(LogError) as caught:
        consumed(place, start=0)
    assert caught.value.code == "explore.expired"
    assert [each.offset for each in consumed(place)] == list(range(LogReader(path).earliest, begins + 1))


def test_the_explorer_runs_queries_in_a_process_of_its_own(place: Place) -> None:
    with place.explorer(LOUD, MASK) as explorer:
        page = explorer.look(Filter(end=2), order="oldest", bounds=Bounds(seconds=600))
        assert [(row["loud"], row["email"]) for row in after(page)] == [("PAID", "***"), ("NEW", "***")]
