"""One Delta table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from threading import Thread
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tailrace import jvm
from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.sinks.delta.history import Commit, Restore, base_of, generation_of, loading, named
from tailrace.sinks.lake.sql import declared, dotted, literal, pairs, quoted
from tailrace.sinks.lake.target import (
    Compaction,
    DataFile,
    Making,
    Shape,
    Target,
    Version,
    lake_session,
    mark_lost,
    superseded,
)

_DEFAULTS = {"delta.enableDeletionVectors": "true"}
_NAMED_COLUMNS = {"delta.columnMapping.mode": "name"}
_UNNAMABLE = frozenset(" ,;{}()\n\t=")
"""What a column's name must not have, unless columns in files are named apart from those of the table."""
_TYPE_FEATURES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""Types that are features of Delta's, which a new table gets by itself and an old one does not."""
_WIDENING = {"delta.enableTypeWidening": "true"}
_VACUUM = ("retentionDurationCheck", "vacuum.retentionWindowIgnore", "vacuum.logging")
"""What would take the age for too little, ignore it, or make commits of its own."""
_SMALL = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
_SLIGHTLY = 1e-9
"""What makes "more than" an "at least"."""


class DeltaTarget(Target):
    CONFLICTS = ("ConcurrentAppend", "ConcurrentDelete", "ConcurrentTransaction", "ConcurrentWrite", "MetadataChanged")
    TELLS_CASES = False

    def __init__(
        self,
        spark: SparkSession,
        path: str | None,
        parts: tuple[str, ...] | None,
        owner: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """At `path`, or where the catalog says that `parts` names it; with both, it is registered there too."""
        super().__init__(spark, path or ".".join(parts or ()), owner, settings or {})
        self._given, self._parts, self._settings = path, parts, settings or {}
        self._location = path
        if path and parts and self._snapshot() is not None:
            self._register(path, parts)
        self._restores: list[Restore] = []
        self._application = owner
        """What marks are kept under since the table was last restored."""

    @property
    def sql_name(self) -> str:
        return f"delta.{quoted(self._given)}" if self._given else dotted(self._parts or ())

    def shape(self) -> Shape | None:
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        schema = StructType.fromJson(json.loads(snapshot.schema().json()))
        found = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot.metadata().configuration())
        return Shape(schema, self.texts_of(found))

    def state(self) -> int | None:
        snapshot = self._snapshot()
        return None if snapshot is None else int(snapshot.version())

    def mark(self) -> int:
        self._restores = self._read_restores()
        snapshot = self._snapshot()
        if snapshot is None:
            return 0
        self._application = self._application_at(snapshot)
        found = self._mark_of(snapshot)
        if found is None:
            raise mark_lost(self._name)
        return found

    def prepare(self) -> None:
        """A write that carries a mark asks for the table's transactions, which Delta lets Spark compute."""
        Thread(target=self._compute, name="delta-state", daemon=True).start()

    def _compute(self) -> None:
        with suppress(Exception):  # the write itself will say what is wrong
            snapshot = self._snapshot()
            if snapshot is not None:
                jvm.activate(self._small)
                snapshot.transactions()

    @cached_property
    def _small(self) -> SparkSession:
        """For what Delta computes of its own log, which is little."""
        session = lake_session(self.session, {**self._settings, **_SMALL})
        jvm.compile_plans(session, few=True)
        return session

    def marking(self, mark: int) -> Mapping[str, str]:
        return {
            "spark.databricks.delta.write.txnAppId": self._application,
            "spark.databricks.delta.write.txnVersion": str(mark),
        }

    def loaded(self) -> int:
        snapshot = self._snapshot()
        return 0 if snapshot is None else self._loaded_of(snapshot)

    def _loaded_of(self, snapshot: Any) -> int:
        """Of a version. What was loaded before the table was restored, only where it was written since by nobody."""
        known, generation = self._transactions(snapshot), self._generation_at(snapshot)
        found = known.get(named(loading(self.owner), generation))
        if found is not None or named(self.owner, generation) in known:
            return found or 0
        older = self._restored_from(snapshot)
        return 0 if older is None else self._loaded_of(older)

    def load_marking(self, mark: int, loaded: int) -> Mapping[str, str]:
        """As a transaction of its own: Delta skips one that has the version of the last."""
        application = named(loading(self.owner), generation_of(self._application))
        return {**self.marking(loaded), "spark.databricks.delta.write.txnAppId": application}

    def create(self, making: Making) -> None:
        partitions = f" PARTITIONED BY ({', '.join(map(quoted, making.partition_by))})" if making.partition_by else ""
        clusters = f" CLUSTER BY ({', '.join(map(quoted, making.cluster_by))})" if making.cluster_by else ""
        comment = f" COMMENT {literal(making.comment)}" if making.comment else ""
        properties = pairs({**_DEFAULTS, **_naming(making.columns), **making.properties})
        if self._parts and not self._given:
            self.create_namespace(self._parts[:-1])
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({declared(making.columns)}) USING delta"
            f"{partitions}{clusters}{comment} TBLPROPERTIES ({properties})"
        )
        self._location = self._given
        failpoint("delta.create.before_register")
        if self._given and self._parts:
            self._register(self._given, self._parts)

    def _register(self, path: str, parts: tuple[str, ...]) -> None:
        """Let the catalog know the table at its path."""
        self.create_namespace(parts[:-1])
        self.execute(f"CREATE TABLE IF NOT EXISTS {dotted(parts)} USING delta LOCATION {literal(path)}")

    def clear(self, mark: int) -> None:
        self.execute(f"DELETE FROM {self.sql_name}", mark)

    def add_columns(self, columns: Mapping[str, DataType]) -> None:
        shape = self.existing()
        missing = {name: each for name, each in columns.items() if shape.type(name) is None}
        if missing:
            self._enable({**_naming(missing), **_features(missing.values())})
            super().add_columns(missing)

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

    def _path(self) -> str | None:
        """Where the table is; None where the catalog has no such table."""
        if self._location is None and self.session.catalog.tableExists(self.sql_name):
            [detail] = self.session.sql(f"DESCRIBE DETAIL {self.sql_name}").select("location").collect()
            self._location = str(detail.location)
        return self._location

    def _log(self) -> Any:
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.session._jsparkSession, self._path())

    def _snapshot(self) -> Any:
        if self._path() is None:
            return None
        log, nothing = self._log(), self._jvm.scala.Option.empty()
        snapshot = log.update(False, nothing, nothing)
        return None if snapshot.version() < 0 else snapshot

    def _mark_of(self, snapshot: Any) -> int | None:
        """The mark of a version. Restoring a table keeps its transaction versions, so a restored table has marks of its
        own from there on, and before its first one the mark of the version it was restored to. None: that is gone."""
        found = self._transactions(snapshot).get(self._application_at(snapshot))
        if found is not None:
            return found
        if not any(each.at <= snapshot.version() for each in self._restores):
            return 0
        older = self._restored_from(snapshot)
        return None if older is None else self._mark_of(older)

    def _restored_from(self, snapshot: Any) -> Any:
        """The version that a version was restored to; None where it was not, or that is gone."""
        restores = [each for each in self._restores if each.at <= snapshot.version()]
        return self._version(restores[-1].to) if restores else None

    def _application_at(self, snapshot: Any) -> str:
        """Under which name a version keeps marks."""
        return named(self.owner, self._generation_at(snapshot))

    def _generation_at(self, snapshot: Any) -> int:
        """When a version was restored last. A restore that is too old for the history left its number in names."""
        owners = (self.owner, loading(self.owner))
        restores = [each.at for each in self._restores if each.at <= snapshot.version()]
        restores += [generation_of(name) for name in self._transactions(snapshot) if base_of(name) in owners]
        return max(restores, default=0)

    def _transactions(self, snapshot: Any) -> dict[str, int]:
        found = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot.transactions())
        return {str(name): int(found[name]) for name in found}

    def _read_restores(self, commits: Sequence[Commit] | None = None) -> list[Restore]:
        known = self._commits() if commits is None else commits
        return [Restore(each.version, self._origin(each, known)) for each in known if each.operation == "RESTORE"]

    def _origin(self, restore: Commit, commits: Sequence[Commit]) -> int:
        version = restore.parameters.get("version")
        if version not in (None, "NULL", "null"):
            return int(version)
        given = F.lit(str(restore.parameters["timestamp"])).cast("timestamp")
        [row] = self.session.range(1).select(F.unix_micros(given).alias("us")).collect()
        return max(each.version for each in commits if each.us <= row.us)

    def _commits(self) -> list[Commit]:
        """What Delta's log has of each version, oldest first. Much cheaper than its history."""
        lines = self.session.read.text(f"{self._path()}/_delta_log/[0-9]*.json")
        ours = F.col("value").startswith('{"commitInfo"') | F.col("value").startswith('{"txn"')
        found = lines.filter(ours & F.col("_metadata.file_name").rlike(r"^\d+\.json$")).select(
            F.substring_index("_metadata.file_name", ".", 1).cast("long").alias("version"),
            F.unix_micros("_metadata.file_modification_time").alias("us"),
            "value",
        )
        commits: dict[int, Commit] = {}
        for row in found.collect():
            commits.setdefault(row.version, Commit(row.version, row.us)).note(json.loads(row.value), self.owner)
        return [commits[number] for number in sorted(commits)]

    def _version(self, number: int) -> Any:
        """An older version's snapshot; None where Delta has removed it."""
        nothing = self._jvm.scala.Option.empty()
        try:
            return self._log().getSnapshotAt(number, nothing, nothing, False)
        except (PySparkException, Py4JJavaError):
            return None

    # -- upkeep ----------------------------------------------------------------------------------------------

    def files(self) -> list[DataFile]:
        vector = F.col("deletionVector.cardinality")
        found = self._files().select(
            "size",
            F.coalesce(F.get_json_object("stats", "$.numRecords").cast("long"), F.lit(0)),
            F.coalesce(vector, F.lit(0)),
            F.to_json("partitionValues"),
        )
        return [DataFile(*row) for row in found.collect()]

    def delete_files(self) -> int:
        return self._files().filter("deletionVector is not null").count()

    def versions(self) -> list[Version]:
        """Marks are read from the commits, in order."""
        commits = self._commits()
        self._restores = self._read_restores(commits)
        restores = {each.at: each.to for each in self._restores}
        marks: dict[int, int | None] = {}
        for commit in commits:
            origin = restores.get(commit.version, commit.version - 1)
            if commit.mark is not None:
                marks[commit.version] = commit.mark
            else:
                marks[commit.version] = marks[origin] if origin in marks else self._known_mark(commit.version)
        return [
            Version(each.version, each.us, each.operation, marks[each.version], each is commits[-1]) for each in commits
        ]

    def version_count(self) -> int:
        return len(self._commits())

    def compact(self, compaction: Compaction) -> None:
        """Files of the same size go together, be it more than wanted. Delta decides itself what a table with
        clustering needs."""
        settings = {
            "minFileSize": str(compaction.below),
            "maxDeletedRowsRatio": str(max(0.0, compaction.deleted_share - _SLIGHTLY)),
        }
        prefix = "spark.databricks.delta.optimize."
        self.execute_under({prefix + key: text for key, text in settings.items()}, f"OPTIMIZE {self.sql_name}")

    def expire(self, before: datetime) -> None:
        """Files first, then the log: a version that is listed may be unreadable for a moment, never the other way."""
        age = max(0.0, (datetime.now(UTC) - before).total_seconds())
        self.execute_under(
            {f"spark.databricks.delta.{key}.enabled": "false" for key in _VACUUM},
            f"VACUUM {self.sql_name} RETAIN {age / 3600:.6f} HOURS",
        )
        failpoint("delta.expire.before_log")
        snapshot = self._snapshot()
        if snapshot is not None and self._marked_since_restored(snapshot):
            self._forget(snapshot, int(age * 1000))

    def _marked_since_restored(self, snapshot: Any) -> bool:
        """Whether nobody needs the version that the table was restored to, to know the own mark."""
        restores = self._read_restores()
        if not restores:
            return True
        marks = self._transactions(snapshot)
        owners = {self.owner} | {base_of(name) for name in marks}
        return all(named(each, restores[-1].at) in marks for each in owners if not superseded(each, self.owner))

    def _forget(self, snapshot: Any, age_ms: int) -> None:
        """Remove what is older from Delta's log, which needs a checkpoint to begin with."""
        log, jvm = self._log(), self._jvm
        nothing = jvm.scala.Option.empty()
        log.checkpoint(snapshot, nothing)
        failpoint("delta.expire.after_checkpoint")
        kept = jvm.scala.jdk.javaapi.OptionConverters.toScala(jvm.java.util.OptionalLong.of(age_ms))
        log.cleanUpExpiredLogs(snapshot, nothing, kept, jvm.org.apache.spark.sql.delta.TruncationGranularity.MINUTE())

    def read(self, *, version: int | None = None, as_of: datetime | None = None) -> DataFrame:
        """Delta itself knows no time after its last commit."""
        if as_of is None:
            return super().read(version=version)
        found = [each.version for each in self._commits() if each.us <= as_of.timestamp() * 1e6]
        if not found:
            raise SinkError("sink.no_version", f"the table {self._name} has nothing from before {as_of.isoformat()}")
        return super().read(version=found[-1])

    def roll_back(self, version: int) -> None:
        self.execute(f"RESTORE TABLE {self.sql_name} TO VERSION AS OF {version}")

    def _files(self) -> DataFrame:
        return DataFrame(self._snapshot().allFiles().toDF(), self.session)

    def _known_mark(self, number: int) -> int | None:
        if number == 0:
            return 0
        found = self._version(number)
        return None if found is None else self._mark_of(found)


def _features(types: Iterable[DataType]) -> Mapping[str, str]:
    """The properties without which an existing table takes no column of these types."""
    spelled = " ".join(each.simpleString() for each in types)
    return {f"delta.feature.{name}": "supported" for kind, name in _TYPE_FEATURES.items() if kind in spelled}


def _naming(columns: Iterable[str]) -> Mapping[str, str]:
    """The properties that columns of these names need."""
    return _NAMED_COLUMNS if any(_UNNAMABLE & set(name) for name in columns) else {}
