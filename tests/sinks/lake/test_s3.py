"""A warehouse in an S3-compatible store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pydantic import ValidationError
from pyspark.sql import SparkSession

from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake import LakeSink
from tailrace.testing.feed import schema_of
from tests.sinks.lake.lake import Lake

ORDERS = schema_of(1, "orders", {"id": "bigint", "note": "text"})


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a store with a bucket `lake`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=address, **keys).create_bucket(Bucket="lake")
    yield address
    server.stop()


@pytest.fixture
def sinks(store: str, tmp_path: Path) -> dict[str, LakeSink]:
    common = {"id": "lake", "write_mode": "upsert"}
    common |= {"s3_endpoint": store, "s3_access_key_id": "key", "s3_secret_access_key": "secret"}
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    return {
        "delta": DeltaSink.from_document({**common, "path": "s3://lake/shop"}),
        "iceberg": IcebergSink.from_document({**common, "warehouse": "s3://lake/shop", "catalog_uri": catalog}),
    }


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_in_a_bucket(
    spark: SparkSession, store: str, sinks: dict[str, LakeSink], kind: str, tmp_path: Path
) -> None:
    table = Lake(spark, sinks[kind], tmp_path)
    table.feed.add(ORDERS, "c", {"id": 1, "note": "a"}).add(ORDERS, "c", {"id": 2, "note": "b"})
    table.keep()
    table.feed.add(ORDERS, "u", {"id": 1, "note": "c"}).add(ORDERS, "d", {"id": 2})
    table.keep()
    assert table.rows() == [{"id": 1, "note": "c"}]
    objects = boto3.client(
        "s3", endpoint_url=store, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    ).list_objects_v2(Bucket="lake", Prefix="shop/")
    assert any(each["Key"].endswith(".parquet") for each in objects["Contents"])


def test_a_bucket_without_a_catalog_is_refused() -> None:
    with pytest.raises(ValidationError, match="commits atomically"):
        IcebergSink.from_document({"id": "lake", "warehouse": "s3://lake/shop"})
