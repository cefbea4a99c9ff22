"""One table of a lakehouse, with the statements that both formats understand. Every write carries its mark."""

from __future__ import annotations

import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from tailrace import jvm
from tailrace.errors import SinkError
from tailrace.schema import TableSchema
from tailrace.sinks.lake.sql import SQL_SETTINGS, declared, dotted, literal, pairs, quoted

VERSION = "tailrace.version"
"""Table property: the source's table version that the columns follow."""
DROPPED = "tailrace.dropped"
"""Table property: columns that the source dropped and the table still has → their numbers at the source."""
PLAN = "tailrace.plan"
"""Table property: steps that change the columns and are under way; empty where there are none."""
LOG = "tailrace.log"
"""Table property: the log under which the table was made, and hence holds nothing else."""
BEGAN = "tailrace.began"
"""Table property: the offset of that log since which the table has held every change."""

FEW = 20_000
"""Plans of merges are long: compiling them pays later."""
LOADING = threading.Lock()
"""A JDBC catalog that is loaded twice at once may make its tables twice, and so it is with a namespace."""
LOCAL_FILES = {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", "fs.file.impl.disable.cache": "true"}
"""The local file system of Spark's checkpoints does not know its own scheme, which Iceberg asks for, and is not what
Hadoop's client of S3 keeps its buffers in."""
_SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    **SQL_SETTINGS,
}


@dataclass(frozen=True)
class Shape:
    """What a table looks like now."""

    schema: StructType
    properties: Mapping[str, str]

    @property
    def version(self) -> TableSchema | None:
        text = self.properties.get(VERSION)
        return TableSchema.from_dict(json.loads(text)) if text else None

    @property
    def dropped(self) -> dict[str, int]:
        """Columns that the source dropped and the table still has → their numbers at the source."""
        found: dict[str, int] = json.loads(self.properties.get(DROPPED) or "{}")
        return found

    @property
    def types(self) -> dict[str, Any]:
        """Columns → their types, as Spark writes them in JSON."""
        return {each.name: each.dataType.jsonValue() for each in self.schema.fields}

    def type(self, column: str) -> DataType | None:
        return self.schema[column].dataType if column in self.schema.names else None


