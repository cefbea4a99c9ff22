"""One thread per sink: starts its query, watches it, retries what time can heal. A broken sink holds nobody back."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import asdict, replace

from pyspark.sql import SparkSession

from tailrace.contracts import Delivery, Provenance, RecordSink, Sink
from tailrace.errors import Action, SparkError, TailraceError, decide
from tailrace.machine.space import full_disk
from tailrace.sinks.tables import Care
from tailrace.spark.letters import LetterKeeping
from tailrace.spark.query import DeliveryProgress, Query, start_query
from tailrace.spark.task import Count
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.backlog import Backlog
from tailrace.supervisor.run.care import tended
from tailrace.supervisor.run.letters import ReplayDesk
from tailrace.supervisor.run.missed import Missed, look_back
from tailrace.supervisor.status import DebtStatus, DropStatus, SinkState, SinkStatus, SkipStatus, TableStatus

WATCH_S = 0.2
DRAIN_S = 120.0
LONGEST_WISH_S = 600.0
"""For how long a server may ask to be left alone (`TailraceError.retry_after`)."""
UNKNOWN = -1
"""The offset of a sink whose query has not begun."""
BOUND_WARNING_BATCHES = 10
"""After this many batches in a row that only the bound ended, the bound is called the bottleneck."""


class SinkRunner(threading.Thread):
    """The life of one sink of one pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        kind: str,
        sink: Sink,
        platform: Platform,
        provenance: Provenance,
        letters: LetterKeeping | None = None,
    ) -> None:
        super().__init__(name=f"{pipeline.name}/{sink.id}", daemon=True)
        self.pipeline, self.sink, self.kind = pipeline.name, sink, kind
        self.source_id = pipeline.source_id
        self._spark, self._document, self._provenance = spark, pipeline, provenance
        self._layout = Layout.of(platform)
        self._backlog = Backlog(self._layout.log(self.source_id))
        self._backoff = platform.retry.backoff(sink.retry)
        self._letters = letters if isinstance(sink, RecordSink) else None
        self._halt = threading.Event()
        self._run_id = uuid.uuid4().hex
        self._query: Query | None = None
        self._care: Care | None = None
        self._missed: Missed | None = None
        self._target: int | None = None
        self._state: SinkState = "starting"
        self._error: TailraceError | None = None
        self._past = DeliveryProgress(UNKNOWN)
        self._pressure = _Pressure()

    @property
    def failure(self) -> TailraceError | None:
        """Why it stopped for good."""
        return self._error if self._state == "failed" else None

    def run(self) -> None:
        while not self._halt.is_set():
            try:
                self._run_once()
            except TailraceError as error:
                self._handle(error)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                self._handle(full_disk(error) or SparkError("spark.internal", text, hint="please report it"))
            if self._state == "failed":
                return
        self._state = "stopped"

    def until(self, target: int) -> None:
        """Deliver up to `target` and then nothing more."""
        self._target = target

    def drain(self) -> None:
        """Finish the running batch and stop; `join` waits for it."""
        self._halt.set()

    def offset(self) -> int:
        return self._progress().offset

    def status(self, head: int | None) -> SinkStatus:
        """`head`: where the log ends, if that is known."""
        progress = self._progress()
        offset = None if progress.offset == UNKNOWN else progress.offset
        lag = self._backlog.lag(offset, head, time.time())
        return SinkStatus(
            self.pipeline,
            self.sink.id,
            self.kind,
            self.source_id,
            self._state,
            offset=offset,
            lag_rows=lag.rows,
            lag_s=lag.seconds,
            batches=progress.batches,
            bound_limited=progress.bound_limited,
            tables={
                name: TableStatus(count.rows, count.bytes, count.last_us or None)
                for name, count in progress.tables.items()
            },
            dropped=tuple(DropStatus(*drop, number) for drop, number in sorted(progress.dropped.items())),
            skipped=tuple(SkipStatus(*skip, number) for skip, number in sorted(progress.skipped.items())),
            debt={name: DebtStatus(**asdict(debt)) for name, debt in self._care.debts().items()} if self._care else {},
            warnings=self._pressure.warnings(progress) + self._kept_warnings(),
            error=self._error.as_dict() if self._error is not None else None,
        )

    def _kept_warnings(self) -> tuple[str, ...]:
        kept = (self._missed, self._query, self._care)
        return tuple(warning for each in kept if each is not None for warning in each.warnings())

    def _progress(self) -> DeliveryProgress:
        """What this run delivered, over all its queries."""
        query = self._query
        return self._past if query is None else _sum(self._past, query.progress())

    def _run_once(self) -> None:
        self._await_log()
        if self._halt.is_set():
            return
        document = self._document
        names = (document.name, document.metadata.tenant, document.source_id)
        delivery = Delivery(*names, self._halt.is_set, self._run_id)
        self._query = query = start_query(
            self._spark,
            self._layout.log(self.source_id),
            self.sink,
            delivery,
            provenance=self._provenance,
            state_dir=self._layout.sink(document.name, self.sink.id),
            batch=document.spec.batch,
            sharding=document.spec.sharding,
            processors=document.chain(self.sink),
            hold=document.hold(self.sink),
            deadline_s=document.spec.sink_batch_deadline_secs,
            letters=self._letters,
        )
        self._state, self._error = "running", None
        try:
            self._missed = look_back(document, self._layout, query.log_id, query.began)
            self._care = query.care()
            with tended(self._care, self.name):
                self._watch(query, self._replay_desk(delivery))
        finally:  # whatever happened, no second query may write beside this one
            self._end(query)
        error = query.error()
        if error is not None:
            raise error

    def _replay_desk(self, delivery: Delivery) -> ReplayDesk | None:
        if self._letters is None or not isinstance(self.sink, RecordSink):
            return None
        return ReplayDesk(self._letters.journal, self.sink, delivery, self._layout)

    def _watch(self, query: Query, desk: ReplayDesk | None) -> None:
        ordered = None
        while query.is_active() and not self._halt.is_set():
            target = self._target
            if target != ordered and target is not None and query.until(target):
                ordered = target
            if query.progress().batches:
                self._backoff.reset()
            if desk is not None and query.is_active():
                desk.look(query, self._halt)
            self._halt.wait(WATCH_S)
        if desk is not None and self._will_retry(query):
            desk.look(query, self._halt, at_once=True)  # it may be what the sink waits for: room for letters

    def _will_retry(self, query: Query) -> bool:
        error = None if self._halt.is_set() else query.error()
        return error is not None and decide(error) is Action.RETRY

    def _end(self, query: Query) -> None:
        if query.is_active():
            query.drain(DRAIN_S)
        self._past, self._query = self._progress(), None

    def _await_log(self) -> None:
        """The tap creates the log with its first position."""
        folder = self._layout.log(self.source_id) / "manifest"
        while not (folder.exists() and any(folder.glob("[0-9]*"))) and not self._halt.wait(WATCH_S):
            pass

    def _handle(self, error: TailraceError) -> None:
        self._error = error
        attempts = self.sink.retry.max_attempts
        last = attempts is not None and self._backoff.tries + 1 >= attempts
        if last or decide(error) is not Action.RETRY:
            self._state = "failed"
            return
        self._state = "waiting"
        self._halt.wait(pause_s(self._backoff.next(), error))


