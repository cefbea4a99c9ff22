"""Apache Iceberg tables."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.config import Secret
from tailrace.contracts import EXTENSIONS, Gather, Jar
from tailrace.failpoints import failpoint
from tailrace.sinks.lake import TRANSFORM, LakeSink, placed
from tailrace.sinks.lake.sql import declared, dotted, literal, pairs, quoted
from tailrace.sinks.lake.target import (
    DROPPED,
    LOADING,
    LOCAL_FILES,
    PLAN,
    VERSION,
    Compaction,
    DataFile,
    Making,
    Shape,
    Target,
    Version,
    mark_lost,
    superseded,
)

_VERSION = "1.12.0"
_DEFAULTS = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
_COLUMNS = "tailrace.columns."
"""Table property, followed by a schema's id: what the table's properties said of its columns under that schema."""
_PROPERTY = "spark.sql.iceberg.snapshot-property."
_MARK = "tailrace.mark."
_LOADED = "tailrace.loaded."
_FILE_BYTES = 512 * 1024 * 1024
"""Of a file, where the table does not say."""
_NO_BYTES = (1 << 63) - 1
_DELETED_FROM = (
    "coalesce(referenced_data_file, if(lower_bounds[2147483546] = upper_bounds[2147483546], "
    "decode(lower_bounds[2147483546], 'UTF-8'), null))"
)
"""The one file that a delete file is about: named, or the only value of its column `file_path`."""
_VARIANTS = _VECTORS = 3
"""The format from which on there are variants, and deletion vectors replace files of positions."""


class IcebergSink(LakeSink):
    """Keeps an Iceberg table for each table of the source.

    Delivery is exactly once: every snapshot carries the log's offset in its summary, looked up along the current
    snapshot's ancestry, so a repeat is skipped, and a table that was rolled back catches up from the mark it had then.
    One snapshot covers a table's part of a batch: a transaction is atomic per table. Truncates and schema changes are
    steps of their own. Logical messages belong to no table and are not kept.
    """

    catalog_name: Annotated[str, Field(pattern=r"^\w+$", description="The catalog's name in Spark SQL.")] = "default"
    catalog_uri: Annotated[
        Secret | None,
        Field(
            description="A JDBC or REST catalog. Absent: the warehouse is its own catalog.",
            examples=["sqlite:////lake/catalog.db", "https://catalog.example/"],
        ),
    ] = None
    warehouse: Annotated[
        str,
        Field(min_length=1, description="Folder or bucket of the tables.", examples=["/lake", "s3://bucket/lake"]),
        AfterValidator(placed),
    ]
    table_namespace: Annotated[str, Field(min_length=1, description="The tables' namespace.")] = "default"
    format_version: Annotated[Literal[2, 3], Field(description="Format of new tables.")] = 2
    flush_interval_seconds: Annotated[
        float | None, Field(ge=0, description="Another name for `commit_interval`, in seconds.")
    ] = None

    def local_folder(self) -> Path | None:
        return None if ":" in self.warehouse else Path(self.warehouse)

    def jars(self) -> tuple[Jar, ...]:
        found = [Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", _VERSION)]
        if self._uri().startswith("jdbc:sqlite:"):
            found.append(Jar("org.xerial", "sqlite-jdbc", "3.50.3.0"))
        if self.warehouse.startswith("s3:"):
            found.append(Jar("org.apache.iceberg", "iceberg-aws-bundle", _VERSION))
        return tuple(found)

    def spark_settings(self) -> dict[str, str]:
        return {EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}

    def gather(self) -> Gather:
        known = super().gather()
        return known if self.flush_interval_seconds is None else replace(known, seconds=self.flush_interval_seconds)

    def column_of(self, partition: str) -> str:
        found = TRANSFORM.fullmatch(partition)
        return found["column"] if found else partition

    def target(self, spark: SparkSession, name: str, owner: str) -> IcebergTarget:
        """Where the catalog makes the folder's name of the table's, the table is called as its folder may be."""
        namespace, folder = self.table_namespace.split("."), self.folder_of(name)
        called = name if self._catalog()["type"] == "jdbc" else folder
        location = None if called == folder else "/".join((self.warehouse.rstrip("/"), *namespace, folder))
        parts = (self.catalog_name, *namespace, called)
        return IcebergTarget(spark, parts, owner, self._settings(), self.format_version, location)

    @model_validator(mode="after")
    def _one_interval(self) -> Self:
        if {"commit_interval", "flush_interval_seconds"} <= self.model_fields_set:
            hint = "leave one of them out"
            message = "commit_interval and flush_interval_seconds are the same thing"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.warehouse.startswith("s3:") and self.catalog_uri is None:
            hint = "add catalog_uri, such as sqlite:////lake/catalog.db"
            message = "a warehouse in S3 needs a catalog that commits atomically"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    @model_validator(mode="after")
    def _has_variants(self) -> Self:
        if self.json_as == "variant" and self.format_version < _VARIANTS:
            message, hint = "tables of format version 2 have no variants", "add format_version: 3"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    def _uri(self) -> str:
        """The catalog as Iceberg names it."""
        given = "" if self.catalog_uri is None else self.catalog_uri.get_secret_value()
        return re.sub(r"^sqlite:///", "jdbc:sqlite:", given)

    def _settings(self) -> dict[str, str]:
        prefix = f"spark.sql.catalog.{self.catalog_name}"
        return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {
            f"{prefix}.{name}": text for name, text in self._catalog().items()
        }

    def _catalog(self) -> dict[str, str]:
        uri = self._uri()
        found = {"warehouse": self.warehouse, "cache-enabled": "false"}
        if uri.startswith("http"):
            found |= {"type": "rest", "uri": uri}
        elif uri:
            found |= {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}
        else:
            found["type"] = "hadoop"
        if self.warehouse.startswith("s3:"):
            return found | self._s3()
        return found | {f"hadoop.{key}": text for key, text in LOCAL_FILES.items()}

    def _s3(self) -> dict[str, str]:
        found = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": self.s3_region}
        if self.s3_endpoint is not None:
            found |= {"s3.endpoint": self.s3_endpoint, "s3.path-style-access": "true"}
        if self.s3_access_key_id is not None:
            found["s3.access-key-id"] = self.s3_access_key_id.get_secret_value()
        if self.s3_secret_access_key is not None:
            found["s3.secret-access-key"] = self.s3_secret_access_key.get_secret_value()
        return found


class IcebergTarget(Target):
    CONFLICTS = ("ValidationException", "CommitFailedException", "CommitStateUnknownException")

    def __init__(
        self,
        spark: SparkSession,
        parts: tuple[str, ...],
        owner: str,
        settings: Mapping[str, str],
        version: int,
        location: str | None = None,
    ) -> None:
        """`location`: where a new table is made; None: the catalog says."""
        super().__init__(spark, ".".join(parts), owner, settings)
        self._parts, self._version, self._location = parts, version, location
        self._property = _MARK + owner
        with LOADING:
            self.session.catalog.tableExists(self.sql_name)  # loads the catalog

    @property
    def sql_name(self) -> str:
        return dotted(self._parts)

    def shape(self) -> Shape | None:
        if not self.session.catalog.tableExists(self.sql_name):
            return None
        return Shape(self.session.table(self.sql_name).schema, self.texts_of(self._table().properties()))

    def state(self) -> int | None:
        if not self.session.catalog.tableExists(self.sql_name):
            return None
        snapshot = self._table().currentSnapshot()
        return 0 if snapshot is None else int(snapshot.snapshotId())

    def at(self, state: int) -> DataFrame:
        """Under today's names: a snapshot has those from when it was made, and a changed column makes no snapshot."""
        if not state:
            return self.session.table(self.sql_name).limit(0)
        table, then = self._table(), super().at(state)
        known = table.schemas().get(table.snapshot(state).schemaId())
        names = {str(each.name()): table.schema().findField(each.fieldId()) for each in known.columns()}
        return then.select(*(then[quoted(was)].alias(str(now.name())) for was, now in names.items() if now is not None))

    def mark(self) -> int:
        table = self._table()
        snapshot = table.currentSnapshot()
        found = 0 if snapshot is None else _mark_at(table, snapshot, self._property)
        if found is None:
            raise mark_lost(self._name)
        return found

    def marking(self, mark: int) -> Mapping[str, str]:
        return {_PROPERTY + self._property: str(mark)}

    def loaded(self) -> int:
        """In the newest snapshot that has a mark: a later one makes it void."""
        table = self._table()
        summaries = (each.summary() for each in _ancestry(table, table.currentSnapshot()))
        newest = next((each for each in summaries if each.get(self._property) is not None), None)
        return 0 if newest is None else int(newest.get(_LOADED + self.owner) or 0)

    def load_marking(self, mark: int, loaded: int) -> Mapping[str, str]:
        return {**self.marking(mark), f"{_PROPERTY}{_LOADED}{self.owner}": str(loaded)}

    def create(self, making: Making) -> None:
        self.create_namespace(self._parts[:-1])
        failpoint("iceberg.create.after_namespace")
        partitions = ", ".join(map(_transform, making.partition_by))
        comment = f" COMMENT {literal(making.comment)}" if making.comment else ""
        location = f" LOCATION {literal(self._location)}" if self._location else ""
        properties = pairs({"format-version": str(self._version), **_DEFAULTS, **making.properties})
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({declared(making.columns)}) USING iceberg"
            f"{f' PARTITIONED BY ({partitions})' if partitions else ''}{location}{comment} TBLPROPERTIES ({properties})"
        )
        failpoint("iceberg.create.before_order")
        if making.cluster_by:
            order = ", ".join(map(quoted, making.cluster_by))
            self.execute(f"ALTER TABLE {self.sql_name} WRITE ORDERED BY {order}")

    def clear(self, mark: int) -> None:
        expressions = self.session._jvm.org.apache.iceberg.expressions.Expressions  # type: ignore[union-attr]
        delete = self._table().newDelete().deleteFromRowFilter(expressions.alwaysTrue())
        delete.set(self._property, str(mark)).commit()
        self.written = mark

    # -- upkeep ----------------------------------------------------------------------------------------------

    def files(self) -> list[DataFile]:
        deletes = self._metadata("delete_files").groupBy(F.expr(_DELETED_FROM).alias("of"))
        gone = deletes.agg(F.sum("record_count").alias("gone"))
        files = self._metadata("data_files")
        partition = F.to_json("partition") if "partition" in files.columns else F.lit("")
        found = files.join(gone, files["file_path"] == gone["of"], "left").select(
            "file_size_in_bytes", "record_count", F.coalesce("gone", F.lit(0)), partition
        )
        return [DataFile(*row) for row in found.collect()]

    def delete_files(self) -> int:
        return self._metadata("delete_files").count()

    def versions(self) -> list[Version]:
        table = self._table()
        current = self.state()
        return [
            Version(
                int(each.snapshotId()),
                int(each.timestampMillis()) * 1000,
                str(each.operation()),
                _mark_at(table, each, self._property),
                each.snapshotId() == current,
            )
            for each in table.snapshots()
        ]

    def compact(self, compaction: Compaction) -> None:
        target = int(self.existing().properties.get("write.target-file-size-bytes", _FILE_BYTES))
        options = {
            "min-input-files": "2",
            "min-file-size-bytes": str(min(compaction.below, target - 1)),
            "max-file-size-bytes": str(_NO_BYTES),
            "delete-ratio-threshold": str(compaction.deleted_share),
            "max-files-to-rewrite": str(compaction.files),
            "remove-dangling-deletes": "true",
        }
        self._call("rewrite_data_files", f"options => map({_listed(options)})")
        failpoint("iceberg.compact.before_deletes")
        if self._format() < _VECTORS:
            self._call("rewrite_position_delete_files")

    def expire(self, before: datetime) -> None:
        """Every snapshot that stays must find its marks among its ancestors: what they are is in no other place."""
        table = self._table()
        kept = self._kept(table, int(before.timestamp() * 1000))
        kept |= {int(ref.snapshotId()) for ref in table.refs().values()}
        old = [
            int(each.snapshotId()) for each in table.snapshots() if each.timestampMillis() < before.timestamp() * 1000
        ]
        gone = [str(each) for each in old if each not in kept]
        if gone:  # the time alone removes nothing: it is that of no snapshot
            ids = f"array({', '.join(gone)})"
            self._call("expire_snapshots", f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => {ids}")

    def _kept(self, table: Any, before_ms: int) -> set[int]:
        """The current snapshot and its ancestors, back to those from which the ones that are not old have marks."""
        line = list(_ancestry(table, table.currentSnapshot()))
        young = max((place for place, each in enumerate(line) if each.timestampMillis() >= before_ms), default=0)
        wanted = {name for each in line[young:] for name in each.summary() if self._is_wanted(name)}
        end = young
        while end < len(line) and (wanted := wanted - set(line[end].summary())):
            end += 1
        return {int(each.snapshotId()) for each in line[: end + 1]}

    def _is_wanted(self, name: str) -> bool:
        return name.startswith(_MARK) and not superseded(name.removeprefix(_MARK), self.owner)

    def roll_back(self, version: int) -> None:
        """In one commit with the columns of then. Iceberg's own procedure leaves them as they are now: a column that
        was dropped since, or became text, would have lost its values."""
        table = self._table()
        operations, records = table.operations(), self._records(table)
        snapshot = _settled(table, version, records)
        schema = min((each for each in records if each >= snapshot.schemaId()), default=None)
        jvm: Any = self.session._jvm
        base = operations.current()
        change = jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
        change = change.setBranchSnapshot(snapshot.snapshotId(), "main")
        if schema is not None:
            change = change.setCurrentSchema(schema).setProperties({**records[schema], PLAN: ""})
        operations.commit(base, change.build())

    def columns_record(self) -> dict[str, str]:
        table = self._table()
        properties = self.texts_of(table.properties())
        record = {name: properties.get(name, "") for name in (VERSION, DROPPED)}
        return {f"{_COLUMNS}{table.schema().schemaId()}": json.dumps(record)}

    def restore_columns(self) -> None:
        state = self.state()
        if state:
            self.roll_back(state)

    def _records(self, table: Any) -> dict[int, dict[str, str]]:
        """What `columns_record` wrote, by the id of a schema that the table still has."""
        found, schemas = self.texts_of(table.properties()), table.schemas()
        records = {int(key.removeprefix(_COLUMNS)): found[key] for key in found if key.startswith(_COLUMNS)}
        return {schema: json.loads(each) for schema, each in records.items() if schemas.containsKey(schema)}

    def _call(self, procedure: str, arguments: str = "") -> None:
        """A procedure of the table's catalog."""
        given = f"table => {literal(self.sql_name)}" + (f", {arguments}" if arguments else "")
        self.execute(f"CALL {quoted(self._parts[0])}.system.{procedure}({given})")

    def _metadata(self, name: str) -> DataFrame:
        return self.session.table(f"{self.sql_name}.{name}")

    def _format(self) -> int:
        return int(self._table().operations().current().formatVersion())

    def _table(self) -> Any:
        session = self.session
        jvm: Any = session._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, self.sql_name)


