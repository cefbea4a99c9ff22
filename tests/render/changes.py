"""Changes as rows of a frame, from the few fields that a test cares about."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace.change import CHANGES, CHANGES_DDL
from tailrace.contracts import Delivery

DELIVERY = Delivery(pipeline="shop", tenant="demo", source="shop-db")

DEFAULTS: dict[str, Any] = {
    "seq": 42,
    "lane": 7,
    "source": "shop-db",
    "op": "c",
    "database": "shop",
    "schema": "public",
    "table": "orders",
    "key": '{"id":1}',
    "before": None,
    "after": '{"id":1}',
    "unchanged": None,
    "ts_us": 1_767_225_600_123_456,
    "captured_us": 1_767_225_600_200_000,
    "tx_id": "771",
    "tx_ordinal": 0,
    "tx_last": False,
    "position": "16/B374D848",
    "schema_id": 3,
    "headers": None,
}


def frame(spark: SparkSession, *changes: dict[str, Any]) -> DataFrame:
    """A frame with the canonical columns. Fields not given have a plain value."""
    for change in changes:
        assert change.keys() <= DEFAULTS.keys(), change.keys() - DEFAULTS.keys()
    rows = [tuple((DEFAULTS | change)[name] for name in CHANGES.names) for change in changes]
    return spark.createDataFrame(rows, CHANGES_DDL)
