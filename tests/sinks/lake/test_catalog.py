"""Catalogs of Iceberg."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake.target import Making
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.feed import Feed, schema_of
from tests.sinks.lake.lake import Lake

AT_ONCE = 4


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
    table = Lake(spark, sink, Feed(spark), tmp_path / "state")
    orders = schema_of(1, "orders", {"id": "bigint", "n": "integer"})
    for number in range(3):
        table.feed.add(orders, "c", {"id": number, "n": 0})
    table.keep()
    table.feed.add(orders, "u", {"id": 1, "n": 1}).add(orders, "d", {"id": 2})
    table.keep()
    table.again()
    table.keep(0)  # a repeat
    assert table.rows() == [{"id": 0, "n": 0}, {"id": 1, "n": 1}]
    assert (tmp_path / "lake" / "default" / "public__orders" / "metadata").is_dir()


def test_a_missing_catalog_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sink = IcebergSink.from_document(
        {"id": "lake", "warehouse": str(tmp_path), "catalog_uri": "http://127.0.0.1:1/", "write_mode": "upsert"}
    )
    with pytest.raises((Py4JJavaError, PySparkException), match="Connection refused"):
        sink.target(spark, "t", "me/lake/1")
