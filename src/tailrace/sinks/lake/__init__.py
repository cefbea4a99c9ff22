"""Lakehouse tables: what Delta and Iceberg share."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from pyspark.sql import SparkSession

from tailrace.config import Duration, Model, Secret
from tailrace.contracts import Check, Delivery, Gather, Subject
from tailrace.contracts.checking import check_directory
from tailrace.schema import TableSchema
from tailrace.sinks.lake.keeper import LEDGER, LakeKeeper
from tailrace.sinks.lake.maintenance import Maintenance
from tailrace.sinks.lake.mirror import LakeMirror
from tailrace.sinks.lake.target import Target
from tailrace.sinks.paths import path_segment
from tailrace.sinks.tables import Log, TableSink

Evolution = Literal["adapt", "lenient", "halt"]

_HOLES = re.compile(r"\{(\w+)\}")
TRANSFORM = re.compile(r"(?P<name>years|months|days|hours|bucket|truncate)\((?:(?P<width>\d+),\s*)?(?P<column>.+)\)")
"""A partition that is made of a column, where the format has such."""
SNAPSHOT_BATCHES = 16
_KNOWN = ("source", "database", "schema", "table")


def _known_holes(template: str) -> str:
    for hole in _HOLES.findall(template):
        if hole not in _KNOWN:
            hint = "use " + ", ".join(f"{{{name}}}" for name in _KNOWN)
            message = f"there is no '{{{hole}}}' in the name of a table"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
    return template


def placed(location: str) -> str:
    """A location that is the same wherever a process stands."""
    return location if ":" in location else str(Path(location).absolute())


class TableOptions(Model):
    """How a table is made, and what happens when it changes. Where several patterns fit, the first counts."""

    partition_by: Annotated[
        tuple[str, ...],
        Field(description="Partitions of a new table: columns, or transforms where the format has them."),
    ] = ()
    cluster_by: Annotated[
        tuple[str, ...], Field(description="Columns that order a new table's files: clustering, or a sort order.")
    ] = ()
    properties: Annotated[
        dict[str, str], Field(description="Table properties of a new table; they win over the sink's own.")
    ] = Field(default_factory=dict)
    comment: Annotated[str | None, Field(description="Comment of a new table.")] = None
    evolution: Annotated[Evolution | None, Field(description="Overrides the sink's `evolution` for these tables.")] = (
        None
    )


class LakeSink(TableSink):
    """What Delta and Iceberg sinks have in common."""

    write_mode: Annotated[
        Literal["append", "upsert"],
        Field(
            description="`append` keeps every change as a row, with `_op`, `_ts`, `_tx`, `_position`, `_event_id`, "
            "`_seq` and `_unchanged`; `upsert` keeps the table as the source has it."
        ),
    ] = "append"
    soft_delete: Annotated[
        bool, Field(description="With `upsert`: deleted rows stay, with `_is_deleted` true and `_deleted_at`.")
    ] = False
    table_name: Annotated[
        str,
        Field(
            min_length=1,
            description="Name of a table in the lake, with the holes `{source}`, `{database}`, `{schema}`, `{table}`.",
            examples=["{source}_{table}"],
        ),
        AfterValidator(_known_holes),
    ] = "{schema}__{table}"
    auto_create_table: Annotated[bool, Field(description="Whether missing tables are made.")] = True
    commit_interval: Annotated[
        Duration, Field(description="How long changes may wait for others: fewer commits, larger files.")
    ] = timedelta(seconds=10)
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            description="Changes, or sixteen times as many rows of snapshots, that do not wait for `commit_interval`.",
        ),
    ] = 200_000
    write_executor_threads: Annotated[
        int, Field(ge=0, le=64, description="Tables that are written at the same time; 0: as many as fit the cores.")
    ] = 0
    partition_by: Annotated[
        tuple[str, ...],
        Field(
            description="Partitions of new tables that have these columns, where `tables` says nothing. Iceberg has "
            "transforms too: `days(column)`, `bucket(16, column)`."
        ),
    ] = ()
    without_key: Annotated[
        Literal["append", "halt"],
        Field(
            description="With `upsert`, a table without a key: `append` its rows as long as they are only inserted, or "
            "`halt` it."
        ),
    ] = "append"
    json_as: Annotated[
        Literal["string", "variant"],
        Field(description="The type of JSON columns in new tables. Iceberg has variants with `format_version: 3`."),
    ] = "string"
    evolution: Annotated[
        Evolution,
        Field(
            description="What to do when a value does not fit its column, or a column's type changes beyond widening: "
            "`adapt` makes the column text, `lenient` keeps the type and puts such values into `_unfit` as text, "
            "`halt` stops this table alone."
        ),
    ] = "adapt"
    dropped_columns: Annotated[
        Literal["keep", "drop"],
        Field(
            description="What becomes of a column that the source dropped: it stays, NULL in new rows and renamed to "
            "`NAME__dropped` once the source has another column of its name, or goes too."
        ),
    ] = "keep"
    tables: Annotated[
        dict[str, TableOptions],
        Field(
            description="Options of some tables, by a pattern such as `public.*`.",
            examples=[{"public.orders": {"evolution": "halt"}}],
        ),
    ] = Field(default_factory=dict)

    s3_endpoint: Annotated[str | None, Field(description="Address of an S3-compatible store. Absent: AWS.")] = None
    s3_access_key_id: Annotated[
        Secret | None, Field(description="Who reads and writes. Absent: the environment says.")
    ] = None
    s3_secret_access_key: Annotated[Secret | None, Field(description="Its secret. Absent: the environment says.")] = (
        None
    )
    s3_region: Annotated[str, Field(description="The store's region.")] = "us-east-1"
    maintenance: Annotated[Maintenance, Field(description="Merging small files and removing old snapshots.")] = Field(
        default_factory=Maintenance
    )

    def mirrors(self) -> bool:
        return self.write_mode == "upsert"

    def columns(self) -> tuple[str, ...]:
        needed = (
            "seq",
            "op",
            "schema",
            "table",
            "key",
            "before",
            "after",
            "unchanged",
            "ts_us",
            "schema_id",
            "headers",
        )
        return (*needed, "tx_id", "position", "event_id") if self.write_mode == "append" else needed

    def gather(self) -> Gather:
        return Gather(self.commit_interval.total_seconds(), rows=self.batch_size)

    def snapshot_batches(self) -> int:
        """Rows of a first snapshot are appended, whose cost per commit is small the larger it is. Where they must be
        merged instead, the keeper cuts the batch."""
        return SNAPSHOT_BATCHES

    def keeper(self, spark: SparkSession, delivery: Delivery, log: Log, state_dir: Path) -> LakeKeeper:
        return LakeKeeper(self, spark, delivery, log, state_dir)

    repairs: ClassVar[bool] = True

    def mirror(
        self, spark: SparkSession, schema: TableSchema, delivery: Delivery, log_id: str, state_dir: Path
    ) -> LakeMirror:
        target = self.target_for(spark, schema, delivery, log_id)
        return LakeMirror(self, target, schema.name, state_dir / LEDGER, log_id)

    def options(self, table: TableSchema) -> TableOptions:
        """The options of a table of the source."""
        found = (options for pattern, options in self.tables.items() if fnmatchcase(table.name, pattern))
        return next(found, TableOptions())

    def partitions_of(self, table: TableSchema) -> tuple[str, ...]:
        """How a new table is partitioned."""
        names = {column.name for column in table.columns}
        common = (each for each in self.partition_by if self.column_of(each) in names)
        return self.options(table).partition_by or tuple(common)

    def column_of(self, partition: str) -> str:
        """The column of a partition, which may be a transform of it where the format has them."""
        return partition

    def evolution_of(self, table: TableSchema) -> Evolution:
        return self.options(table).evolution or self.evolution

    def name_of(self, table: TableSchema, delivery: Delivery) -> str:
        """What the table is called in the lake."""
        parts = {
            "source": delivery.source,
            "database": table.database,
            "schema": table.schema,
            "table": table.table,
        }
        return _HOLES.sub(lambda hole: parts[hole[1]], self.table_name)

    def folder_of(self, name: str) -> str:
        """The one folder, beside those of other tables, in which the table called `name` is."""
        return path_segment(*name.split("."))

    def target_for(self, spark: SparkSession, schema: TableSchema, delivery: Delivery, log_id: str) -> Target:
        """The table that keeps a table of the source; its marks are of this pipeline, sink and log."""
        owner = f"{delivery.pipeline}/{self.id}/{log_id}"
        return self.target(spark, self.name_of(schema, delivery), owner)

    @property
    def one_writer(self) -> bool:
        """Whether only one process may write at a time, for want of a commit that fails for the second."""
        return False

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        folder = self.local_folder()
        if folder is None:
            yield subject.skipped("storage", "it is looked at when the pipeline runs")
        else:
            yield from check_directory(subject, folder)

    @abstractmethod
    def local_folder(self) -> Path | None:
        """Where the tables are, if that is a folder of this machine."""

    @abstractmethod
    def target(self, spark: SparkSession, name: str, owner: str) -> Target:
        """The table called `name`; `owner` names the marks."""
