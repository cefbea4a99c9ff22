"""A sink's chain of processors in Spark: over batches in the tasks that read the log, over frames behind them.

What a chain drops is counted in small files of the query's state directory, one for each task, named after what the
task reads: a statement that reads twice, or a batch that comes again, counts once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tailrace.change import PROCESSED_DDL
from tailrace.contracts import BatchProcessor, Failed, Place, Processor, Step, Trait
from tailrace.machine.durable import make_directory, replace_file
from tailrace.passage import carried
from tailrace.processors.chain import Chain, Drop, shaped
from tailrace.processors.frames import FrameProcessor
from tailrace.schema import TableSchema
from tailrace.spark.letters import ChainLetters

SUFFIX = ".json"


@dataclass(frozen=True)
class Drops:
    """The files in which tasks say what they dropped. Read by the driver, between batches."""

    folder: Path

    def begin(self) -> None:
        """Forget what a batch said that was never delivered."""
        make_directory(self.folder)
        self.take()

    def put(self, label: str, drops: Mapping[Drop, int]) -> None:
        """In a task: what it dropped of what `label` names."""
        told = json.dumps([[*drop, number] for drop, number in sorted(drops.items())])
        replace_file(self.folder / (label + SUFFIX), told)

    def take(self) -> Counter[Drop]:
        """What was dropped since it was last asked."""
        found: Counter[Drop] = Counter()
        for file in self.folder.glob(f"*{SUFFIX}"):
            for schema_id, processor, reason, number in json.loads(file.read_text()):
                found[Drop(schema_id, processor, reason)] += number
            file.unlink()
        return found


@dataclass(frozen=True)
class ChainTask:
    """A chain over batches with all it needs in a task; picklable. `place` has no tables yet. `letters` takes changes
    that a processor failed for; None: there are no dead letters."""

    chain: Chain
    place: Place
    drops: Drops
    letters: ChainLetters | None = None

    def process(
        self, changes: Iterable[pa.RecordBatch], tables: Mapping[int, TableSchema], label: str, *, new: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The changes behind the chain. `tables`: versions that they may have; `label` names what is read. `new`: they
        are rows that the table cannot have yet, so that what is not wanted needs no delete."""
        failures: list[Failed] = []
        set_aside = None if self.letters is None else failures.append
        opened = self.chain.open(replace(self.place, tables=tables, set_aside=set_aside), removes=new)
        for batch in changes:
            processed = opened(batch)
            if processed.num_rows:
                yield processed
        if self.letters is not None and failures:
            self.letters.put(label, failures)
        if opened.drops:
            self.drops.put(label, opened.drops)


@dataclass(frozen=True)
class SinkChain:
    """What a sink's changes go through. Without processors it is false, and nothing of it is in any plan."""

    processors: tuple[Processor, ...] = ()
    place: Place = field(default_factory=lambda: Place("", "", "", {}))
    state: Path = Path()
    letters: ChainLetters | None = None

    def __bool__(self) -> bool:
        return bool(self.processors)

    @property
    def whole(self) -> Chain:
        return Chain(self.processors)

    @property
    def drops(self) -> Drops:
        return Drops(self.state / "dropped")

    @property
    def task(self) -> ChainTask | None:
        """What runs where the log is read: the processors before the first that wants frames."""
        if not self:
            return None
        return ChainTask(Chain(self.processors[: self._batches]), self.place, self.drops, self.letters)

    @property
    def has_frames(self) -> bool:
        """Whether a part of it runs over frames."""
        return self._batches < len(self.processors)

    @property
    def has_user_code(self) -> bool:
        """Whether it runs code of the user's, which belongs into tasks."""
        return any(isinstance(each, BatchProcessor) and each.user_code for each in self.processors)

    @property
    def runs_here(self) -> bool:
        """Whether all of it may run in the driver."""
        return not self.has_user_code and not self.has_frames

    def behind(self, frame: DataFrame, tables: Mapping[int, TableSchema]) -> DataFrame:
        """The frame behind the rest, which runs over frames."""
        place = replace(self.place, tables=tables)
        for each in self.processors[: self._batches]:
            place = shaped(place, each)
        for each in self.processors[self._batches :]:
            frame = self._step(each, frame, place)
            place = shaped(place, each)
        return frame

    @property
    def _batches(self) -> int:
        over_batches = [isinstance(each, BatchProcessor) for each in self.processors]
        return over_batches.index(False) if False in over_batches else len(over_batches)

    def _step(self, processor: Processor, frame: DataFrame, place: Place) -> DataFrame:
        if isinstance(processor, FrameProcessor):
            frame = processor.transform(frame, place)
            settled = ChainTask(Chain((Settled(id=processor.id),)), place, self.drops)
        else:
            settled = ChainTask(Chain((processor,)), place, self.drops, self.letters)
        return frame.mapInArrow(FrameTask(settled), PROCESSED_DDL)


@dataclass(frozen=True)
class FrameTask:
    """`mapInArrow`'s function, for a processor behind one that wants frames."""

    task: ChainTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        label = f"{self.task.chain.processors[0].id}-{context.stageId()}-{context.partitionId()}"
        with carried():
            yield from self.task.process(batches, self.task.place.tables, label)


class Settled(BatchProcessor):
    """Lets everything pass: the runner counts and takes out what the frame's processor before it dropped."""

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"rows", "key", "schema"})

    def open(self, place: Place) -> Step:
        return lambda changes: changes
