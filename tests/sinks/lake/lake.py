"""A lake sink with its feed: deliver, look, break, start again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace.contracts import Processor
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.keeper import LakeKeeper
from tailrace.sinks.lake.target import Target
from tailrace.testing.suites.tables import FedSink


class Lake(FedSink):
    sink: LakeSink
    keeper: LakeKeeper

    def __init__(self, spark: SparkSession, sink: LakeSink, folder: Path, processors: Sequence[Processor] = ()) -> None:
        super().__init__(spark, sink, folder, processors)

    def target(self, table: str = "public__orders") -> Target:
        return self.sink.target(self.spark, table, f"shop-feed/lake/{self.feed.log_id}")

    def sql(self, statement: str, table: str = "public__orders") -> list[dict[str, Any]]:
        """Run a statement, with the table's name for `{}`."""
        target = self.target(table)
        return [row.asDict(recursive=True) for row in target.session.sql(statement.format(target.sql_name)).collect()]

    def rows(self, table: str = "public__orders", order: str = "id") -> list[dict[str, Any]]:
        return self.sql("SELECT * FROM {} ORDER BY " + order, table)