@dataclass(frozen=True)
class Making:
    """How a new table is made."""

    columns: Mapping[str, DataType]
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]
    properties: Mapping[str, str]
    comment: str | None


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as it is now; `deleted` of its `rows` are."""

    bytes: int
    rows: int
    deleted: int
    partition: str

    @property
    def deleted_share(self) -> float:
        return self.deleted / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class Compaction:
    """Files to write anew: at most `files` of those below `below` bytes or with at least this share of deleted rows."""

    files: int
    below: int = 0
    deleted_share: float = 1.0


@dataclass(frozen=True)
class Version:
    """What a table was: a snapshot of Iceberg's, a version of Delta's. `mark` is None where it is known no more."""

    id: int
    at_us: int
    operation: str
    mark: int | None
    current: bool


class Target(ABC):
    """A table in a Spark session of its own: what marks a write is session-wide in both formats."""

    CONFLICTS: tuple[str, ...] = ()
    """Names of the JVM's exceptions that say somebody else wrote at the same time."""
    TELLS_CASES = True
    """Whether names that differ only in capitals are two."""

    def __init__(self, spark: SparkSession, name: str, owner: str, settings: Mapping[str, str]) -> None:
        self._session = lake_session(spark, settings)
        self.owner = owner
        self._name = name
        self.written = 0
        """The mark of the last write from here."""

    @property
    def session(self) -> SparkSession:
        """The table's session, made the calling thread's: each table is written by one thread or another."""
        jvm.activate(self._session)
        return self._session

    def tune(self, rows: int) -> None:
        """Prepare for statements about so many changes."""
        jvm.compile_plans(self.session, few=rows < FEW)

    @property
    @abstractmethod
    def sql_name(self) -> str:
        """The table in a statement, quoted."""

    @abstractmethod
    def shape(self) -> Shape | None:
        """What it looks like; None where there is no such table. Sees what others did."""

    @abstractmethod
    def mark(self) -> int:
        """The offset below which the table, as it is now, holds every change; 0: it has no mark."""

    @abstractmethod
    def state(self) -> int | None:
        """Another value whenever the table is another: its version or snapshot; None where there is no table."""

    def prepare(self) -> None:  # noqa: B027 most have nothing to begin
        """Begin what a write will wait for."""

    @abstractmethod
    def marking(self, mark: int) -> Mapping[str, str]:
        """The settings under which a write carries `mark`."""

    @abstractmethod
    def loaded(self) -> int:
        """The offset below which the table holds the new rows of its first snapshot, where that is above its mark."""

    @abstractmethod
    def load_marking(self, mark: int, loaded: int) -> Mapping[str, str]:
        """The settings under which a write of such rows carries `loaded`; the table's mark is and stays `mark`."""

    @abstractmethod
    def create(self, making: Making) -> None: ...

    @abstractmethod
    def clear(self, mark: int) -> None:
        """Remove every row."""

    # -- upkeep ----------------------------------------------------------------------------------------------

    @abstractmethod
    def files(self) -> list[DataFile]: ...

    @abstractmethod
    def delete_files(self) -> int:
        """How many files or vectors say which rows are deleted."""

    @abstractmethod
    def versions(self) -> list[Version]:
        """What the table was and can be again, oldest first."""

    def version_count(self) -> int:
        return len(self.versions())

    @abstractmethod
    def compact(self, compaction: Compaction) -> None:
        """Write files anew. The rows stay the same, and so does every mark."""

    @abstractmethod
    def expire(self, before: datetime) -> None:
        """Remove versions that are older, and files that only they have. The table and the versions that stay keep
        their marks."""

    @abstractmethod
    def roll_back(self, version: int) -> None:
        """Make the table what it was then, its columns and its mark included."""

    def columns_record(self) -> dict[str, str]:
        """Properties that tell `roll_back` what the columns are now. To be set before they change."""
        return {}

    def restore_columns(self) -> None:  # noqa: B027 most formats go back as a whole
        """Where somebody rolled the rows back without the columns, roll the columns back too."""

    def read(self, *, version: int | None = None, as_of: datetime | None = None) -> DataFrame:
        """The table, or what it was."""
        when = f" VERSION AS OF {version}" if version is not None else ""
        if as_of is not None:
            when = f" TIMESTAMP AS OF {literal(as_of.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f'))}"
        return self.session.sql(f"SELECT * FROM {self.sql_name}{when}")

    # -- what both formats share -----------------------------------------------------------------------------

    def at(self, state: int) -> DataFrame:
        """The table as it was at `state`, whatever others do to it meanwhile."""
        return self.session.sql(f"SELECT * FROM {self.sql_name} VERSION AS OF {state}")

    def execute(self, statement: str, mark: int | None = None) -> None:
        """Run a statement; a write with `mark` carries it."""
        self.execute_under({} if mark is None else self.marking(mark), statement)
        self.written = self.written if mark is None else mark

    def execute_under(self, settings: Mapping[str, str], statement: str) -> None:
        """Run a statement with settings for it alone."""
        for key, text in settings.items():
            self.session.conf.set(key, text)
        try:
            self.session.sql(statement).collect()
        finally:
            for key in settings:
                self.session.conf.unset(key)

    def append(self, rows: DataFrame, mark: int) -> None:
        with viewed(rows) as view:
            self.execute(self._insert(rows, view), mark)

    def load(self, rows: DataFrame, mark: int, loaded: int) -> None:
        """Append new rows of a first snapshot, which makes the table `loaded` up to there. Its mark stays."""
        with viewed(rows) as view:
            self.execute_under(self.load_marking(mark, loaded), self._insert(rows, view))

    def _insert(self, rows: DataFrame, view: str) -> str:
        names = ", ".join(map(quoted, rows.columns))
        return f"INSERT INTO {self.sql_name} ({names}) SELECT {names} FROM {view}"

    def merge(self, rows: DataFrame, statement: Callable[[str, str], str], mark: int) -> None:
        """Run the statement for this table and a view of `rows`."""
        with viewed(rows) as view:
            self.execute(statement(self.sql_name, view), mark)

    def create_namespace(self, parts: tuple[str, ...]) -> None:
        """Make it if it is not there. Somebody else may, between a catalog's look and its own doing."""
        name = dotted(parts)
        with LOADING:
            try:
                self.execute(f"CREATE NAMESPACE IF NOT EXISTS {name}")
            except (PySparkException, Py4JJavaError):
                if not self.session.catalog.databaseExists(name):
                    raise

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self.execute(f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ({pairs(properties)})")

    def add_columns(self, columns: Mapping[str, DataType]) -> None:
        shape = self.existing()
        missing = {name: each for name, each in columns.items() if shape.type(name) is None}
        if missing:
            self.execute(f"ALTER TABLE {self.sql_name} ADD COLUMNS ({declared(missing)})")

    def rename_column(self, before: str, after: str) -> None:
        self.execute(f"ALTER TABLE {self.sql_name} RENAME COLUMN {quoted(before)} TO {quoted(after)}")

    def drop_column(self, name: str) -> None:
        self.execute(f"ALTER TABLE {self.sql_name} DROP COLUMN {quoted(name)}")

    def widen_column(self, name: str, wanted: DataType) -> None:
        spelled = wanted.simpleString()
        self.execute(f"ALTER TABLE {self.sql_name} ALTER COLUMN {quoted(name)} TYPE {spelled}")

    def existing(self) -> Shape:
        """The shape of a table that must be there."""
        shape = self.shape()
        if shape is None:
            raise SinkError(
                "sink.table_gone", f"the table {self._name} is gone", hint="start the pipeline again: it is made anew"
            )
        return shape

    def texts_of(self, found: Any) -> dict[str, str]:
        """A map of the JVM's, in one call instead of some for each entry."""
        mapper = self.session._jvm.com.fasterxml.jackson.databind.ObjectMapper()  # type: ignore[union-attr]
        made: dict[str, str] = json.loads(mapper.writeValueAsString(found))
        return made

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a write failed only because somebody else wrote at the same time."""
        if not isinstance(error, PySparkException | Py4JJavaError):
            return False
        text = str(error)
        return any(name in text for name in self.CONFLICTS)


def superseded(owner: str, by: str) -> bool:
    """Whether marks are of a log that the same sink does not read any more."""
    (sink, log), (other, newer) = owner.rsplit("/", 1), by.rsplit("/", 1)
    return sink == other and log != newer


def lake_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session for large joins, where the stream's own is for small batches."""
    session = spark.newSession()
    cores = str(max(2, spark.sparkContext.defaultParallelism))
    # Delta lists a table's folder in as many tasks as the last says, ten thousand by default.
    tasks = ("spark.sql.shuffle.partitions", "spark.sql.sources.parallelPartitionDiscovery.parallelism")
    for key, text in {**_SETTINGS, **dict.fromkeys(tasks, cores), **settings}.items():
        session.conf.set(key, text)
    return session


@contextmanager
def viewed(rows: DataFrame) -> Iterator[str]:
    """A name under which every session sees `rows`."""
    name = f"tailrace_{uuid.uuid4().hex}"
    rows.createOrReplaceGlobalTempView(name)
    try:
        yield f"global_temp.{name}"
    finally:
        rows.sparkSession.catalog.dropGlobalTempView(name)


def mark_lost(table: str) -> SinkError:
    """What said how far the table is, is gone."""
    return SinkError(
        "sink.mark_lost",
        f"nothing that is left of {table} says how far it is: the snapshots or versions that did were removed",
        hint="let the newest with a mark be when you expire others; to begin anew, give the sink another id",
        where=table,
    )
