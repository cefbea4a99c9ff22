"""One streaming query per sink and log: its batches, its checkpoint, its progress and its end.

A batch is a span of offsets. Spark records it before it runs, so a repeat after a crash is the same span (Law
2); the sink's own mark, where it keeps one, says how much of it is already there (Law 4).
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.changelog import LogReader, Owner, Subscribers, Trimmed, earliest, trimmed
from tailrace.contracts import Delivery, Gather, Hold, Place, Processor, Provenance, RecordSink, Sink, Span
from tailrace.control.journal import KeptLetter
from tailrace.errors import LogError, SparkError, TailraceError
from tailrace.jvm import reason
from tailrace.machine.durable import make_directory, replace_file
from tailrace.machine.space import full_disk
from tailrace.passage import find
from tailrace.sinks.tables import Care, TableSink
from tailrace.spark.carrier import Carrier, Flow
from tailrace.spark.chain import SinkChain
from tailrace.spark.checkpoint import Checkpoint
from tailrace.spark.control import Control, Orders
from tailrace.spark.letters import LetterDesk, LetterKeeping, Rerun
from tailrace.spark.pulse import Pulse
from tailrace.spark.records import RecordCarrier
from tailrace.spark.source import ReadOptions, own_source, replaced
from tailrace.spark.tables import TableCarrier
from tailrace.spark.task import Count
from tailrace.spec import Batch, Sharding

WAIT_S = 0.02
POOL = "spark.scheduler.pool"
"""Jobs of one query wait for each other, those of several take turns."""
WORKER_LOST = ("Python worker exited unexpectedly", "Python worker failed to connect back")
"""How Spark says that a worker was killed, or that the machine was too busy to start one."""


class Dropped(NamedTuple):
    """Changes of a table that a processor dropped, by its reason."""

    table: str
    processor: str
    reason: str


class Skipped(NamedTuple):
    """Records of a table that the target refused, by the error's code, and that are gone."""

    table: str
    code: str


@dataclass(frozen=True)
class DeliveryProgress:
    """What a query has delivered since it started. Tables are named `schema.table`.

    `offset` is the end of the last delivered batch. `bound_limited` counts batches that more changes waited
    behind only because of the batch's bounds: when it keeps pace with `batches`, the bound is the bottleneck.
    """

    offset: int
    batches: int = 0
    bound_limited: int = 0
    tables: dict[str, Count] = field(default_factory=dict)
    dropped: Counter[Dropped] = field(default_factory=Counter)
    """What its processors dropped."""
    skipped: Counter[Skipped] = field(default_factory=Counter)
    """What its target refused under `on_error: skip`."""
    pulse: Pulse = field(default_factory=Pulse)


