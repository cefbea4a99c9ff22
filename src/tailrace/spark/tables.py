"""Batches into tables: the driver tells the sink's keeper what is next in the log, which it reads table by table."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace import jvm
from tailrace.change import CHANGES, PROCESSED
from tailrace.changelog import FirstRead, Holds, Limits, LogReader, Owner, Slice, read_slice
from tailrace.contracts import Content, Delivery, Hold, Portion, Span
from tailrace.schema import TableSchema
from tailrace.sinks.tables import Care, Portions, TableSink
from tailrace.sinks.typed_rows import TypedRows
from tailrace.spark.carrier import Carrier, canonical, unread
from tailrace.spark.chain import ChainTask, SinkChain
from tailrace.spark.shaped import ShapedVersions
from tailrace.spark.source import LogSource, ReadOptions, own_source, partitions_of, read_partition
from tailrace.spark.task import Count

SMALL_BYTES = 8 << 20
"""Of the frames that hold the changes..."""
FEW_BYTES = 512 << 10
"""...and of the changes themselves: each pass of a statement sends them to a task."""
_CHANGES, _PROCESSED = from_arrow_schema(CHANGES), from_arrow_schema(PROCESSED)


class TableCarrier(Carrier):
    def __init__(
        self,
        spark: SparkSession,
        sink: TableSink,
        delivery: Delivery,
        limits: Limits,
        *,
        log_path: Path,
        state_dir: Path,
        tasks: int,
        chain: SinkChain | None = None,
        hold: Hold | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Lets tables that halted or were rolled back catch up first."""
        columns = list(canonical(sink.columns(), processed=bool(chain)).values())
        name = Owner(delivery.pipeline, sink.id).name
        hold = hold or Hold(sink.required)
        alone = hold.required and not hold.quorum
        self._log = SparkLog(spark, log_path, columns, limits, name, tasks, chain, required=alone)
        self._keeper = sink.keeper(spark, delivery, self._log, state_dir)
        self._keeper.settle()
        self._deadline_s, self._took_s = deadline_s, 0.0
        self._let_go = self._log.holds.let_others_go()

    def plan(self, changes: DataFrame) -> DataFrame:
        return unread(changes)

    def mark(self, log_id: str) -> int:
        return self._keeper.mark()

    def carry(self, frame: DataFrame, span: Span) -> dict[int, Count]:
        began = time.monotonic()
        applied = self._keeper.keep(span)
        self._took_s = time.monotonic() - began
        return {number: Count(each.rows, None, each.last_us) for number, each in applied.items()}

    def warnings(self) -> tuple[str, ...]:
        return self._keeper.warnings() + self._let_go + self._log.holds.expired() + self._slowness()

    def _slowness(self) -> tuple[str, ...]:
        if self._deadline_s is None or self._took_s <= self._deadline_s:
            return ()
        return (f"the last batch took {self._took_s:.1f} s; sink_batch_deadline_secs is {self._deadline_s:g}",)

    def care(self) -> Care | None:
        return self._keeper.care()


