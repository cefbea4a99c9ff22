"""Lake tables that equal their source, in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.contracts import Delivery
from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.keeper import LakeKeeper
from tests.sinks.lake.feed import Feed, schema_of

DELIVERY = Delivery("shop-feed", "acme", "shop")
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})

MakeSink = Callable[..., LakeSink]


@pytest.fixture(params=["delta", "iceberg2", "iceberg3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSink:
    def sink(**options: Any) -> LakeSink:
        options = {"write_mode": "upsert", "id": "lake", **options}
        if request.param == "delta":
            return DeltaSink.from_document({**options, "path": str(tmp_path / "lake")})
        uri = f"sqlite:///{tmp_path}/catalog.db"
        version = int(request.param[-1])
        where = {"warehouse": str(tmp_path / "lake"), "catalog_uri": uri, "format_version": version}
        return IcebergSink.from_document({**options, **where})

    return sink


class Lake:
    def __init__(self, spark: SparkSession, sink: LakeSink, feed: Feed, state: Path) -> None:
        self.spark, self.sink, self.feed, self.state = spark, sink, feed, state
        state.mkdir(exist_ok=True)
        self.keeper = self.open()
        self.at = 0

    def open(self) -> LakeKeeper:
        return self.sink.keeper(self.spark, DELIVERY, self.feed, self.state)

    def keep(self, start: int | None = None) -> None:
        """Deliver what the feed has since the last time, or from `start` on."""
        first = self.at if start is None else start
        self.keeper.keep(self.feed.read(first, self.feed.end), self.feed.span(first))
        self.at = self.feed.end

    def rows(self, table: str = "public__orders", order: str = "id") -> list[dict[str, Any]]:
        target = self.sink.target(self.spark, table, "reader")
        found = target.session.sql(f"SELECT * FROM {target.sql_name} ORDER BY {order}").collect()
        return [row.asDict() for row in found]


@pytest.fixture
def lake(spark: SparkSession, make: MakeSink, tmp_path: Path) -> Callable[..., Lake]:
    return lambda feed, **options: Lake(spark, make(**options), feed, tmp_path / "state")


def test_insert_update_delete_within_and_across_batches(spark: SparkSession, lake: Callable[..., Lake]) -> None:
    feed = Feed(spark)
    table = lake(feed)
    for number in range(1, 6):
        feed.add(ORDERS, "c", {"id": number, "n": number, "note": "a"})
    table.keep()
    assert [row["id"] for row in table.rows()] == [1, 2, 3, 4, 5]
    feed.add(ORDERS, "u", {"id": 1, "n": 10, "note": None}).add(ORDERS, "d", {"id": 2})
    feed.add(ORDERS, "c", {"id": 6, "n": 6, "note": "b"}).add(ORDERS, "u", {"id": 6, "n": 66, "note": "c"})
    feed.add(ORDERS, "c", {"id": 7, "n": 7, "note": "b"}).add(ORDERS, "d", {"id": 7})
    feed.add(ORDERS, "d", {"id": 3}).add(ORDERS, "c", {"id": 3, "n": 33, "note": "again"})
    feed.add(ORDERS, "d", {"id": 99}).add(ORDERS, "u", {"id": 8, "n": 8, "note": "not there before"})
    table.keep()
    assert table.rows() == [
        {"id": 1, "n": 10, "note": None},
        {"id": 3, "n": 33, "note": "again"},
        {"id": 4, "n": 4, "note": "a"},
        {"id": 5, "n": 5, "note": "a"},
        {"id": 6, "n": 66, "note": "c"},
        {"id": 8, "n": 8, "note": "not there before"},
    ]
