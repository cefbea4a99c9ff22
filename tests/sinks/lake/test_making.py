"""How new tables are made: partitions, clustering or a sort order, properties, comments, and who may make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import schema_of
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.lake import Lake

SALES = schema_of(1, "sales", {"id": "bigint", "region": "text", "at": "timestamp with time zone", "n": "integer"})
OTHER = schema_of(2, "other", {"id": "bigint", "n": "integer"})
DAYS = ("2026-01-01T10:00:00.000000Z", "2026-01-02T10:00:00.000000Z")
COMMENT = "it's the sales"


def sale(number: int, region: str, day: int = 0) -> dict[str, Any]:
    return {"id": number, "region": region, "at": DAYS[day], "n": number}


def lake_of(kind: str, spark: SparkSession, folder: Path, **options: Any) -> Lake:
    return Lake(spark, sink_of(kind, folder, **options), folder)


def fill(lake: Lake) -> None:
    """Rows that change their partition, go and come."""
    for number, region in enumerate(("north", "south", "north"), start=1):
        lake.feed.add(SALES, "c", sale(number, region))
    lake.feed.add(OTHER, "c", {"id": 1, "n": 1})
    lake.keep()
    lake.feed.add(SALES, "u", sale(1, "south", day=1)).add(SALES, "d", {"id": 2}).add(SALES, "c", sale(4, "east"))
    lake.keep()
    found = [(row["id"], row["region"], row["at"].day) for row in lake.rows("public__sales")]
    assert found == [(1, "south", 2), (3, "north", 1), (4, "east", 1)]
    assert lake.keeper.warnings() == ()


def test_delta_tables_have_partitions_properties_and_a_comment(spark: SparkSession, tmp_path: Path) -> None:
    """A table without the sink's partition column has no partitions."""
    properties = {"delta.checkpointInterval": "7", "delta.enableDeletionVectors": "false"}
    options = {"properties": properties, "comment": COMMENT}
    lake = lake_of("delta", spark, tmp_path, partition_by=["region"], tables={"public.sales": options})
    fill(lake)
    [detail] = lake.sql("DESCRIBE DETAIL {}", "public__sales")
    assert (detail["partitionColumns"], detail["description"]) == (["region"], COMMENT)
    assert properties.items() <= detail["properties"].items()
    assert lake.sql("DESCRIBE DETAIL {}", "public__other")[0]["partitionColumns"] == []


def test_delta_tables_are_clustered(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of("delta", spark, tmp_path, tables={"public.s*": {"cluster_by": ["region", "n"]}})
    fill(lake)
    assert lake.sql("DESCRIBE DETAIL {}", "public__sales")[0]["clusteringColumns"] == ["region", "n"]


def test_iceberg_tables_have_transforms_an_order_properties_and_a_comment(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the making of one was killed before it had its order."""
    options = {
        "partition_by": ["days(at)", "bucket(4, id)", "truncate(2, region)"],
        "cluster_by": ["region", "n"],
        "properties": {"write.parquet.compression-codec": "gzip", "write.merge.mode": "copy-on-write"},
        "comment": COMMENT,
    }
    lake = lake_of("iceberg3", spark, tmp_path, partition_by=["n"], tables={"public.sales": options})
    lake.feed.add(SALES, "c", sale(9, "west")).add(SALES, "d", {"id": 9})
    with dies_at("iceberg.create.before_order"):
        lake.keep()
    lake.again()
    fill(lake)
    told = {row["col_name"]: row["data_type"] for row in lake.sql("DESCRIBE TABLE EXTENDED {}", "public__sales")}
    assert [told[f"Part {place}"] for place in range(3)] == ["days(at)", "bucket(4, id)", "truncate(2, region)"]
    assert told["Comment"] == COMMENT
    for said in ("sort-order=region ASC NULLS FIRST, n ASC NULLS FIRST", "codec=gzip", "merge.mode=copy-on-write"):
        assert said in told["Table Properties"]
    parts = lake.sql("SELECT partition.at_day FROM {}.partitions WHERE record_count > 0", "public__sales")
    assert {str(part["at_day"]) for part in parts} >= {"2026-01-01", "2026-01-02"}
    assert lake.sql("SELECT partition.n FROM {}.partitions", "public__other") == [{"n": 1}]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("delta", {"partition_by": ["regoin"]}, "partition_by names regoin"),
        ("iceberg3", {"cluster_by": ["total"]}, "cluster_by names total"),
        ("iceberg3", {"partition_by": ["days(when)"]}, "partition_by names days(when)"),
    ],
)
def test_a_layout_that_a_table_cannot_have_halts_it_alone(
    kind: str, options: dict[str, Any], said: str, spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(kind, spark, tmp_path, tables={"public.sales": options})
    lake.feed.add(SALES, "c", sale(1, "north")).add(OTHER, "c", {"id": 1, "n": 1})
    lake.keep()
    [halted] = lake.keeper.warnings()
    assert said in halted and "id, region, at, n" in halted
    assert lake.rows("public__other") == [{"id": 1, "n": 1}]
    lake.again(sink_of(kind, tmp_path))
    assert [row["region"] for row in lake.rows("public__sales")] == ["north"]


@pytest.mark.parametrize(
    "options", [{"partition_by": ["days(at)"]}, {"tables": {"*": {"partition_by": ["bucket(4, id)"]}}}]
)
def test_delta_has_no_transforms(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="Delta's partitions are columns"):
        sink_of("delta", tmp_path, **options)


def test_a_table_of_the_users_own_is_waited_for_and_kept_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of("iceberg3", spark, tmp_path, auto_create_table=False)
    lake.feed.add(SALES, "c", sale(1, "north"))
    lake.keep()
    [halted] = lake.keeper.warnings()
    assert "auto_create_table" in halted
    target = lake.target("public__sales")
    target.create_namespace(("default", "default"))
    columns = "n int, id bigint, region string, at timestamp, mine string"
    target.execute(f"CREATE TABLE {target.sql_name} ({columns}) USING iceberg PARTITIONED BY (region)")
    lake.again()
    lake.feed.add(SALES, "u", sale(1, "south")).add(SALES, "c", sale(2, "north"))
    lake.keep()
    assert lake.keeper.warnings() == ()
    found = lake.rows("public__sales")
    assert [(row["id"], row["region"], row["mine"]) for row in found] == [(1, "south", None), (2, "north", None)]
    assert list(found[0]) == ["n", "id", "region", "at", "mine"]
