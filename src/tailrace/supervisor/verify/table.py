"""One table compared, range by range, while both sides live.

A row that differs is a difference only where nothing in the log changed it after the source was read. Else it is read
again, a few times; a row that never rests is then held against what the log says of it at the lake's own offset.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tailrace.capture.postgres import PostgresSource
from tailrace.changelog.touched import Touched
from tailrace.contracts import ChunkId, Extent, Staged
from tailrace.errors import SinkError, TailraceError
from tailrace.schema import TableSchema
from tailrace.sinks.tables import Mirror, Pin
from tailrace.spark.chain import SinkChain
from tailrace.spark.compare import Compared, Comparison, Difference, read_key
from tailrace.spark.images import SourceRows, shape
from tailrace.spark.snapshot import Outcome, Read, ReadHere, ReadInSpark, Task
from tailrace.supervisor.verify.passage import Passage, Patience
from tailrace.supervisor.verify.report import Shown, TableReport
from tailrace.supervisor.verify.touches import TouchedKeys

GROUP_ROWS = 1_000_000
"""Rows that are compared at a time, where ranges of keys can be."""
KEYS_PER_CHUNK = 1000
ROUNDS = 3
"""How often rows that changed meanwhile are read again."""
COLLECTED = 50_000
"""Differing rows that are held, and repaired, at most."""
PLANNED = 64


@dataclass(frozen=True)
class Moment:
    """Both sides, as they were read: the source's rows, and the lake's table behind them."""

    reads: tuple[Staged, ...]
    pin: Pin
    comparison: Comparison
    touches: Touched

    def close(self) -> None:
        self.pin.close()
        for each in self.reads:
            Path(each.file).unlink(missing_ok=True)


class TableVerification:
    """Use `run`, then, for a repair, `check` with keys of what it found."""

    def __init__(
        self,
        spark: SparkSession,
        source: PostgresSource,
        mirror: Mirror,
        name: tuple[str, str],
        passage: Passage,
        touched: TouchedKeys,
        folder: Path,
        report: TableReport,
        chain: SinkChain,
        *,
        limit: int,
        on_rows: Callable[[TableReport], None],
    ) -> None:
        self._spark, self._source, self._mirror = spark, source, mirror
        self._schema, self._table = name
        self._passage, self._touched, self._folder = passage, touched, folder
        self.report, self._limit, self._on_rows, self._chain = report, limit, on_rows, chain
        self.found: list[Difference] = []
        self._run, self._numbers = f"verify-{uuid.uuid4().hex[:8]}", itertools.count()

    def run(self) -> None:
        """Compare all of it, into the report."""
        for extents in self._groups():
            self._compare(extents)
            self._on_rows(self.report)

    def check(self, keys: Sequence[str]) -> None:
        """Compare these rows alone, into the report."""
        self._rounds(keys)

    # -- what is compared at a time ---------------------------------------------------------------------------

    def _groups(self) -> Iterator[list[Extent]]:
        size = max(1, GROUP_ROWS // self._source.snapshot.chunk_size) if self._in_ranges() else None
        group: list[Extent] = []
        for extent in self._extents():
            group.append(extent)
            if len(group) == size:
                yield group
                group = []
        if group:
            yield group

    def _extents(self) -> Iterator[Extent]:
        last: Extent | None = None
        while last is None or last.high is not None:
            planned = self._source.plan_chunks(
                self._schema, self._table, last, self._source.snapshot.chunk_size, PLANNED
            )
            yield from planned
            last = planned[-1]

    def _in_ranges(self) -> bool:
        pin = self._passage.mirror_past(self._mirror, 0)
        pin.close()
        if pin.types is None or pin.version is None:
            return False
        return Comparison(self._mirror.session, pin.version, pin.types).orders_keys

    # -- one comparison ---------------------------------------------------------------------------------------

    def _compare(self, extents: list[Extent]) -> None:
        """Compare what the extents have; then what moved meanwhile, again."""
        for _ in range(ROUNDS):
            moment = self._look(extents)
            try:
                if moment.touches.everything:
                    continue
                self.report.rows += sum(each.rows - each.reset for each in moment.reads)
                moving = self._judge(moment, self._source_side(moment), self._lake_side(moment, extents, None))
            finally:
                moment.close()
            self._note(moment)
            self._rounds(moving)
            return
        raise self._restless()

    def _rounds(self, keys: Sequence[str]) -> None:
        for left in reversed(range(ROUNDS)):
            if not keys:
                return
            moment = self._look([Extent(keys=part) for part in _parts(keys)])
            try:
                if moment.touches.everything:
                    continue
                lake = self._lake_side(moment, None, keys)
                moving = self._judge(moment, self._source_side(moment), lake)
                keys = moving if left else self._by_the_log(moment, moving)
            finally:
                moment.close()
        self.report.unsettled += len(keys)

    def _by_the_log(self, moment: Moment, keys: Sequence[str]) -> Sequence[str]:
        """Hold rows that never rest against their last images in the log; returns those that it cannot tell."""
        if not keys:
            return ()
        images = moment.comparison.source(moment.comparison.images(moment.touches.images.items()))
        lake = self._lake_side(moment, None, keys)
        return self._judge(moment, moment.comparison.among(images, keys), lake, moment.touches.partial)

    def _judge(self, moment: Moment, source: DataFrame, lake: DataFrame, touched: set[str] | None = None) -> list[str]:
        """Enter the differences; returns the keys of rows that may differ only because they changed meanwhile."""
        excused = moment.touches.keys if touched is None else touched
        compared = moment.comparison.compare(source, lake, moment.comparison.touched(excused))
        try:
            self._enter(compared, moment.comparison, source, lake)
            return [each.key for each in compared.touched()]
        finally:
            compared.close()

    def _source_side(self, moment: Moment) -> DataFrame:
        files = [each.file for each in moment.reads]
        return moment.comparison.source(moment.comparison.staged(files))

    def _lake_side(self, moment: Moment, extents: list[Extent] | None, keys: Sequence[str] | None) -> DataFrame:
        comparison, pin = moment.comparison, moment.pin
        if pin.types is None:
            columns = self._mirror.types_of(self._shape(moment.reads[0]))
            nothing = ", ".join(f"`{name}` {each.simpleString()}" for name, each in columns.items())
            return comparison.lake(self._mirror.session.createDataFrame([], nothing))
        parts = [Extent(keys=part) for part in _parts(keys)] if keys is not None else extents or []
        rows = pin.rows(parts)
        if extents and (extents[0].low is not None or extents[-1].high is not None):
            if not comparison.orders_keys:
                raise self._restless()
            rows = comparison.within(rows, extents[0], extents[-1])
        side = comparison.lake(rows)
        return side if keys is None else comparison.among(side, keys)

    # -- both sides at a moment -------------------------------------------------------------------------------

    def _look(self, extents: Sequence[Extent]) -> Moment:
        """Read the source, and the lake behind it, when both have the same version of the table."""
        waiting = Patience(self._passage.patience_s, "the lake to follow the table's columns", lambda _: None)
        while True:
            reads = self._read(extents)
            offset = self._passage.log_past([each.after for each in reads])
            pin = self._passage.mirror_past(self._mirror, offset)
            if pin.version is None or self._alike(reads, pin.version):
                schema, rows = self._shape(reads[0]), SourceRows(self._chain, reads[0].schema)
                types = pin.types if pin.types is not None else self._mirror.types_of(schema)
                comparison = Comparison(self._mirror.session, schema, types, rows)
                return Moment(tuple(reads), pin, comparison, self._touched.since(reads, pin.offset))
            pin.close()
            for each in reads:
                Path(each.file).unlink(missing_ok=True)
            waiting.go_on((pin.version.fingerprint, [each.schema.fingerprint for each in reads]))

    def _shape(self, read: Staged) -> TableSchema:
        """What was read, as the lake has it."""
        return shape(self._chain, read.schema)

    def _alike(self, reads: Sequence[Staged], version: TableSchema) -> bool:
        """Whether the reads have the columns that the lake follows."""
        wanted = [(column.name, column.type) for column in version.columns], version.key
        shapes = [self._shape(each) for each in reads]
        return all(([(c.name, c.type) for c in each.columns], each.key) == wanted for each in shapes)

    def _read(self, extents: Sequence[Extent]) -> list[Staged]:
        chunks: Task = [
            (ChunkId(self._run, self._schema, self._table, next(self._numbers)), extent) for extent in extents
        ]
        parallel = self._source.snapshot.max_parallel_chunks
        tasks = [chunks[place::parallel] for place in range(min(parallel, len(chunks)))]
        here = ReadHere(self._source, self._folder)
        read: Read = here if extents[0].keys else ReadInSpark(self._spark, here)  # a few rows need no task
        with ThreadPoolExecutor(parallel, "verify") as pool:
            outcomes: list[Outcome] = [each for part in pool.map(read, tasks) for each in part]
        for error in (each for each in outcomes if isinstance(each, TailraceError)):
            raise error
        return [each for each in outcomes if isinstance(each, Staged)]

    # -- the report -------------------------------------------------------------------------------------------

    def _enter(self, compared: Compared, comparison: Comparison, source: DataFrame, lake: DataFrame) -> None:
        for kind, rows in compared.counts.items():
            self.report.differences[kind] = self.report.differences.get(kind, 0) + rows
        if not compared.counts:
            return
        found = compared.differences(COLLECTED - len(self.found))
        self.found += found
        wanted = found[: max(0, self._limit - len(self.report.shown))]
        if wanted:
            keys = [each.key for each in wanted]
            here, there = comparison.cells(source, keys), comparison.cells(lake, keys)
            self.report.shown += [_shown(each, here.get(each.key), there.get(each.key)) for each in wanted]

    def _note(self, moment: Moment) -> None:
        """All of the table was compared through the least of these."""
        if self.report.offset is None or moment.pin.offset < self.report.offset:
            self.report.offset, self.report.position = moment.pin.offset, moment.reads[0].after
        self.report.at_us = int(time.time() * 1e6)

    def _restless(self) -> SinkError:
        return SinkError(
            "verify.restless",
            f"{self.report.table} is emptied or altered again and again while it is compared",
            hint="verify it when that is over",
            where=self.report.table,
        )


def _shown(found: Difference, source: dict[str, str | None] | None, lake: dict[str, str | None] | None) -> Shown:
    names = [name for name in source if source[name] != lake[name]] if source and lake else []
    return Shown(read_key(found.key), found.kind, tuple(names), source, lake)


def _parts(keys: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(keys[place : place + KEYS_PER_CHUNK]) for place in range(0, len(keys), KEYS_PER_CHUNK)]


def forget_files(folder: Path) -> None:
    """Remove what a verification that was interrupted left."""
    for file in folder.glob("*"):
        with suppress(FileNotFoundError):
            file.unlink()