@dataclass(frozen=True)
class Began:
    """Where a sink's first batch began. `missed`: what the log had dropped by then, for a sink that had nothing."""

    offset: int
    missed: Trimmed | None = None

    def save(self, file: Path) -> None:
        replace_file(file, json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Began:
        found = json.loads(file.read_text())
        missed = found.get("missed")
        return cls(found["offset"], None if missed is None else Trimmed(**missed | {"tables": tuple(missed["tables"])}))


def start_query(
    spark: SparkSession,
    log_path: Path,
    sink: Sink,
    delivery: Delivery,
    *,
    provenance: Provenance,
    state_dir: Path,
    batch: Batch | None = None,
    sharding: Sharding | None = None,
    processors: Sequence[Processor] = (),
    hold: Hold | None = None,
    deadline_s: float | None = None,
    letters: LetterKeeping | None = None,
) -> Query:
    """Start delivering the log to `sink`, from where `state_dir`'s checkpoint or else the sink's mark says.

    The first batch of a sink that has neither begins at the oldest retained change; `Query.began` remembers where, and
    what the log no longer had then. A sink that gathers says for how long itself, and that replaces `batch.max_ms`.
    With `sharding.key` every batch is shuffled and sorted, which a batch sharded by primary key is not. `letters`: what
    is refused may be set aside there. Raises `log.replaced` and `log.expired` where the starting point is gone, and
    what `sink.prepare` raises.

    `hold` is what the log keeps for it, by default as the sink's `required` says. A batch of records that takes longer
    than `deadline_s` is given up.
    """
    make_directory(state_dir)
    checkpoint = Checkpoint(state_dir / "checkpoint")
    checkpoint.cut_torn_tail()
    _place(LogReader(log_path), sink.id, checkpoint)  # before the target is asked, whose outage would hide it
    hold = hold or Hold(sink.required)
    flow = Flow(batch or Batch(), sharding or Sharding())
    wanted = sink.tasks() if isinstance(sink, RecordSink) else None
    tasks = wanted or flow.sharding.count or spark.sparkContext.defaultParallelism
    place = Place(delivery.pipeline, delivery.tenant, provenance.connector, {}, mirror=sink.mirrors())
    desk = None
    if letters is not None and isinstance(sink, RecordSink):
        alone = hold.required and not hold.quorum
        desk = LetterDesk(letters, sink, delivery, log_path, state_dir, required=alone)
    kept = None if desk is None else desk.chain_letters(LogReader(log_path).log_id, processors)
    chain = SinkChain(tuple(processors), place, state_dir, kept)
    carrier: Carrier
    if isinstance(sink, TableSink):
        limits = flow.limits
        carrier = TableCarrier(
            spark,
            sink,
            delivery,
            limits,
            log_path=log_path,
            state_dir=state_dir,
            tasks=tasks,
            chain=chain,
            hold=hold,
            deadline_s=deadline_s,
        )
    elif isinstance(sink, RecordSink):
        carrier = RecordCarrier(
            sink,
            delivery,
            provenance,
            source=own_source(Owner(delivery.pipeline, sink.id).name).name(),
            log_path=log_path,
            state_dir=state_dir,
            tasks=tasks,
            key=flow.sharding.key,
            chain=chain,
            deadline_s=deadline_s,
            desk=desk,
        )
    else:
        raise TypeError(f"{type(sink).__name__} is neither a RecordSink nor a TableSink")
    start, began = _starting_point(log_path, sink.id, carrier, checkpoint, state_dir)
    query = Query(
        sink,
        Owner(delivery.pipeline, sink.id).name,
        carrier,
        log_path=log_path,
        state_dir=state_dir,
        flow=flow,
        tasks=tasks,
        chain=chain,
        hold=hold,
        began=began,
        start=start,
    )
    progress = query.progress().offset
    Subscribers(log_path).report(query.name, progress, required=hold.required, quorum=hold.quorum)
    query.launch(spark)
    return query


class Query:
    """A running query. Made by `start_query`."""

    def __init__(
        self,
        sink: Sink,
        name: str,
        carrier: Carrier,
        *,
        log_path: Path,
        state_dir: Path,
        flow: Flow,
        tasks: int,
        chain: SinkChain,
        hold: Hold,
        began: Began,
        start: int,
    ) -> None:
        self.name, self.began, self._hold = name, began, hold
        self._chain = chain
        self._sink, self._carrier, self._flow, self._tasks = sink, carrier, flow, tasks
        events = min(flow.limits.max_events, sink.batch_events() or flow.limits.max_events)
        self._limits = replace(flow.limits, max_events=events, snapshot_batches=sink.snapshot_batches())
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._state, self._initial, self._start = state_dir, began.offset, start
        self._checkpoint = Checkpoint(state_dir / "checkpoint")
        self._log = LogReader(log_path, self._checkpoint.committed(began.offset))
        self._control = Control(state_dir)
        self._orders = Orders()
        self._progress = DeliveryProgress(self._checkpoint.committed(began.offset))
        self._failure: BaseException | None = None
        self._stream: StreamingQuery | None = None

    def launch(self, spark: SparkSession) -> None:
        """Hand the query to Spark. Once."""
        self._control.give(self._orders)
        own = own_source(self.name, self._chain.task)
        spark.dataSource.register(own)
        if self._chain:
            self._chain.drops.begin()
        source = spark.readStream.format(own.name()).options(**self._options().as_text()).load()
        writer = (
            self._carrier.plan(source)
            .writeStream.queryName(self.name)
            .option("checkpointLocation", str(self._checkpoint.path))
        )
        spark.sparkContext.setLocalProperty(POOL, self.name)
        self._stream = writer.foreachBatch(self._run).start()

    @property
    def log_id(self) -> str:
        return self._log.log_id

    def progress(self) -> DeliveryProgress:
        """What was delivered so far."""
        with self._lock:
            tables = {name: replace(count) for name, count in self._progress.tables.items()}
            dropped, skipped = Counter(self._progress.dropped), Counter(self._progress.skipped)
            return replace(self._progress, tables=tables, dropped=dropped, skipped=skipped)

    def warnings(self) -> tuple[str, ...]:
        """What the sink wants somebody to know."""
        return self._carrier.warnings()

    @contextmanager
    def between_batches(self) -> Iterator[int]:
        """No batch runs meanwhile, or begins. Yields the offset below which all is delivered."""
        with self._turn:
            yield self.progress().offset

    def rows_of(self, letters: Sequence[KeptLetter]) -> dict[int, Rerun]:
        """What the log's changes of these letters are behind the chain of now, by number. Between batches."""
        assert isinstance(self._carrier, RecordCarrier)
        return self._carrier.rows_of(letters)

    def care(self) -> Care | None:
        """What tends the sink's tables meanwhile."""
        return self._carrier.care()

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

    def until(self, target: int) -> bool:
        """Never read past `target`, an end of a transaction. `progress().offset` tells when it is delivered. False
        where there is no space on the disk for the order: give it again."""
        return self._order(replace(self._orders, target=target))

    def drain(self, timeout: float) -> bool:
        """Finish the batch that runs, start no other, and stop. False if that took longer than `timeout`
        seconds: then the query still runs, for it is never stopped inside a batch."""
        deadline, ordered = time.monotonic() + timeout, False
        while self.is_active() and not (ordered and self._control.drained()):
            ordered = ordered or self._order(replace(self._orders, drain=True))
            if time.monotonic() >= deadline:
                return False
            time.sleep(WAIT_S)
        if self.is_active() and self._stream is not None:
            self._stream.stop()
        return True

    def _order(self, orders: Orders) -> bool:
        self._orders = orders
        try:
            self._control.give(orders)
        except OSError as error:
            if full_disk(error) is None:
                raise
            return False
        return True

    def _options(self) -> ReadOptions:
        limits = self._limits
        gather = self._sink.gather() or Gather((self._flow.batch.max_ms or 0) / 1000)
        return ReadOptions(
            path=str(self._log.storage.root),
            tasks=self._tasks,
            start=self._start,
            initial=self._initial,
            log=self._log.log_id,
            state=str(self._state),
            subscriber=self.name,
            required=self._hold.required,
            quorum=self._hold.quorum,
            linger_ms=int(gather.seconds * 1000),
            linger_bytes=gather.bytes,
            linger_rows=gather.rows,
            latency_ms=int(self._flow.batch.objective().total_seconds() * 1000),
            max_events=limits.max_events,
            max_bytes=limits.max_bytes,
            respect_source_tx=limits.respect_source_tx,
            snapshot_batches=limits.snapshot_batches,
        )

    # A batch, on a thread of Spark's.

    def _run(self, frame: DataFrame, batch: int) -> None:
        try:
            span = self._checkpoint.span(batch, self._initial)
            with self._turn:
                began = time.monotonic()
                counts = self._carrier.carry(frame, span)
                self._note(span, counts, time.monotonic() - began)
        except BaseException as failure:
            self._failure = failure
            raise

    def _note(self, span: Span, counts: dict[int, Count], took_s: float) -> None:
        self._log.refresh()
        more = self._log.end > span.end != self._orders.target
        limited = more and self._log.cut(span.start, self._limits) == span.end
        self._log.forget(span.end)
        schemas = self._log.schemas
        drops = self._chain.drops.take() if self._chain else {}
        skips = self._carrier.skipped()
        with self._lock:
            tables = self._progress.tables
            for number, count in counts.items():
                schema = schemas[number]
                tables.setdefault(schema.name, Count()).add(count)
            limits = self._progress.bound_limited + limited
            dropped = self._progress.dropped
            for drop, number in drops.items():
                dropped[Dropped(schemas[drop.schema_id].name, drop.processor, drop.reason)] += number
            skipped = self._progress.skipped
            for (number, code), records in skips.items():
                skipped[Skipped(schemas[number].name, code)] += records
            pulse = self._progress.pulse.beat(counts.values(), took_s, time.time())
            batches = self._progress.batches + 1
            self._progress = DeliveryProgress(span.end, batches, limits, tables, dropped, skipped, pulse)


def _starting_point(
    log_path: Path, sink: str, carrier: Carrier, checkpoint: Checkpoint, state_dir: Path
) -> tuple[int, Began]:
    """(where the next batch begins, where batch 0 began)."""
    log = LogReader(log_path)
    remembered = state_dir / "initial.json"
    place = _place(log, sink, checkpoint)
    if place is not None:
        return place, Began.load(remembered)
    mark = carrier.mark(log.log_id)
    if 0 < mark < log.earliest:
        raise _expired(mark, log.earliest, sink)
    began = Began(max(mark, log.earliest), None if mark else trimmed(log_path, int(time.time() * 1e6)))
    checkpoint.clear()
    began.save(remembered)
    return began.offset, began


def lost_place(log_path: Path, sink: str, state_dir: Path) -> LogError | None:
    """Why a sink cannot go on, where the log has dropped what it has not had; None where the log has it, or the sink
    never began. A target that has more than the sink's checkpoint knows may still prove it wrong."""
    remembered = state_dir / "initial.json"
    if not remembered.exists():
        return None
    reached = Checkpoint(state_dir / "checkpoint").committed(Began.load(remembered).offset)
    begins = earliest(log_path)
    return _expired(reached, begins, sink) if reached < begins else None


def _place(log: LogReader, sink: str, checkpoint: Checkpoint) -> int | None:
    """Where the sink goes on in this log, by its checkpoint. Raises where the log cannot be read from there."""
    newest = checkpoint.newest()
    if newest is None:
        return None
    if newest.log != log.log_id:
        raise replaced(str(log.storage.root))
    if newest.offset < log.earliest:
        raise _expired(newest.offset, log.earliest, sink)
    return newest.offset


def _as_error(failure: BaseException, where: str) -> TailraceError:
    if isinstance(failure, TailraceError):
        return failure
    text = str(failure)
    known = find(text)
    if known is not None:
        return known
    full = full_disk(failure, where)
    if full is not None:
        return full
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
