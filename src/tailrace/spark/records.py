"""Batches as records: rendered by Spark, delivered by tasks that hold the sink's client."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.util import PythonEvalType, _load_from_socket

from tailrace import jvm
from tailrace.changelog import LogReader
from tailrace.contracts import Delivery, Letter, Provenance, RecordSink, Span
from tailrace.control.journal import KeptLetter
from tailrace.errors import SparkError
from tailrace.failpoints import failpoint
from tailrace.passage import find, unpack
from tailrace.render.envelopes import key_column, value_column
from tailrace.render.rendering import Rendering
from tailrace.render.templates import route_column
from tailrace.spark.carrier import Carrier, canonical, unread
from tailrace.spark.chain import SinkChain
from tailrace.spark.letters import SHOWN, Breaker, LetterDesk, LetterFiles, RefusalCount, Refusals, Rerun, of_letter
from tailrace.spark.sharding import ValueSharding
from tailrace.spark.source import SLICES, ReadOptions, pack_partitions, partitions_of
from tailrace.spark.task import COUNTED, NEVER_NULL, OUTCOME_DDL, SPAN, Count, WriteTask, nobody_writes, restored

SETTLE_S = 30.0
"""How long a batch waits for writers of an earlier attempt to end before it gives up."""
WAIT_S = 0.02


class RecordCarrier(Carrier):
    """`source` is the format that reads the log; `key`: rows are shared out among tasks by this column's value, where a
    table always sends it.

    Without a key the plan of a delivery is the same for all batches, so it is made once for each number of tasks, and
    what Spark hands over with a batch is nothing. Each job says which batch it is.
    """

    def __init__(
        self,
        sink: RecordSink,
        delivery: Delivery,
        provenance: Provenance,
        *,
        source: str,
        log_path: Path,
        state_dir: Path,
        tasks: int,
        key: str | None,
        chain: SinkChain,
        deadline_s: float | None = None,
        desk: LetterDesk | None = None,
    ) -> None:
        """Makes the sink ready: raises what `sink.prepare` raises."""
        sink.prepare(delivery)
        self._told = sink.warnings(delivery)
        self._sink, self._delivery, self._tasks = sink, delivery, tasks
        self._sharding = None if key is None else ValueSharding(key)
        self._source, self._log_path, self._writing = source, log_path, state_dir / "writing.lock"
        self._log: LogReader | None = None
        self._planned: dict[int, RDD[Row]] = {}
        self._few: bool | None = None
        self._function: Any = None
        self._chain = chain
        self._desk, self._breaker = desk, Breaker(sink.id, sink.max_rejected_share)
        self._skipped: Counter[tuple[int, str]] = Counter()
        refusals = _refusals(sink, desk, state_dir)
        wanted = dict.fromkeys((*sink.columns(), *refusals.columns(processed=bool(chain))))
        columns = rendered(sink, tuple(wanted), Rendering(delivery, provenance, processed=bool(chain)))
        given = tuple(name for name in columns if name not in COUNTED or name in wanted)
        self._task = WriteTask(sink, delivery, given, self._writing, refusals, deadline_s)
        needed = () if key is None else ("seq", "key", "before", "after")
        self._columns = [*columns.values(), *(F.col(name) for name in needed if name not in columns)]

    def plan(self, changes: DataFrame) -> DataFrame:
        if self._plans_once:
            return unread(changes)
        return changes if self._chain.has_frames else changes.select(*self._columns)

    def mark(self, log_id: str) -> int:
        return self._sink.mark(self._delivery, log_id)

    def carry(self, frame: DataFrame, span: Span) -> dict[int, Count]:
        mark = self.mark(span.log_id)
        if mark >= span.end:
            if self._desk is not None:
                self._desk.keep_left(span)
            return {}
        _wait_for(lambda: nobody_writes(self._writing))
        if mark > span.start:  # what a sink calls the span must not stand before what it has
            span = replace(span, start=mark)
        session = frame.sparkSession
        session.sparkContext.setLocalProperty(SPAN, json.dumps([span.log_id, span.start, span.end, (), span.began]))
        if self._desk is not None:
            self._desk.begin()
        outcomes = self._deliver(session, span) if self._plans_once else self._deliver_frame(frame, span)
        for outcome in outcomes:
            if outcome.error:
                raise unpack(outcome.error)
        counts = _counts(outcomes)
        self._settle_refusals(outcomes, sum(count.rows for count in counts.values()), span)
        self._sink.commit(self._delivery, span, [outcome.receipt for outcome in outcomes])
        return counts

    def skipped(self) -> Counter[tuple[int, str]]:
        taken, self._skipped = self._skipped, Counter()
        return taken

    def warnings(self) -> tuple[str, ...]:
        return self._told if self._sharding is None else self._told + self._sharding.warnings()

    def rows_of(self, letters: Sequence[KeptLetter]) -> dict[int, Rerun]:
        """What the log's changes of these letters are behind the chain of now, by number; between batches. Raises
        `log.expired` where the log no longer has one."""
        assert self._desk is not None
        self._desk.files.begin()
        found = {kept.number: self._rerun(kept.letter) for kept in letters}
        if self._chain:
            self._chain.drops.take()  # they were counted when they came
        return found

    def _rerun(self, letter: Letter) -> Rerun:
        session = SparkSession.builder.getOrCreate()  # the process's own, in which the source is registered
        options = ReadOptions(str(self._log_path), tasks=1, start=letter.seq, end=letter.seq + 1)
        changes = session.read.format(self._source).options(**options.as_text()).load()
        if self._chain.has_frames:
            changes = self._chain.behind(changes, self._reader(letter.seq).schemas)
        ids = [each.id for each in self._chain.processors]
        rows: list[pa.RecordBatch] = []
        for batch in collected(changes.select(*self._columns)):
            parts = batch.column("part").to_pylist() if "part" in batch.schema.names else [""] * batch.num_rows
            given = restored(batch).select(list(self._task.columns))
            rows += [given.slice(n, 1) for n, part in enumerate(parts) if of_letter(part or "", letter, ids)]
        assert self._desk is not None
        failed = [each for each in self._desk.files.found() if (each.seq, each.part) == (letter.seq, letter.part)]
        return Rerun(tuple(rows), (failed[0].code, failed[0].message) if failed else None)

    def _settle_refusals(self, outcomes: Iterable[Row], delivered: int, span: Span) -> None:
        """What was refused is durable before the batch is committed, or the sink stops."""
        told = RefusalCount()
        for outcome in outcomes:
            told.merge(RefusalCount.unpack(outcome.refused))
        letters = [] if self._desk is None else self._desk.found()
        of_chain = [each.message for each in letters if each.processor]
        if told.letters != len(letters) - len(of_chain):
            raise SparkError(
                "spark.letters_lost",
                f"tasks wrote {told.letters} dead letters, and {len(letters) - len(of_chain)} are there",
                hint="driver and tasks must share the data directory; nothing was committed",
                where=self._sink.id,
            )
        refused = told.refused.total() + len(of_chain)
        self._breaker.look(refused, refused + delivered, (told.reasons + of_chain)[:SHOWN])
        failpoint("dlq.letters.found")
        if self._desk is not None:
            self._desk.keep(letters, span.log_id)
        if self._task.refusals.on_error == "skip":
            self._skipped += told.refused

    def _deliver(self, session: SparkSession, span: Span) -> list[Row]:
        log = self._reader(span.start)
        slices = log.slices(span.start, span.end, self._tasks)
        partitions = partitions_of(slices, log.schemas, f"{span.start}-{span.end}", self._chain.task)
        session.sparkContext.setLocalProperty(SLICES, pack_partitions(partitions))
        if len(slices) not in self._planned:
            self._planned[len(slices)] = self._plan(session, len(slices))
        return _collect(self._planned[len(slices)], len(slices))

    def _plan(self, session: SparkSession, tasks: int) -> RDD[Row]:
        options = ReadOptions(str(self._log_path), tasks=tasks, per_job=True)
        changes = session.read.format(self._source).options(**options.as_text()).load()
        return changes.select(*self._columns).mapInArrow(self._task, OUTCOME_DDL).rdd

    def _reader(self, start: int) -> LogReader:
        """The log from `start` on."""
        if self._log is None:
            self._log = LogReader(self._log_path, start)
        self._log.forget(start)
        self._log.refresh()
        return self._log

    @property
    def _plans_once(self) -> bool:
        """Whether the plan of a delivery is the same for all batches."""
        return self._sharding is None and not self._chain.has_frames

    def _deliver_frame(self, frame: DataFrame, span: Span) -> list[Row]:
        few = span.end - span.start < jvm.FEW
        if few != self._few:
            self._few = few
            jvm.compile_plans(frame.sparkSession, few=few)
        rows = frame.filter(F.col("seq") >= span.start)
        if self._chain.has_frames:
            rows = self._in_order(self._chain.behind(rows, self._reader(span.start).schemas), span)
        if self._sharding is not None:
            rows = self._by_value(self._sharding, rows, span)
        return self._mapped(rows).collect()

    def _in_order(self, rows: DataFrame, span: Span) -> DataFrame:
        """Frames may have moved rows: all of one lane into one task again, in order."""
        tasks = len(self._reader(span.start).slices(span.start, span.end, self._tasks))
        return rows.repartition(tasks, "lane").sortWithinPartitions("seq", "part").select(*self._columns)

    def _by_value(self, sharding: ValueSharding, rows: DataFrame, span: Span) -> DataFrame:
        """All rows of one value into one task, in order. A range that must stay whole (a truncate) does."""
        log = self._reader(span.start)
        slices = log.slices(span.start, span.end, self._tasks)
        if len(slices) > 1:
            versions = [log.schemas[number] for number in slices[0].names]
            rows = rows.repartition(len(slices), sharding.place(rows, versions))
        return rows.sortWithinPartitions("seq")

    def _mapped(self, frame: DataFrame) -> DataFrame:
        """`frame.mapInArrow(…)` with a function that is made once: it takes many calls into the JVM."""
        if self._function is None:
            make: Any = pandas_udf  # what `mapInArrow` does every time
            function = make(self._task, OUTCOME_DDL, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
            self._function = function(*(F.col(name) for name in frame.columns))._jc
        return DataFrame(frame._jdf.mapInArrow(self._function, False, None), frame.sparkSession)


def _collect(rows: RDD[Row], tasks: int) -> list[Row]:
    """`rows.collect()` the way PySpark's `runJob` does it. Spark looks into the function of every job; that of
    `collect` holds on to the whole plan, which is then written out twice for nothing."""
    context: Any = rows.context
    served = context._jvm.PythonRDD.runJob(context._jsc.sc(), rows._jrdd, list(range(tasks)))
    read: Any = _load_from_socket
    return list(read(served, rows._jrdd_deserializer))


def collected(changes: DataFrame) -> list[pa.RecordBatch]:
    """A few rows. What a task raised on purpose arrives as what it was."""
    try:
        return changes.toArrow().to_batches()
    except PySparkException as error:
        raise find(str(error)) or SparkError(
            "spark.query_failed", jvm.reason(error), hint="see the Spark log"
        ) from None


def _counts(outcomes: Iterable[Row]) -> dict[int, Count]:
    counts: dict[int, Count] = {}
    for outcome in outcomes:
        for number, fields in json.loads(outcome.counts).items():
            counts.setdefault(int(number), Count()).add(Count(**fields))
    return counts


def _refusals(sink: RecordSink, desk: LetterDesk | None, state: Path) -> Refusals:
    """What follows where the target refuses a record. Documents with `dlq` have a journal."""
    if desk is None:
        return Refusals(sink.id, "skip" if sink.on_error == "skip" else "fail", LetterFiles(state / "letters"))
    on_error = sink.on_error or "dlq"
    held = desk.held if on_error == "dlq" else None
    return Refusals(sink.id, on_error, desk.files, desk.max_event_bytes, held)


def rendered(sink: RecordSink, wanted: tuple[str, ...], rendering: Rendering) -> dict[str, Column]:
    """What tasks are given, by name. Built once: each expression costs many calls into the JVM."""
    columns = canonical(wanted, processed=rendering.processed)
    for name, empty in NEVER_NULL.items():
        if name in columns:
            columns[name] = F.expr(f"coalesce({name}, {empty})").alias(name)
    if sink.wants_value():
        columns["value"] = value_column(sink.envelope, rendering).alias("value")
    for name, template in sink.routes().items():
        columns[name] = route_column(template, rendering).alias(name)
    if rendering.processed:
        columns |= {name: _routed(sink, name, columns, rendering).alias(name) for name in sink.routed()}
    return columns


def _routed(sink: RecordSink, name: str, columns: Mapping[str, Column], rendering: Rendering) -> Column:
    """What a processor said of a record's way, or else what the sink says."""
    own, said = sink.routed()[name], F.col("route")[sink.routed()[name]]
    if name in columns:
        return F.coalesce(said, columns[name])
    return F.coalesce(said, key_column(sink.envelope, rendering)) if own == "key" else said


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() >= deadline:
            raise SparkError(
                "spark.still_writing",
                "tasks of an earlier attempt still write to this sink",
                hint="Is the same pipeline running twice? Stop the other one",
            )
        time.sleep(WAIT_S)
