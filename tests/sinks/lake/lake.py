"""A lake sink with its feed: deliver, look, break, start again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace.changelog import Limits
from tailrace.contracts import Delivery
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.keeper import LakeKeeper
from tailrace.sinks.lake.target import Target
from tailrace.spark.carrier import canonical
from tailrace.spark.tables import SparkLog
from tests.sinks.lake.feed import Feed

DELIVERY = Delivery("shop-feed", "acme", "shop")


class Lake:
    def __init__(self, spark: SparkSession, sink: LakeSink, feed: Feed, state: Path) -> None:
        self.spark, self.sink, self.feed, self.state = spark, sink, feed, state
        state.mkdir(exist_ok=True)
        self.keeper = self.open()
        self.at = 0

    def open(self) -> LakeKeeper:
        columns = list(canonical(self.sink.columns()).values())
        few = Limits(max_events=3)
        log = SparkLog(self.spark, self.feed.path, columns, few, f"{DELIVERY.pipeline}/{self.sink.id}", tasks=2)
        return self.sink.keeper(self.spark, DELIVERY, log, self.state)

    def keep(self, start: int | None = None) -> None:
        """Deliver what the feed has since the last time, or from `start` on."""
        span = self.feed.flush(self.at if start is None else start)
        self.keeper.keep(span)
        self.at = span.end

    def again(self, sink: LakeSink | None = None) -> None:
        """Start anew, as after a crash, perhaps with another configuration."""
        self.sink = sink or self.sink
        self.keeper = self.open()
        self.keeper.settle()

    def target(self, table: str = "public__orders") -> Target:
        return self.sink.target(self.spark, table, f"shop-feed/lake/{self.feed.log_id}")

    def sql(self, statement: str, table: str = "public__orders") -> list[dict[str, Any]]:
        """Run a statement, with the table's name for `{}`."""
        target = self.target(table)
        return [row.asDict(recursive=True) for row in target.session.sql(statement.format(target.sql_name)).collect()]

    def rows(self, table: str = "public__orders", order: str = "id") -> list[dict[str, Any]]:
        return self.sql("SELECT * FROM {} ORDER BY " + order, table)
