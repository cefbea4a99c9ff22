"""One streaming query per sink and log: its batches, its checkpoint, its progress and its end.

A batch is a span of offsets. Spark records it before it runs, so a repeat after a crash is the same span (Law
2); the sink's own mark, where it keeps one, says how much of it is already there (Law 4).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import plans
from tailrace.change import EVENT_ID_SQL
from tailrace.changelog import Limits, LogReader, Subscribers
from tailrace.contracts import Delivery, Gather, RecordSink, Sink, Span
from tailrace.errors import LogError, SparkError, TailraceError
from tailrace.jvm import reason
from tailrace.render.envelopes import value_column
from tailrace.render.templates import route_column
from tailrace.sinks.tables import Care, Keeper, TableSink
from tailrace.spark.checkpoint import Checkpoint
from tailrace.spark.control import Control, Orders, replace_file
from tailrace.spark.passage import find, unpack
from tailrace.spark.source import Options, own_source, replaced
from tailrace.spark.tables import SparkLog
from tailrace.spark.task import COUNTED, OUTCOME_DDL, Count, WriteTask, nobody_writes
from tailrace.spec import Batch, Sharding

SETTLE_S = 30.0
"""How long a batch waits for writers of an earlier attempt to end before it gives up."""
WAIT_S = 0.02
WORKER_LOST = ("Python worker exited unexpectedly", "Python worker failed to connect back")
"""How Spark says that a worker was killed, or that the machine was too busy to start one."""


@dataclass(frozen=True)
class Progress:
    """What a query has delivered since it started. Tables are named `schema.table`.

    `offset` is the end of the last delivered batch. `bound_limited` counts batches that more changes waited
    behind only because of the batch's bounds: when it keeps pace with `batches`, the bound is the bottleneck.
    """

    offset: int
    batches: int = 0
    bound_limited: int = 0
    tables: dict[str, Count] = field(default_factory=dict)


def start_query(
    spark: SparkSession,
    log_path: Path,
    sink: Sink,
    delivery: Delivery,
    *,
    connector: str,
    state_dir: Path,
    batch: Batch | None = None,
    sharding: Sharding | None = None,
) -> Query:
    """Start delivering the log to `sink`, from where `state_dir`'s checkpoint or else the sink's mark says.

    The first batch of a sink that has neither begins at the oldest retained change. A sink that gathers says
    for how long itself, and that replaces `batch.max_ms`. With `sharding.key` every batch is shuffled and
    sorted, which a batch sharded by primary key is not. Raises `log.replaced` and `log.expired` where the
    starting point is gone, and what `sink.prepare` raises.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    flow = Flow(batch or Batch(), sharding or Sharding())
    columns = _columns(sink, delivery, connector)
    name = f"{delivery.pipeline}/{sink.id}"
    keeper: Keeper | None = None
    if isinstance(sink, TableSink):
        log = SparkLog(spark, log_path, columns, flow.limits, name)
        keeper = sink.keeper(spark, delivery, log, state_dir)
        keeper.settle()
    else:
        _records(sink).prepare(delivery)
    checkpoint = Checkpoint(state_dir / "checkpoint")
    checkpoint.cut_torn_tail()
    mark = keeper.mark() if keeper is not None else None
    start, initial = _starting_point(log_path, sink, delivery, checkpoint, state_dir, mark)
    query = Query(
        sink,
        delivery,
        log_path=log_path,
        state_dir=state_dir,
        flow=flow,
        columns=columns,
        initial=initial,
        start=start,
        keeper=keeper,
    )
    Subscribers(log_path).report(query.name, query.progress().offset, required=sink.required)
    query.launch(spark)
    return query


@dataclass(frozen=True)
class Flow:
    """How changes are cut into batches, and batches into tasks."""

    batch: Batch
    sharding: Sharding

    @property
    def limits(self) -> Limits:
        return Limits(self.batch.max_events, self.batch.max_bytes, self.batch.respect_source_tx)