def pause_s(back_off: float, error: TailraceError) -> float:
    """Seconds until the next try: our own back-off, or what the server asked for where that is longer."""
    return max(back_off, min(error.retry_after or 0.0, LONGEST_WISH_S))


class _Pressure:
    """Notices when the batch bound, and nothing else, decides how fast a sink gets on."""

    def __init__(self) -> None:
        self._batches = self._limited = self._in_a_row = 0

    def warnings(self, progress: DeliveryProgress) -> tuple[str, ...]:
        batches, limited = progress.batches - self._batches, progress.bound_limited - self._limited
        if batches:
            self._in_a_row = self._in_a_row + batches if batches == limited else 0
            self._batches, self._limited = progress.batches, progress.bound_limited
        if self._in_a_row < BOUND_WARNING_BATCHES:
            return ()
        raised = "raise spec.batch.max_events or max_bytes, or the sink's own bound"
        return (f"every batch ends at its bound while more waits: {raised}",)


def _sum(past: DeliveryProgress, now: DeliveryProgress) -> DeliveryProgress:
    tables = {name: replace(count) for name, count in past.tables.items()}
    for name, count in now.tables.items():
        tables.setdefault(name, Count()).add(count)
    limited, dropped = past.bound_limited + now.bound_limited, past.dropped + now.dropped
    skipped = past.skipped + now.skipped
    return DeliveryProgress(now.offset, past.batches + now.batches, limited, tables, dropped, skipped)
