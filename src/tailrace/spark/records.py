"""Batches as records: rendered by Spark, delivered by tasks that hold the sink's client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.util import PythonEvalType

from tailrace import jvm
from tailrace.change import PROCESSED
from tailrace.changelog import LogReader
from tailrace.contracts import Delivery, Provenance, RecordSink, Span
from tailrace.errors import SparkError
from tailrace.passage import unpack
from tailrace.render.envelopes import key_column, value_column
from tailrace.render.rendering import Rendering
from tailrace.render.templates import route_column
from tailrace.spark.carrier import Carrier, canonical
from tailrace.spark.chain import SinkChain
from tailrace.spark.sharding import ValueSharding
from tailrace.spark.task import COUNTED, NEVER_NULL, OUTCOME_DDL, SPAN, Count, WriteTask, nobody_writes

SETTLE_S = 30.0
"""How long a batch waits for writers of an earlier attempt to end before it gives up."""
WAIT_S = 0.02


class RecordCarrier(Carrier):
    """`key`: rows are shared out among tasks by this column's value, where a table always sends it."""

    def __init__(
        self,
        sink: RecordSink,
        delivery: Delivery,
        provenance: Provenance,
        *,
        log_path: Path,
        state_dir: Path,
        tasks: int,
        key: str | None,
        chain: SinkChain,
    ) -> None:
        """Makes the sink ready: raises what `sink.prepare` raises."""
        sink.prepare(delivery)
        self._sink, self._delivery, self._tasks = sink, delivery, tasks
        self._sharding = None if key is None else ValueSharding(key)
        self._log_path, self._writing = log_path, state_dir / "writing.lock"
        self._few: bool | None = None
        self._task: Any = None
        self._chain, self.chain_of_stream = chain, chain.task
        rendered = _columns(sink, Rendering(delivery, provenance, processed=bool(chain)))
        self._given = tuple(name for name in rendered if name not in COUNTED or name in sink.columns())
        needed = ("seq",) if key is None else ("seq", "key", "before", "after")
        self._rendered = [*rendered.values(), *(F.col(name) for name in needed if name not in rendered)]
        self.columns = [F.col(name) for name in PROCESSED.names] if chain.has_frames else self._rendered

    def mark(self, log_id: str) -> int:
        return self._sink.mark(self._delivery, log_id)

    def carry(self, frame: DataFrame, span: Span) -> dict[int, Count]:
        mark = self.mark(span.log_id)
        if mark >= span.end:
            return {}
        _wait_for(lambda: nobody_writes(self._writing))
        rows = frame
        if mark > span.start:  # what a sink calls the span must not stand before what it has
            rows, span = frame.filter(F.col("seq") >= mark), replace(span, start=mark)
        if self._chain.has_frames:
            tables = LogReader(self._log_path, span.start).schemas
            rows = self._chain.behind(rows, tables).select(*self._rendered)
        receipts, counts = self._write(rows, span)
        self._sink.commit(self._delivery, span, receipts)
        return counts

    def warnings(self) -> tuple[str, ...]:
        return () if self._sharding is None else self._sharding.warnings()

    def _write(self, frame: DataFrame, span: Span) -> tuple[list[str], dict[int, Count]]:
        if self._sharding is not None:
            frame = self._by_value(frame, span, self._sharding)
        session = frame.sparkSession
        few = span.end - span.start < jvm.FEW
        if few != self._few:
            self._few = few
            jvm.compile_plans(session, few=few)
        session.sparkContext.setLocalProperty(SPAN, json.dumps(asdict(span)))
        outcomes = self._mapped(frame, session).collect()
        for outcome in outcomes:
            if outcome.error:
                raise unpack(outcome.error)
        counts: dict[int, Count] = {}
        for outcome in outcomes:
            for number, fields in json.loads(outcome.counts).items():
                counts.setdefault(int(number), Count()).add(Count(**fields))
        return [outcome.receipt for outcome in outcomes], counts

    def _mapped(self, frame: DataFrame, session: SparkSession) -> DataFrame:
        """`frame.mapInArrow(…)` with a function that is made once: it takes many calls into the JVM."""
        if self._task is None:
            task: Any = WriteTask(self._sink, self._delivery, self._given, self._writing)
            make: Any = pandas_udf  # what `mapInArrow` does every time
            function = make(task, OUTCOME_DDL, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
            self._task = function(*(F.col(name) for name in frame.columns))._jc
        return DataFrame(frame._jdf.mapInArrow(self._task, False, None), session)

    def _by_value(self, frame: DataFrame, span: Span, sharding: ValueSharding) -> DataFrame:
        """All rows of one value into one task, in order. A range that must stay whole (a truncate) does."""
        log = LogReader(self._log_path, span.start)
        slices = log.slices(span.start, span.end, self._tasks)
        if len(slices) > 1:
            versions = [log.schemas[number] for number in slices[0].names]
            frame = frame.repartition(len(slices), sharding.place(frame, versions))
        return frame.sortWithinPartitions("seq")


def _columns(sink: RecordSink, rendering: Rendering) -> dict[str, Column]:
    """What tasks are given, by name. Built once: each expression costs many calls into the JVM."""
    columns = canonical(sink.columns(), processed=rendering.processed)
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