class Query:
    """A running query. Made by `start_query`."""

    def __init__(
        self,
        sink: Sink,
        delivery: Delivery,
        *,
        log_path: Path,
        state_dir: Path,
        flow: Flow,
        columns: dict[str, Column],
        initial: int,
        start: int,
        keeper: Keeper | None,
    ) -> None:
        self.name = f"{delivery.pipeline}/{sink.id}"
        self._keeper = keeper
        self._sink, self._delivery, self._flow = sink, delivery, flow
        self._columns = columns
        self._lock = threading.Lock()
        self._state, self._initial, self._start = state_dir, initial, start
        self._checkpoint = Checkpoint(state_dir / "checkpoint")
        self._log = LogReader(log_path, self._checkpoint.committed(initial))
        self._control = Control(state_dir)
        self._orders = Orders()
        self._progress = Progress(self._checkpoint.committed(initial))
        self._failure: BaseException | None = None
        self._stream: StreamingQuery | None = None

    def launch(self, spark: SparkSession) -> None:
        """Hand the query to Spark. Once."""
        self._control.give(self._orders)
        self._tasks = self._flow.sharding.count or spark.sparkContext.defaultParallelism
        own = own_source(self.name)
        spark.dataSource.register(own)
        source = spark.readStream.format(own.name()).options(**self._options().as_text()).load()
        writer = (
            source.select(*self._rendered())
            .writeStream.queryName(self.name)
            .option("checkpointLocation", str(self._checkpoint.path))
        )
        self._stream = writer.foreachBatch(self._run).start()

    def progress(self) -> Progress:
        """What was delivered so far."""
        with self._lock:
            tables = {name: replace(count) for name, count in self._progress.tables.items()}
            return replace(self._progress, tables=tables)

    def warnings(self) -> tuple[str, ...]:
        """What the sink wants somebody to know."""
        return self._keeper.warnings() if self._keeper is not None else ()

    def care(self) -> Care | None:
        """What tends the sink's tables meanwhile."""
        return self._keeper.care() if self._keeper is not None else None

    def is_active(self) -> bool:
        """Whether it still runs. A query that ended has an `error()`, unless it was drained."""
        try:
            return self._stream is not None and self._stream.isActive
        except (Py4JError, OSError):
            return False

    def error(self) -> TailraceError | None:
        """Why it ended, or None while it runs and after it was drained."""
        if self.is_active():
            return None
        if self._failure is not None:
            return _as_error(self._failure, self.name)
        try:
            failure = self._stream.exception() if self._stream is not None else None
        except (Py4JError, OSError):
            return SparkError("spark.jvm_lost", "Spark's JVM ended", hint="The Spark log says why", where=self.name)
        return None if failure is None else _as_error(failure, self.name)

    def until(self, target: int) -> None:
        """Never read past `target`, an end of a transaction. `progress().offset` tells when it is
        delivered."""
        self._order(replace(self._orders, target=target))

    def drain(self, timeout: float) -> bool:
        """Finish the batch that runs, start no other, and stop. False if that took longer than `timeout`
        seconds: then the query still runs, for it is never stopped inside a batch."""
        self._order(replace(self._orders, drain=True))
        deadline = time.monotonic() + timeout
        while self.is_active() and not self._control.drained():
            if time.monotonic() >= deadline:
                return False
            time.sleep(WAIT_S)
        if self.is_active() and self._stream is not None:
            self._stream.stop()
        return True

    def _order(self, orders: Orders) -> None:
        self._orders = orders
        self._control.give(orders)

    def _options(self) -> Options:
        limits = self._flow.limits
        gather = self._sink.gather() or Gather((self._flow.batch.max_ms or 0) / 1000)
        return Options(
            path=str(self._log.storage.root),
            tasks=self._tasks,
            start=self._start,
            initial=self._initial,
            log=self._log.log_id,
            state=str(self._state),
            subscriber=self.name,
            required=self._sink.required,
            linger_ms=int(gather.seconds * 1000),
            linger_bytes=gather.bytes,
            linger_rows=gather.rows,
            max_events=limits.max_events,
            max_bytes=limits.max_bytes,
            respect_source_tx=limits.respect_source_tx,
        )

    # A batch, on a thread of Spark's.

    def _run(self, frame: DataFrame, batch: int) -> None:
        try:
            self._deliver(frame, self._checkpoint.span(batch, self._initial))
        except BaseException as failure:
            self._failure = failure
            raise

    def _deliver(self, frame: DataFrame, span: Span) -> None:
        if self._keeper is not None:
            kept = self._keeper.keep(frame, span)
            self._note(span, {number: Count(each.rows, 0, each.last_us) for number, each in kept.items()})
            return
        sink = _records(self._sink)
        mark = sink.mark(self._delivery, span.log_id)
        counts: dict[int, Count] = {}
        if mark < span.end:
            _wait_for(lambda: nobody_writes(self._writing))
            rows = frame.filter(F.col("seq") >= mark) if mark > span.start else frame
            receipts, counts = self._write(rows, span)
            sink.commit(self._delivery, span, receipts)
        self._note(span, counts)

    def _write(self, frame: DataFrame, span: Span) -> tuple[list[str], dict[int, Count]]:
        if self._flow.sharding.key is not None:
            frame = self._by_value(frame, span, self._flow.sharding.key)
        sink = _records(self._sink)
        given = tuple(name for name in self._columns if name not in COUNTED or name in sink.columns())
        task = WriteTask(sink, self._delivery, span, given, self._writing)
        plans.suit(frame.sparkSession, span.end - span.start)
        outcomes = frame.mapInArrow(task, OUTCOME_DDL).collect()
        for outcome in outcomes:
            if outcome.error:
                raise unpack(outcome.error)
        counts: dict[int, Count] = {}
        for outcome in outcomes:
            for number, fields in json.loads(outcome.counts).items():
                counts.setdefault(int(number), Count()).add(Count(**fields))
        return [outcome.receipt for outcome in outcomes], counts

    def _rendered(self) -> list[Column]:
        """What a batch consists of. Part of the streaming plan, so that it is analysed once and not in every batch."""
        needed = ("seq",) if self._flow.sharding.key is None else ("seq", "before", "after")
        return [*self._columns.values(), *(F.col(name) for name in needed if name not in self._columns)]

    def _by_value(self, frame: DataFrame, span: Span, key: str) -> DataFrame:
        """All rows of one value into one task, in order. A range that must stay whole (a truncate) does."""
        self._log.refresh()
        tasks = len(self._log.slices(span.start, span.end, self._tasks))
        if tasks > 1:
            value = F.get_json_object(F.coalesce("after", "before"), f"$['{key}']")
            frame = frame.repartition(tasks, value)
        return frame.sortWithinPartitions("seq")

    def _note(self, span: Span, counts: dict[int, Count]) -> None:
        self._log.refresh()
        more = self._log.end > span.end != self._orders.target
        limited = more and self._log.cut(span.start, self._flow.limits) == span.end
        self._log.forget(span.end)
        schemas = self._log.schemas
        with self._lock:
            tables = self._progress.tables
            for number, count in counts.items():
                schema = schemas[number]
                tables.setdefault(f"{schema.schema}.{schema.table}", Count()).add(count)
            limits = self._progress.bound_limited + limited
            self._progress = Progress(span.end, self._progress.batches + 1, limits, tables)

    @property
    def _writing(self) -> Path:
        return self._state / "writing.lock"


