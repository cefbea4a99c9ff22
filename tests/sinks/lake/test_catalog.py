"""Catalogs: Iceberg's, and Spark's own with Delta tables in it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from tailrace.errors import SinkError
from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.delta.target import DeltaTarget
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake.target import Making
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import schema_of
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.lake import Lake

AT_ONCE = 4
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer"})
ITEMS = schema_of(2, "items", {"id": "bigint", "n": "integer"}, relation=200)
LEFT = [{"id": 0, "n": 0}, {"id": 1, "n": 1}]


def change_and_repeat(table: Lake) -> None:
    """Two batches and, after a new start, both once more; `LEFT` is left."""
    for number in range(3):
        table.feed.add(ORDERS, "c", {"id": number, "n": 0})
    table.keep()
    table.feed.add(ORDERS, "u", {"id": 1, "n": 1}).add(ORDERS, "d", {"id": 2})
    table.keep()
    table.again()
    table.keep(0)


def test_tables_that_begin_at_once_share_a_new_namespace(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_of("iceberg3", tmp_path, table_namespace="deep.er")
    targets = [sink.target(spark, f"t{number}", "me/lake/1") for number in range(AT_ONCE)]
    barrier = threading.Barrier(AT_ONCE)

    def begin(number: int) -> None:
        barrier.wait()
        targets[number].create(Making({"id": LongType()}, (), (), {}, None))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(begin, range(AT_ONCE)))
    assert [target.existing().schema.names for target in targets] == [["id"]] * AT_ONCE


def test_a_namespace_that_somebody_else_makes_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """Two processes may look for it at once and find none: the insert of the second fails."""
    here, there = (sink_of("iceberg3", tmp_path).target(spark, name, "me/lake/1") for name in ("here", "there"))
    there.create(Making({"id": LongType()}, (), (), {}, None))
    late = threading.Event()
    execute = here.execute

    def fail_first(statement: str, mark: int | None = None) -> None:
        if "NAMESPACE" in statement and not late.is_set():
            late.set()
            execute(statement.replace("IF NOT EXISTS", ""))  # what Iceberg does when its look was too early
        execute(statement, mark)

    here.execute = fail_first  # type: ignore[method-assign]
    here.create(Making({"id": LongType()}, (), (), {}, None))
    assert late.is_set()
    assert here.existing().schema.names == ["id"]


def test_a_warehouse_that_is_its_own_catalog(spark: SparkSession, tmp_path: Path) -> None:
    sink = IcebergSink.from_document({"id": "lake", "write_mode": "upsert", "warehouse": str(tmp_path / "lake")})
    table = Lake(spark, sink, tmp_path)
    change_and_repeat(table)
    assert table.rows() == LEFT
    assert (tmp_path / "lake" / "default" / "public__orders" / "metadata").is_dir()


def test_delta_tables_at_a_path_are_in_the_catalog_too(spark: SparkSession, tmp_path: Path) -> None:
    """Also after the catalog has forgotten them, as Spark's own does when its process ends, and where the making of one
    was killed before the catalog knew it."""
    sink = sink_of("delta", tmp_path, catalog="by_path")
    table = Lake(spark, sink, tmp_path)
    change_and_repeat(table)
    named = "SELECT * FROM by_path.public__orders ORDER BY id"
    assert [row.asDict() for row in spark.sql(named).collect()] == table.rows() == LEFT
    spark.sql("DROP TABLE by_path.public__orders")
    table.again()
    assert [row.asDict() for row in spark.sql(named).collect()] == LEFT
    table.feed.add(ITEMS, "c", {"id": 1, "n": 1})
    with dies_at("delta.create.before_register"):
        table.keep()
    table.again()
    table.keep()
    assert [tuple(row) for row in spark.sql("SELECT * FROM by_path.public__items").collect()] == [(1, 1)]
    spark.sql("DROP DATABASE by_path CASCADE")


def test_delta_tables_that_a_catalog_places(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SinkError) as refused:
        DeltaSink.from_document({"id": "lake", "catalog": "placed"}).target(spark, "t", "me/lake/1")
    assert refused.value.code == "sink.catalog_forgets"
    spark.sql(f"CREATE DATABASE placed LOCATION '{tmp_path}/warehouse'")
    table = Lake(spark, _Placed(id="lake", catalog="placed", write_mode="upsert"), tmp_path)
    change_and_repeat(table)
    assert table.rows() == LEFT
    assert (tmp_path / "warehouse" / "public__orders" / "_delta_log").is_dir()
    spark.sql("DROP TABLE placed.public__orders")
    assert table.target().shape() is None
    spark.sql("DROP DATABASE placed CASCADE")


class _Placed(DeltaSink):
    """Takes Spark's own catalog, which lasts as long as the test, for a metastore."""

    def target(self, spark: SparkSession, name: str, owner: str) -> DeltaTarget:
        return DeltaTarget(spark, None, ("placed", name), owner)


def test_a_missing_catalog_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sink = IcebergSink.from_document(
        {"id": "lake", "warehouse": str(tmp_path), "catalog_uri": "http://127.0.0.1:1/", "write_mode": "upsert"}
    )
    with pytest.raises((Py4JJavaError, PySparkException), match="Connection refused"):
        sink.target(spark, "t", "me/lake/1")
