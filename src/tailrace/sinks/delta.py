"""Delta Lake tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tailrace.contracts import EXTENSIONS, Jar
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.target import Making, Shape, Target, declared, literal, pairs, quoted

_SETTINGS = {
    # A table's state is small; fifty tasks to read it cost more than the read.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_DEFAULTS = {"delta.enableDeletionVectors": "true"}
_NAMED_COLUMNS = {"delta.columnMapping.mode": "name"}
_WIDENING = {"delta.enableTypeWidening": "true"}


class DeltaSink(LakeSink):
    """Keeps a Delta table for each table of the source.

    Delivery is exactly once: every commit carries the log's offset as Delta's own transaction version (`txn`), so a
    repeat is skipped, and a table that was restored to an older version catches up from the mark it had then. One
    commit covers a table's part of a batch: a transaction is atomic per table. Truncates and schema changes are commits
    of their own. Logical messages belong to no table and are not kept.
    """

    path: Annotated[
        str,
        Field(min_length=1, description="Folder of the tables.", examples=["/lake/shop", "s3a://bucket/shop"]),
    ]

    def jars(self) -> tuple[Jar, ...]:
        return (Jar("io.delta", "delta-spark_4.1_2.13", "4.4.0", transitive=True),)

    def spark_settings(self) -> dict[str, str]:
        return {
            EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }

    def target(self, spark: SparkSession, name: str, owner: str) -> DeltaTarget:
        return DeltaTarget(spark, f"{self.path.rstrip('/')}/{name}", owner)


class DeltaTarget(Target):
    CONFLICTS = ("ConcurrentAppend", "ConcurrentDelete", "ConcurrentTransaction", "ConcurrentWrite", "MetadataChanged")

    def __init__(self, spark: SparkSession, path: str, owner: str) -> None:
        super().__init__(spark, path, owner, _SETTINGS)
        self._path = path

    @property
    def sql_name(self) -> str:
        return f"delta.{quoted(self._path)}"

    def shape(self) -> Shape | None:
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        schema = StructType.fromJson(json.loads(snapshot.schema().json()))
        found = snapshot.metadata().configuration()
        names = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(found)
        return Shape(schema, {str(key): str(names[key]) for key in names})

    def mark(self) -> int:
        snapshot = self._snapshot()
        return 0 if snapshot is None else self._mark_of(snapshot)

    def marking(self, mark: int) -> Mapping[str, str]:
        return {
            "spark.databricks.delta.write.txnAppId": self._application(),
            "spark.databricks.delta.write.txnVersion": str(mark),
        }

    def create(self, making: Making) -> None:
        partitions = f" PARTITIONED BY ({', '.join(map(quoted, making.partition_by))})" if making.partition_by else ""
        clusters = f" CLUSTER BY ({', '.join(map(quoted, making.cluster_by))})" if making.cluster_by else ""
        comment = f" COMMENT {literal(making.comment)}" if making.comment else ""
        properties = pairs({**_DEFAULTS, **making.properties})
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({declared(making.columns)}) USING delta"
            f"{partitions}{clusters}{comment} TBLPROPERTIES ({properties})"
        )

    def clear(self, mark: int) -> None:
        self.execute(f"DELETE FROM {self.sql_name}", mark)

    def rename_column(self, before: str, after: str) -> None:
        self._enable(_NAMED_COLUMNS)
        super().rename_column(before, after)

    def drop_column(self, name: str) -> None:
        self._enable(_NAMED_COLUMNS)
        super().drop_column(name)

    def widen_column(self, name: str, wanted: Any) -> None:
        self._enable(_WIDENING)
        super().widen_column(name, wanted)

    def _enable(self, properties: Mapping[str, str]) -> None:
        present = self.existing().properties
        if any(present.get(key) != text for key, text in properties.items()):
            self.set_properties(properties)

    # -- Delta's log -----------------------------------------------------------------------------------------

    @property
    def _jvm(self) -> Any:
        return self.session._jvm

    def _snapshot(self) -> Any:
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.session._jsparkSession, self._path)
        nothing = self._jvm.scala.Option.empty()
        snapshot = log.update(False, nothing, nothing)
        return None if snapshot.version() < 0 else snapshot

    def _mark_of(self, snapshot: Any) -> int:
        found = snapshot.transactions().get(self._application())
        return int(found.get()) if found.isDefined() else 0

    def _application(self) -> str:
        return self.owner