class SparkLog:
    """Implements `sinks.tables.Log`. `columns` are what the sink asked for; `subscriber` and `required` are the
    sink's."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        columns: Sequence[Column],
        limits: Limits,
        subscriber: str,
        tasks: int,
        chain: SinkChain | None = None,
        *,
        required: bool = True,
    ) -> None:
        self._spark, self._path, self._columns, self._limits = spark, path, columns, limits
        self._tasks, self.holds = tasks, Holds(path, subscriber, required=required)
        self._chain = chain or SinkChain()
        self._reader = LogReader(path)
        self._first_reads: dict[str, tuple[object, FirstRead]] = {}
        """By table, with what it was begun for."""
        self._shaped = ShapedVersions(self._chain)
        self._source = own_source(f"{subscriber}:tables", self._chain.task) if self._chain else LogSource
        spark.dataSource.register(self._source)

    @property
    def log_id(self) -> str:
        return self._reader.log_id

    @property
    def drops_rows(self) -> bool:
        return not self._chain.whole.preserves("rows")

    @property
    def earliest(self) -> int:
        return self._reader.earliest

    def versions(self) -> Mapping[int, TableSchema]:
        return self._shaped.of(self._raw_versions()) if self._chain else self._raw_versions()

    def _raw_versions(self) -> Mapping[int, TableSchema]:
        self._reader.refresh()
        self._reader.forget(self._reader.end)
        return self._reader.schemas

    def ends(self, start: int, end: int) -> list[int]:
        reader, found = LogReader(self._path, start), []
        while start < end:
            reader.forget(start)
            reader.refresh()
            start = min(end, max(reader.cut(start, self._limits), start + 1))
            found.append(start)
        return found

    def contents(self, start: int, end: int) -> list[Content]:
        found = LogReader(self._path, start).contents(start, end)
        return self._shaped.contents(found, self._raw_versions()) if self._chain else found

    def portions(self, start: int, end: int, version: int, began: int) -> Portions | None:
        account = self._first_read(self._raw_versions()[version], began)
        if not account.advance(end):
            return None
        has_chunks, has_others = account.has_chunks(start, end), account.has_others(start, end)
        if len(account.touched().keys) and has_chunks:
            has = {new: any(map(len, self.keys(start, end, version, Portion(began, new)))) for new in (True, False)}
            return Portions(has[True], has[False])
        return Portions(has_chunks, has_others)

    def _first_read(self, table: TableSchema, began: int) -> FirstRead:
        known = self._first_reads.get(table.name)
        if known is None or known[0] != (began, table.key):
            known = self._first_reads[table.name] = (began, table.key), FirstRead(self._path, began, table)
        return known[1]

    def read(
        self, start: int, end: int, version: int, *, last: bool = False, portion: Portion | None = None
    ) -> DataFrame:
        """Few changes are read right here: Spark takes longer to plan a read in tasks than they take."""
        self._shaped.check(version)
        [piece] = LogReader(self._path, start).slices(start, end, 1, version, last=last, portion=portion)
        if sum(part.length for part in piece.parts) <= SMALL_BYTES and self._chain.runs_here:
            found = self._read_here(piece, f"{start}-{end}-{version}-{last}-{bool(piece.new)}")
            if found is not None:
                return found.select(*self._columns)
        return self._in_tasks(start, end, version, last=last, portion=portion).select(*self._columns)

    def batches(self, start: int, end: int, version: int, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """What runs here is read here: a sink that takes rows on the driver is slower than one process reads."""
        self._shaped.check(version)
        if not self._chain.runs_here:
            yield from self._in_tasks(start, end, version, last=last).toArrow().to_batches()
            return
        [piece] = LogReader(self._path, start).slices(start, end, 1, version, last=last)
        changes = read_slice(piece)
        if self._chain.task is None:
            yield from changes
        else:
            label = f"{start}-{end}-{version}-{last}-False"
            yield from self._chain.task.process(changes, self._raw_versions(), label)

    def _in_tasks(self, start: int, end: int, version: int, *, last: bool, portion: Portion | None = None) -> DataFrame:
        """The changes, read and processed by tasks."""
        options = ReadOptions(
            str(self._path), tasks=self._tasks, start=start, end=end, version=version, last=last, log=self.log_id
        )
        if portion is not None:
            options = replace(options, began=portion.began, new=portion.new)
        frame = self._spark.read.format(self._source.name()).options(**options.as_text()).load()
        if self._chain.has_frames:
            frame = self._chain.behind(frame, {version: self._raw_versions()[version]})
        return frame

    def _read_here(self, piece: Slice, label: str) -> DataFrame | None:
        """What the piece has, where it is little."""
        found = pa.Table.from_batches(read_slice(piece), CHANGES)
        if found.num_rows > jvm.FEW or found.nbytes > FEW_BYTES:
            return None
        if self._chain.task is None:
            return self._spark.createDataFrame(found, _CHANGES)
        tables, batches = self._raw_versions(), found.combine_chunks().to_batches()
        processed = self._chain.task.process(batches, tables, label, new=bool(piece.new))
        return self._spark.createDataFrame(pa.Table.from_batches(processed, PROCESSED), _PROCESSED)

    def read_rows(self, start: int, end: int, version: int, rows: TypedRows, portion: Portion) -> DataFrame | None:
        """Slices are told here: to have a data source plan its tasks, Spark starts processes for every read."""
        self._shaped.check(version)
        if self._chain.has_frames:
            return None
        chain = self._chain.task
        pieces = LogReader(self._path, start).slices(start, end, self._tasks, version, portion=portion)
        partitions = partitions_of(pieces, self._raw_versions(), f"{start}-{end}-{version}-rows", chain)
        told = pa.table({"slice": [pickle.dumps(each) for each in partitions]})
        return self._spark.createDataFrame(told).mapInArrow(partial(_typed, rows, chain), rows.schema)

    def keys(self, start: int, end: int, version: int, portion: Portion | None = None) -> Iterator[pa.Array[Any]]:
        return LogReader(self._path, start).keys(start, end, version, portion)

    def retain(self, table: str, offset: int | None) -> None:
        if offset is None:
            self.holds.let_go(table)
        else:
            self.holds.hold(table, offset)


def _typed(rows: TypedRows, chain: ChainTask | None, told: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of the slices it is told, behind the chain."""
    for text in (each.as_py() for batch in told for each in batch.column("slice")):
        yield from rows.of(read_partition(pickle.loads(text), chain))
