"""The lake tables of a pipeline: what they are and were, going back, and upkeep. Also while the pipeline runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.changelog import LogReader
from tailrace.config.problems import nearest
from tailrace.contracts import Delivery
from tailrace.errors import ConfigError, SinkError
from tailrace.jvm import reason
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.ledger import Entry, TableLedger
from tailrace.sinks.lake.maintenance import FAILURES, compact, debt_of, expire
from tailrace.sinks.lake.sql import quoted
from tailrace.sinks.lake.target import Target, Version
from tailrace.sinks.tables import Debt
from tailrace.spark.libraries import open_for
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout, is_running

TRIES = 3
"""How often upkeep is begun again where the pipeline wrote first."""
LISTED = 20


@dataclass(frozen=True)
class LakeTable:
    """A table of the source in a sink's lake."""

    sink: LakeSink
    source: str
    name: str
    target: Target
    entry: Entry


@dataclass(frozen=True)
class TableFacts:
    """A table as it is. `mark` is None where it is gone; `halted` says why it waits."""

    sink: str
    source: str
    name: str
    rows: int
    mark: int | None
    debt: Debt
    halted: str


@dataclass(frozen=True)
class Rollback:
    """What going back means: the table's mark becomes `mark`, and the pipeline brings it from there to where it was."""

    table: str
    version: int
    mark: int
    before: int | None
    running: bool
    replayable: bool
    """Whether the log still has everything from `mark` on."""

    @property
    def next(self) -> str:
        """What the pipeline will do."""
        if not self.replayable:
            return f"the log has not kept everything since offset {self.mark}: the pipeline will halt this table"
        when = "with the table's next change" if self.running else "at its next start"
        return f"{when}, the pipeline applies the changes from offset {self.mark} on again"


@dataclass(frozen=True)
class Upkeep:
    """A table before and after a pass. `failed` says what was in the way."""

    sink: str
    table: str
    before: Debt
    after: Debt
    failed: str


@contextmanager
def open_lakehouse(pipeline: Pipeline, platform: Platform, sink: str | None = None) -> Iterator[Lakehouse]:
    """Start Spark for the lake sinks of a pipeline, or for one of them. Raises what a user can mend before that."""
    sinks = _lake_sinks(pipeline, sink)
    layout = Layout.of(platform)
    log = LogReader(layout.log(pipeline.source_id))  # raises `log.missing`
    spark = open_for(sinks, platform.spark, layout.spark_log)
    try:
        yield Lakehouse(spark, pipeline, layout, sinks, log)
    finally:
        spark.stop()


