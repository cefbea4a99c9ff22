"""Delta Lake tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tailrace.contracts import EXTENSIONS, Jar
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.target import Making, Shape, Target, declared, literal, pairs, quoted

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
            # A table's state is small; fifty tasks to read it cost more than the read.
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def target(self, spark: SparkSession, name: str, owner: str) -> DeltaTarget:
        return DeltaTarget(spark, f"{self.path.rstrip('/')}/{name}", owner)


class DeltaTarget(Target):
    CONFLICTS = ("ConcurrentAppend", "ConcurrentDelete", "ConcurrentTransaction", "ConcurrentWrite", "MetadataChanged")

    def __init__(self, spark: SparkSession, path: str, owner: str) -> None:
        super().__init__(spark, path, owner, {})
        self._path = path
        self._restores: list[Restore] = []

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

    def state(self) -> int | None:
        snapshot = self._snapshot()
        return None if snapshot is None else int(snapshot.version())

    def mark(self) -> int:
        self._restores = self._read_restores()
        snapshot = self._snapshot()
        return 0 if snapshot is None else self._mark_of(snapshot)

    def marking(self, mark: int) -> Mapping[str, str]:
        return {
            "spark.databricks.delta.write.txnAppId": _application(self.owner, self._restores),
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

    def _log(self) -> Any:
        """Delta asks for the thread's session while it reads its log."""
        spark = self.session._jsparkSession
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark)
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark, self._path)

    def _snapshot(self) -> Any:
        log, nothing = self._log(), self._jvm.scala.Option.empty()
        snapshot = log.update(False, nothing, nothing)
        return None if snapshot.version() < 0 else snapshot

    def _mark_of(self, snapshot: Any) -> int:
        """The mark of a version. Restoring a table keeps its transaction versions, so a restored table has marks of its
        own from there on, and before its first one the mark of the version it was restored to."""
        restores = [each for each in self._restores if each.at <= snapshot.version()]
        found = snapshot.transactions().get(_application(self.owner, restores))
        if found.isDefined():
            return int(found.get())
        return self._mark_of(self._version(restores[-1].to)) if restores else 0

    def _read_restores(self) -> list[Restore]:
        history = self.session.sql(f"DESCRIBE HISTORY {self.sql_name}").select(
            "version", "operation", "operationParameters", F.col("timestamp").cast("string").alias("at")
        )
        commits = sorted(history.collect(), key=lambda each: each.version)
        return [Restore(row.version, _restored_to(row, commits)) for row in commits if row.operation == "RESTORE"]

    def _version(self, number: int) -> Any:
        """An older version's snapshot."""
        nothing = self._jvm.scala.Option.empty()
        return self._log().getSnapshotAt(number, nothing, nothing, False)


@dataclass(frozen=True)
class Restore:
    """The version `at` which a table was restored `to` an older one."""

    at: int
    to: int


def _application(owner: str, restores: Sequence[Restore]) -> str:
    """What a table's marks are kept under since it was last restored."""
    return f"{owner}#{restores[-1].at}" if restores else owner


def _restored_to(restore: Row, commits: Sequence[Row]) -> int:
    given = restore.operationParameters
    if given.get("version") not in (None, "NULL", "null"):
        return int(given["version"])
    return max(int(row.version) for row in commits if row.at <= given["timestamp"])
