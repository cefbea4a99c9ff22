"""Names and values that mean something to paths, to SQL or to Spark, which stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake import LakeSink
from tailrace.testing.feed import schema_of
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.lake import Lake

PATHS = {
    "../../x": "%2E.%2F..%2Fx",
    "..": "%2E%2E",
    "a/b": "a%2Fb",
    "a%2Fb": "a%252Fb",
    "back\\slash": "back%5Cslash",
    "col:on": "col%3Aon",
    "end. ": "end.%20",
}
"""Tables, and their folders."""


def sink_in(kind: str, folder: Path) -> LakeSink:
    if kind != "warehouse":
        return sink_of(kind, folder, table_name="{table}")
    document = {"id": "lake", "write_mode": "upsert", "table_name": "{table}", "warehouse": str(folder / "lake")}
    return IcebergSink.from_document(document)


@pytest.mark.parametrize("kind", ["delta", "iceberg3", "warehouse"])
def test_no_table_is_written_outside_the_lake(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    deep = tmp_path / "deep" / "er"
    deep.mkdir(parents=True)
    lake = Lake(spark, sink_in(kind, deep), deep)
    before = set(deep.iterdir())
    schemas = [schema_of(number, name, {"id": "bigint"}) for number, name in enumerate(PATHS, start=1)]
    for schema in schemas:
        lake.feed.add(schema, "c", {"id": schema.id})
    lake.keep()
    assert lake.keeper.warnings() == ()
    assert [lake.rows(schema.table) for schema in schemas] == [[{"id": schema.id}] for schema in schemas]
    tables = deep / "lake" if kind == "delta" else deep / "lake" / "default"
    assert {each.name for each in tables.iterdir()} == set(PATHS.values())
    assert [each.name for each in tmp_path.iterdir()] == ["deep"]
    assert {each.name for each in set(deep.iterdir()) - before} - {"catalog.db"} == {"lake"}
