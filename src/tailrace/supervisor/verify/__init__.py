"""Proof by content: a source and the tables that a sink keeps of it, compared while both live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.changelog import LogReader, head
from tailrace.contracts import Delivery, Place
from tailrace.control.ledger import SnapshotLedger
from tailrace.errors import ConfigError, SinkError, SourceError
from tailrace.schema import SchemaBook, TableSchema, table_name
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.mirror import LakeMirror
from tailrace.sinks.tables import TableSink
from tailrace.spark.chain import SinkChain
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.verify.passage import Passage, Patience
from tailrace.supervisor.verify.repair import Repair
from tailrace.supervisor.verify.report import TableReport, save
from tailrace.supervisor.verify.table import TableVerification, forget_files
from tailrace.supervisor.verify.touches import TouchedKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = 20
PATIENCE_S = 120.0
OF_A_TABLE = ("verify.halted", "verify.restless", "verify.too_much", "sink.mark_lost", "source.table_missing")
"""Errors that concern one table only: the others are compared all the same."""


@dataclass(frozen=True)
class VerifyOptions:
    """What is compared. `limit`: differing rows of a table that are shown in detail."""

    sink: str | None = None
    tables: tuple[str, ...] = ()
    repair: bool = False
    limit: int = SHOWN
    patience_s: float = PATIENCE_S


@dataclass(frozen=True)
class VerifyProgress:
    """How far a verification is: `report` is the table's so far, `estimate` its rows, `waiting` what it waits for."""

    report: TableReport
    estimate: int | None = None
    waiting: str = ""


OnStep = Callable[[VerifyProgress], None]


READING = ("initial", "always", "when_needed")
"""Modes of snapshots that read every table before it is whole."""


class Verification:
    """Of one pipeline. Everything that can be refused is refused when it is made."""

    def __init__(self, pipeline: Pipeline, platform: Platform, options: VerifyOptions) -> None:
        self._pipeline, self._platform, self._options = pipeline, platform, options
        self._layout = Layout.of(platform)
        self._source = cast(PostgresSource, pipeline.source)
        self._sinks = _sinks(pipeline, options.sink)
        self._log = self._layout.log(self._source.id)
        self._log_id = LogReader(self._log, 0).log_id  # raises `log.missing`
        self._refuse_second_writer()
        self._tables = self._matching()
        self._ledger = SnapshotLedger(self._layout.open_store())

    def run(self, on_step: OnStep) -> list[TableReport]:
        """`compare` in a Spark session of its own."""
        with self._session() as spark:
            return self.compare(spark, on_step)

    def compare(self, spark: SparkSession, on_step: OnStep = lambda _: None) -> list[TableReport]:
        """Compare the tables of every sink, one after another. What it found is kept in the data directory."""
        folder = self._layout.verifying(self._pipeline.name)
        forget_files(folder)
        touched = TouchedKeys(self._source, self._log)
        try:
            return [each for sink in self._sinks for each in self._sink(spark, sink, touched, on_step)]
        finally:
            forget_files(folder)

    def _sink(
        self, spark: SparkSession, sink: TableSink, touched: TouchedKeys, on_step: OnStep
    ) -> Iterator[TableReport]:
        for schema, table, estimate in self._tables:
            report = TableReport(sink.id, table_name(schema, table))
            one = _Table(self, spark, sink, touched, report, on_step)
            try:
                one.run((schema, table), estimate)
            except (SinkError, SourceError) as error:
                if error.code not in OF_A_TABLE:
                    raise
                report.problem = f"{error.message}; {error.hint}" if error.hint else error.message
            save(self._layout.verified(self._pipeline.name, sink.id), self._log_id, [report])
            yield report

    def _refuse_second_writer(self) -> None:
        """A repair removes rows beside the pipeline, which must run."""
        for sink in self._sinks if self._options.repair else ():
            if not sink.repairs:
                raise ConfigError(
                    "verify.repairs_nothing",
                    f"rows of {sink.id} are compared and not repaired",
                    hint="leave --repair out; tailrace snapshot PIPELINE --table reads a table anew",
                )
            if isinstance(sink, LakeSink) and sink.one_writer:
                raise ConfigError(
                    "verify.one_writer",
                    f"{sink.id} is where two writers may lose each other's commits, so nothing is repaired there",
                    hint="leave --repair out, or read the tables anew with tailrace snapshot",
                )

    def _matching(self) -> list[tuple[str, str, int | None]]:
        captured = self._source.snapshot_tables()
        chosen = TablePatterns(self._options.tables or ("*",))
        for pattern in chosen.unmatched((schema, table) for schema, table, _ in captured):
            raise ConfigError(
                "verify.no_table", f"no captured table matches {pattern!r}", hint="tailrace schemas list names them"
            )
        return [each for each in captured if chosen.match(each[0], each[1])]

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        from tailrace.spark.libraries import open_for

        spark = open_for(self._sinks, self._platform.spark, self._layout.spark_log)
        try:
            yield spark
        finally:
            spark.stop()


