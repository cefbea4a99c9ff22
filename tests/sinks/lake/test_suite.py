"""What every table sink promises, by each format. Iceberg's older one runs in the soak."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.lake import LakeSink
from tailrace.testing.suites.tables import DELIVERY, FedSink, ReadTable, TableSuite
from tests.sinks.lake.conftest import sink_of

EVERY_LAKE = ("lake.create.before_rows", "lake.step.after_commit", "lake.batch.before_ledger")


class LakeSuite(TableSuite):
    dies_at: ClassVar[tuple[str, ...]] = EVERY_LAKE

    @pytest.fixture
    def rows(self, spark: SparkSession, sink: LakeSink, fed: FedSink) -> ReadTable:
        return lambda schema: [
            row.asDict()
            for row in sink.target_for(spark, schema, DELIVERY, fed.feed.log_id).read().orderBy("id").collect()
        ]


class TestDelta(LakeSuite):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> LakeSink:
        return sink_of("delta", tmp_path)


class TestIceberg(LakeSuite):
    dies_at = ("iceberg.create.after_namespace", "iceberg.create.before_order", *EVERY_LAKE)

    @pytest.fixture
    def sink(self, tmp_path: Path) -> LakeSink:
        return sink_of("iceberg3", tmp_path)


@pytest.mark.soak
class TestIceberg2(LakeSuite):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> LakeSink:
        return sink_of("iceberg2", tmp_path)
