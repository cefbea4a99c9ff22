"""Changes as rows of a frame, from the few fields that a test cares about."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.change import CHANGES, CHANGES_DDL, PROCESSED, PROCESSED_DDL
from tailrace.contracts import Delivery
from tailrace.render.rendering import Rendering

DELIVERY = Delivery(pipeline="shop", tenant="demo", source="shop-db")
RENDERING = Rendering(DELIVERY, PROVENANCE)

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


MADE: dict[str, Any] = {"tags": None, "route": None, "synthetic": None, "part": None, "dropped": None}
"""What processors add, with nothing said."""


def frame(spark: SparkSession, *changes: dict[str, Any], processed: bool = False) -> DataFrame:
    """A frame with the canonical columns. Fields not given have a plain value."""
    known, names, ddl = DEFAULTS, CHANGES.names, CHANGES_DDL
    if processed:
        known, names, ddl = DEFAULTS | MADE, PROCESSED.names, PROCESSED_DDL
    for change in changes:
        assert change.keys() <= known.keys(), change.keys() - known.keys()
    rows = [tuple((known | change)[name] for name in names) for change in changes]
    return spark.createDataFrame(rows, ddl)


def batch(*changes: dict[str, Any]) -> pa.RecordBatch:
    """The same as a batch between processors. Maps are dicts."""
    rows = [{**DEFAULTS, **MADE, **change} for change in changes]
    for row in rows:
        for name in ("headers", "route"):
            row[name] = None if row[name] is None else list(row[name].items())
    return pa.RecordBatch.from_pylist(rows, PROCESSED)


def rows(made: pa.RecordBatch) -> list[dict[str, Any]]:
    """Changes that `frame` takes."""
    found: list[dict[str, Any]] = made.to_pylist()
    for row in found:
        for name in ("headers", "route"):
            row[name] = None if row[name] is None else dict(row[name])
    return found