class _Table:
    """One table in one sink."""

    def __init__(
        self,
        whole: Verification,
        spark: SparkSession,
        sink: TableSink,
        touched: TouchedKeys,
        report: TableReport,
        on_step: OnStep,
    ) -> None:
        self._whole, self._spark, self._sink, self._touched = whole, spark, sink, touched
        self._report, self._on_step = report, on_step
        self._estimate: int | None = None

    def run(self, name: tuple[str, str], estimate: int | None) -> None:
        whole, self._estimate = self._whole, estimate
        options = whole._options
        self._await_snapshots(name)
        schema = self._newest(name)
        delivery = Delivery(whole._pipeline.name, whole._pipeline.metadata.tenant, whole._source.id)
        state = whole._layout.sink(whole._pipeline.name, self._sink.id)
        mirror = self._sink.mirror(self._spark, schema, delivery, whole._log_id, state)
        verification = TableVerification(
            self._spark,
            whole._source,
            mirror,
            name,
            self._passage(),
            self._touched,
            whole._layout.verifying(whole._pipeline.name),
            self._report,
            self._chain(delivery),
            limit=options.limit,
            on_rows=lambda report: self._on_step(VerifyProgress(report, estimate)),
        )
        verification.run()
        if options.repair and self._report.differing and isinstance(mirror, LakeMirror):
            repair = Repair(verification, mirror.target, whole._ledger, whole._source.id, whole._log_id, self._say)
            repair.run(self._newest(name), soft=mirror.keeps_deleted, patience_s=options.patience_s)

    def _chain(self, delivery: Delivery) -> SinkChain:
        """What the source's rows go through before they are compared."""
        whole, sink = self._whole, self._sink
        place = Place(delivery.pipeline, delivery.tenant, whole._source.connector, {}, mirror=True)
        state = whole._layout.sink(whole._pipeline.name, sink.id) / "verify"
        return SinkChain(whole._pipeline.chain(sink), place, state)

    def _passage(self) -> Passage:
        whole = self._whole
        return Passage(
            whole._source,
            whole._log,
            whole._layout.tap_status(whole._source.id),
            whole._options.patience_s,
            self._say,
        )

    def _await_snapshots(self, name: tuple[str, str]) -> None:
        """Until no snapshot brings rows of the table that the lake has not yet."""
        whole = self._whole
        waiting = Patience(whole._options.patience_s, "a snapshot of the table to end", self._say)
        while whole._source.snapshot.mode in READING and name not in whole._ledger.covered(
            whole._source.id, whole._log_id
        ):
            waiting.go_on("not begun")
        while rows := [
            table.rows_admitted
            for run in whole._ledger.runs(whole._source.id, "active")
            for table in whole._ledger.tables(run.id)
            if (table.schema, table.table) == name and table.state not in ("done", "gone")
        ]:
            waiting.go_on(rows)

    def _newest(self, name: tuple[str, str]) -> TableSchema:
        """The table as the log knows it."""
        whole = self._whole
        book = SchemaBook(tuple(LogReader(whole._log, head(whole._log)).schemas.values()))
        found = book.newest(*name)
        if found is None:
            raise SourceError(
                "source.table_missing",
                f"the log knows nothing of {'.'.join(name)}",
                hint="it has no change yet, and no snapshot: add `snapshot: {}` to the source",
            )
        return found

    def _say(self, text: str) -> None:
        self._on_step(VerifyProgress(self._report, self._estimate, text))


def _sinks(pipeline: Pipeline, wanted: str | None) -> list[TableSink]:
    """The sinks to compare. Raises where there are none, or where the wanted one cannot be compared."""
    known = {sink.id: sink for sink in pipeline.sinks}
    if wanted is not None and wanted not in known:
        raise ConfigError("verify.no_sink", f"there is no sink {wanted!r}", hint=f"use one of: {', '.join(known)}")
    chosen = [known[wanted]] if wanted is not None else list(known.values())
    found = [sink for sink in chosen if isinstance(sink, TableSink) and sink.mirrors()]
    if not found:
        raise ConfigError(
            "verify.not_a_mirror",
            f"{f'the sink {wanted!r} does not keep' if wanted else 'no sink keeps'} tables as the source has them",
            hint="delta and iceberg sinks with write_mode: upsert, and postgres with mode: mirror, can be compared",
        )
    return found