def _ancestry(table: Any, snapshot: Any) -> Iterator[Any]:
    """A snapshot, its parent, and so on, as far as they are kept."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def _settled(table: Any, version: int, records: Container[int]) -> Any:
    """The snapshot, or where it is from the middle of a change of columns the one before that change: it has the same
    rows. Such a one has no mark, and a schema that the table had only for a moment."""
    current = table.schema().schemaId()
    for each in _ancestry(table, table.snapshot(version)):
        marked = any(str(name).startswith(_MARK) for name in each.summary())
        if marked or each.schemaId() == current or each.schemaId() in records:
            return each
    return table.snapshot(version)


def _mark_at(table: Any, snapshot: Any, name: str) -> int | None:
    """The mark of a snapshot, by the property's name; None where an ancestor is gone that may have had it."""
    oldest = snapshot
    for each in _ancestry(table, snapshot):
        mark = each.summary().get(name)
        if mark is not None:
            return int(mark)
        oldest = each
    return 0 if oldest.parentId() is None else None


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(key)}, {literal(text)}" for key, text in options.items())


def _transform(spelled: str) -> str:
    """A partition as SQL, its column quoted."""
    found = TRANSFORM.fullmatch(spelled)
    if found is None:
        return quoted(spelled)
    width = f"{found['width']}, " if found["width"] else ""
    return f"{found['name']}({width}{quoted(found['column'])})"