def _starting_point(
    log_path: Path, sink: Sink, delivery: Delivery, checkpoint: Checkpoint, state_dir: Path, kept: int | None
) -> tuple[int, int]:
    """(where the next batch begins, where batch 0 began). `kept`: a table sink's mark."""
    log = LogReader(log_path)
    remembered = state_dir / "initial.json"
    newest = checkpoint.newest()
    if newest is not None:
        if newest.log != log.log_id:
            raise replaced(str(log_path))
        return newest.offset, int(json.loads(remembered.read_text())["offset"])
    mark = _records(sink).mark(delivery, log.log_id) if kept is None else kept
    if 0 < mark < log.earliest:
        raise _expired(mark, log.earliest, sink.id)
    initial = max(mark, log.earliest)
    checkpoint.clear()
    replace_file(remembered, json.dumps({"offset": initial}))
    return initial, initial


def _columns(sink: Sink, delivery: Delivery, connector: str) -> dict[str, Column]:
    """What tasks are given, by name. Built once: each expression costs many calls into the JVM."""
    wanted = sink.columns() if isinstance(sink, TableSink) else _records(sink).columns()
    columns = {name: F.col(name) for name in dict.fromkeys((*wanted, *COUNTED)) if name != "event_id"}
    if "event_id" in wanted:
        columns["event_id"] = F.expr(EVENT_ID_SQL)
    if isinstance(sink, TableSink):
        return {name: column.alias(name) for name, column in columns.items()}
    sink = _records(sink)
    if sink.wants_value():
        columns["value"] = value_column(sink.envelope, delivery, connector)
    columns |= {name: route_column(template, delivery, connector) for name, template in sink.routes().items()}
    return {name: column.alias(name) for name, column in columns.items()}


def _records(sink: Sink) -> RecordSink:
    if not isinstance(sink, RecordSink):
        raise TypeError(f"{type(sink).__name__} is neither a RecordSink nor a TableSink")
    return sink


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


def _as_error(failure: BaseException, where: str) -> TailraceError:
    if isinstance(failure, TailraceError):
        return failure
    text = str(failure)
    known = find(text)
    if known is not None:
        return known
    if any(sign in text for sign in WORKER_LOST):
        return SparkError(
            "spark.worker_lost",
            "a Python worker of Spark's ended or did not start in time",
            hint="It is retried",
            where=where,
        )
    if isinstance(failure, PySparkException | Py4JError):
        text = reason(failure)
    return SparkError("spark.query_failed", text, hint="The Spark log has the whole story", where=where)


def _expired(mark: int, earliest: int, sink: str) -> LogError:
    return LogError(
        "log.expired",
        f"the sink holds every change before offset {mark}, but the log begins at {earliest}",
        hint="give the sink another id, then read the tables anew: tailrace snapshot PIPELINE.yaml",
        where=sink,
    )