class Lakehouse:
    """Every use case. Made by `open_lakehouse`."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, layout: Layout, sinks: Sequence[LakeSink], log: LogReader
    ) -> None:
        self._pipeline, self._layout, self._log = pipeline, layout, log
        self._tables = [table for sink in sinks for table in self._of(spark, sink)]

    def tables(self) -> list[TableFacts]:
        return [_facts(table) for table in self._tables]

    def snapshots(self, name: str | None = None) -> list[tuple[LakeTable, list[Version]]]:
        """What a table, or each, was; oldest first."""
        return [(table, table.target.versions()) for table in self._chosen(name)]

    def query(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        columns: Sequence[str] = (),
        limit: int = LISTED,
    ) -> tuple[list[str], list[Row]]:
        """Columns and rows of a table, or of what it was. `where` is an expression of Spark SQL, and no statement."""
        table = self.find(name)
        found = _travelled(table, version, as_of)
        for column in columns:
            if column not in found.columns:
                raise ConfigError(
                    "lakehouse.no_column",
                    f"{table.source} has no column {column!r}",
                    hint=nearest(column, found.columns),
                )
        try:
            if where is not None:
                found = found.filter(F.expr(where))
            chosen = found.select(*map(quoted, columns)) if columns else found
            return chosen.columns, chosen.limit(limit).collect()
        except PySparkException as error:
            raise ConfigError(
                "lakehouse.bad_query", reason(error), hint="--where is a condition of Spark SQL"
            ) from error

    def plan_rollback(self, name: str, version: int) -> Rollback:
        """What `roll_back` would do. Raises where the pipeline could not go on from there."""
        table = self.find(name)
        found = {each.id: each for each in table.target.versions()}
        if version not in found:
            known = ", ".join(str(number) for number in list(found)[-5:])
            hint = f"the last ones are {known}; tailrace lakehouse snapshots lists all"
            raise SinkError("lakehouse.no_version", f"{table.source} has no version {version}", hint=hint)
        mark = found[version].mark
        if mark is None:
            raise SinkError(
                "lakehouse.mark_lost",
                f"the mark of {table.source} in version {version} is gone: the pipeline could not go on from there",
                hint="choose a newer version",
            )
        before = next((each.mark for each in found.values() if each.current), None)
        running = is_running(self._layout, self._pipeline.name)
        return Rollback(table.source, version, mark, before, running, mark >= self._log.earliest)

    def roll_back(self, plan: Rollback) -> None:
        table = self.find(plan.table)
        self._refuse_second_writer(table)
        try:
            table.target.roll_back(plan.version)
        except FAILURES as error:
            message = f"{plan.table} cannot be rolled back: {reason(error)}"
            raise SinkError(
                "lakehouse.not_rolled_back", message, hint="try again, or choose a newer version"
            ) from error

    def maintain(self, name: str | None = None) -> Iterator[Upkeep]:
        """One pass over a table, or each, with the settings of its sink."""
        for table in self._chosen(name):
            self._refuse_second_writer(table)
            bound = table.sink.maintenance.compaction_max_rows_per_batch
            before = debt_of(table.target, bound)
            failed = _tend(table)
            yield Upkeep(table.sink.id, table.source, before, debt_of(table.target, bound), failed)

    def find(self, name: str) -> LakeTable:
        """By `schema.table`, by the name in the lake, or by the table's name alone where that is enough."""
        for names in (lambda each: (each.source, each.name), lambda each: (each.source.rpartition(".")[2],)):
            found = [table for table in self._tables if name in names(table)]
            if len(found) == 1:
                return found[0]
            if found:
                which = ", ".join(f"{each.source} in {each.sink.id}" for each in found)
                raise ConfigError("lakehouse.ambiguous", f"{name!r} is {which}", hint="use the whole name and --sink")
        known = [table.source for table in self._tables]
        hint = nearest(name, known) if known else "the pipeline has kept no table yet"
        raise ConfigError("lakehouse.no_table", f"there is no table {name!r} in the lake", hint=hint)

    def _refuse_second_writer(self, table: LakeTable) -> None:
        if table.sink.one_writer and is_running(self._layout, self._pipeline.name):
            raise SinkError(
                "lakehouse.one_writer",
                f"the pipeline writes {table.source}, and where it is, two writers may lose each other's commits",
                hint="stop the pipeline first; while it runs, `maintenance` tends its tables",
                where=table.source,
            )

    def _chosen(self, name: str | None) -> list[LakeTable]:
        return self._tables if name is None else [self.find(name)]

    def _of(self, spark: SparkSession, sink: LakeSink) -> Iterator[LakeTable]:
        """The tables that a sink has kept."""
        self._log.refresh()
        self._log.forget(self._log.end)
        schemas = {schema.name: schema for schema in self._log.schemas.values()}
        document = self._pipeline
        delivery = Delivery(document.name, document.metadata.tenant, document.source_id)
        ledger = TableLedger(self._layout.sink(document.name, sink.id) / "tables.json", self._log.log_id)
        for name, entry in sorted(ledger.state.tables.items()):
            target = sink.target_for(spark, schemas[name], delivery, self._log.log_id)
            if target.state() is not None:
                yield LakeTable(sink, name, sink.name_of(schemas[name], delivery), target, entry)


def _lake_sinks(pipeline: Pipeline, wanted: str | None) -> list[LakeSink]:
    found = [sink for sink in pipeline.sinks if isinstance(sink, LakeSink)]
    if wanted is not None and wanted not in [sink.id for sink in found]:
        hint = nearest(wanted, [sink.id for sink in found]) if found else "add a sink of type delta or iceberg"
        raise ConfigError("lakehouse.no_sink", f"{pipeline.name} has no lake sink {wanted!r}", hint=hint)
    if not found:
        raise ConfigError(
            "lakehouse.no_sink", f"{pipeline.name} keeps no lake tables", hint="add a sink of type delta or iceberg"
        )
    return [sink for sink in found if wanted in (None, sink.id)]


def _facts(table: LakeTable) -> TableFacts:
    target = table.target
    debt = debt_of(target, table.sink.maintenance.compaction_max_rows_per_batch)
    rows = target.read().count()
    return TableFacts(table.sink.id, table.source, table.name, rows, _mark(target), debt, table.entry.reason)


def _mark(target: Target) -> int | None:
    try:
        return target.mark()
    except SinkError:  # `sink.mark_lost`
        return None


def _travelled(table: LakeTable, version: int | None, as_of: datetime | None) -> DataFrame:
    try:
        return table.target.read(version=version, as_of=as_of)
    except FAILURES as error:
        raise SinkError(
            "lakehouse.no_version",
            f"{table.source} cannot be read as it was then: {reason(error)}",
            hint="tailrace lakehouse snapshots lists what is kept",
        ) from error


def _tend(table: LakeTable) -> str:
    """A pass; says why where the table was never free."""
    maintenance = table.sink.maintenance
    for attempt in range(TRIES):
        try:
            compact(table.target, maintenance)
            expire(table.target, maintenance)
        except FAILURES as error:
            if not table.target.is_conflict(error):
                raise SinkError("lakehouse.upkeep_failed", reason(error), where=table.source) from error
            if attempt + 1 == TRIES:
                return "the pipeline wrote at the same time; try again"
        else:
            break
    return ""
