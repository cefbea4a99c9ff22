"""Delta Lake tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pyspark.sql import SparkSession

from tailrace.contracts import EXTENSIONS, Jar
from tailrace.errors import SinkError
from tailrace.sinks.delta.target import DeltaTarget
from tailrace.sinks.lake import TRANSFORM, LakeSink, placed
from tailrace.sinks.lake.maintenance import Maintenance
from tailrace.sinks.lake.target import LOCAL_FILES

_YOUNGEST_S = 3600
_S3 = re.compile(r"^s3a?://([^/]+)")
_S3_JARS = (
    Jar("org.apache.hadoop", "hadoop-aws", "3.4.2"),  # the version of Spark's Hadoop
    Jar("software.amazon.awssdk", "s3-transfer-manager", "2.29.52", transitive=True),
    Jar("software.amazon.awssdk", "sts", "2.29.52", transitive=True),
)
_WITH_CATALOG = 3
"""Parts of a name that begins with its catalog."""


class DeltaSink(LakeSink):
    """Keeps a Delta table for each table of the source.

    Delivery is exactly once: every commit carries the log's offset as Delta's own transaction version (`txn`), so a
    repeat is skipped, and a table that was restored to an older version catches up from the mark it had then. One
    commit covers a table's part of a batch: a transaction is atomic per table. Truncates and schema changes are commits
    of their own. Logical messages belong to no table and are not kept.
    """

    path: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Folder of the tables; absent: the catalog says where they are.",
            examples=["/lake/shop", "s3://bucket/shop"],
        ),
        AfterValidator(lambda path: path and _S3.sub(r"s3a://\1", placed(path))),
    ] = None
    catalog: Annotated[
        str | None,
        Field(
            pattern=r"^\w+(\.\w+)*$",
            description="The catalog's schema that has the tables; absent: they are found by `path` alone.",
            examples=["shop", "spark_catalog.shop"],
        ),
    ] = None

    @field_validator("maintenance")
    @classmethod
    def _leaves_commits_alone(cls, maintenance: Maintenance) -> Maintenance:
        """Delta removes what no version has, also what a commit under way has just written, if it is old enough."""
        if maintenance.expire_snapshots_older_than_seconds < _YOUNGEST_S:
            message = "Delta's files must be older before they are removed: a commit under way may have written them"
            hint = f"use {_YOUNGEST_S} or more for expire_snapshots_older_than_seconds"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return maintenance

    @model_validator(mode="after")
    def _has_no_transforms(self) -> Self:
        for each in (*self.partition_by, *(one for options in self.tables.values() for one in options.partition_by)):
            if TRANSFORM.fullmatch(each):
                message = f"Delta's partitions are columns: there is no {each}"
                hint = "use a column, add a generated one at the source, or cluster_by"
                raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.path is None and self.catalog is None:
            message, hint = "nothing says where the tables are", "add path, such as /lake/shop, or catalog, or both"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    def local_folder(self) -> Path | None:
        return None if self.path is None or ":" in self.path else Path(self.path)

    @property
    def one_writer(self) -> bool:
        """A put into S3 takes the place of another's."""
        return self._bucket() is not None

    def jars(self) -> tuple[Jar, ...]:
        delta = Jar("io.delta", "delta-spark_4.1_2.13", "4.4.0", transitive=True)
        return (delta, *_S3_JARS) if self._bucket() is not None else (delta,)

    def spark_settings(self) -> dict[str, str]:
        return {
            EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # A table's state is small; fifty tasks to read it cost more than the read.
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def target(self, spark: SparkSession, name: str, owner: str) -> DeltaTarget:
        path = None if self.path is None else f"{self.path.rstrip('/')}/{self.folder_of(name)}"
        parts = None if self.catalog is None else (*self.catalog.split("."), name)
        if path is None and parts is not None:
            _refuse_forgetful(spark, parts)
        return DeltaTarget(spark, path, parts, owner, self._s3())

    def _bucket(self) -> str | None:
        found = _S3.match(self.path or "")
        return found[1] if found else None

    def _s3(self) -> dict[str, str]:
        """Settings of the bucket alone: Hadoop keeps one client for each."""
        bucket = self._bucket()
        if bucket is None:
            return {}
        found = {"endpoint.region": self.s3_region}
        if self.s3_endpoint is not None:
            found |= {"endpoint": self.s3_endpoint, "path.style.access": "true"}
            found["connection.ssl.enabled"] = str(self.s3_endpoint.startswith("https:")).lower()
        if self.s3_access_key_id is not None:
            found["access.key"] = self.s3_access_key_id.get_secret_value()
        if self.s3_secret_access_key is not None:
            found["secret.key"] = self.s3_secret_access_key.get_secret_value()
        return LOCAL_FILES | {f"fs.s3a.bucket.{bucket}.{key}": text for key, text in found.items()}


def _refuse_forgetful(spark: SparkSession, parts: tuple[str, ...]) -> None:
    """Spark's own catalog, unless told otherwise, ends with its process: nobody would find the tables again."""
    own = len(parts) < _WITH_CATALOG or parts[0] == "spark_catalog"
    if own and spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise SinkError(
            "sink.catalog_forgets",
            f"the catalog of {'.'.join(parts)} is kept in memory only",
            hint="add path to the sink, or a metastore to the platform document, under spark: "
            "conf: {spark.sql.catalogImplementation: hive}",
            where=".".join(parts),
        )
