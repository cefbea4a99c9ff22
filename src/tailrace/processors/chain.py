"""A chain of processors over batches: what runs where the log is read, before any row reaches a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import CHANGES, PROCESSED
from tailrace.contracts import BatchProcessor, Place, Processor, Step, Trait
from tailrace.errors import ProcessorError
from tailrace.schema import TableSchema

ROW_OPS = ("c", "u", "r")
"""Changes that bring a row: before a mirror, one that is dropped becomes a delete."""


class Drop(NamedTuple):
    """What a processor drops of one version of a table, and why."""

    schema_id: int
    processor: str
    reason: str


@dataclass(frozen=True)
class Chain:
    """Processors in order. Without any it is false."""

    processors: tuple[Processor, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processors)

    def preserves(self, trait: Trait) -> bool:
        """Whether every processor does."""
        return all(trait in each.preserves() for each in self.processors)

    def shape(self, table: TableSchema) -> TableSchema:
        """What a version of a table looks like behind the chain; it keeps its id."""
        for each in self.processors:
            found = each.shape(table) if table.columns else table
            if found is None:
                raise ProcessorError(
                    "processor.unknown_columns",
                    f"what columns {table.name} has behind '{each.id}' is not known",
                    hint="declare them in the processor (`columns: {name: kind}`), or leave the table to other sinks",
                    where=table.name,
                )
            table = found
        return table

    def keeps_keys(self, table: TableSchema) -> bool:
        """Whether every change of `table` comes out with its key as it is. Of a table whose columns nobody knows, that
        is not known."""
        for each in self.processors:
            if not table.columns or not each.keeps_keys(table):
                return False
            table = each.shape(table) or table
        return True

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        """The columns that a change lacks behind the chain where it lacks these before it."""
        names = tuple(columns)
        for each in self.processors:
            names = each.unsent(names, table)
            table = each.shape(table) or table
        return names

    def breaks_mirror(self) -> tuple[Processor, str] | None:
        """The first processor behind which a table could not equal its source, and why."""
        found = ((each, each.breaks_mirror()) for each in self.processors)
        return next(((each, reason) for each, reason in found if reason is not None), None)

    def open(self, place: Place, *, removes: bool = False, keep_dropped: bool = False) -> OpenChain:
        """In a task; of processors over batches alone. `removes`: before a mirror too, what is not wanted is taken out
        instead of becoming a delete. `keep_dropped`: it stays in the batch, for whoever wants to show it."""
        steps: list[tuple[str, Step]] = []
        deletes = place.mirror and not removes
        for each in self.processors:
            assert isinstance(each, BatchProcessor)
            steps.append((each.id, each.open(place)))
            place = shaped(place, each)
        return OpenChain(steps, mirror=place.mirror, deletes=deletes, keep_dropped=keep_dropped)


def shaped(place: Place, processor: Processor) -> Place:
    """The place behind a processor. Of a table of which only the data can tell, it has the columns before it."""
    tables = {
        number: (processor.shape(each) if each.columns else None) or each for number, each in place.tables.items()
    }
    return replace(place, tables=tables)


class OpenChain:
    """Call it with batches, in order. `drops` counts what was not wanted."""

    def __init__(
        self, steps: Sequence[tuple[str, Step]], *, mirror: bool, deletes: bool, keep_dropped: bool = False
    ) -> None:
        self._steps, self._mirror, self._deletes, self._keep_dropped = steps, mirror, deletes, keep_dropped
        self.drops: Counter[Drop] = Counter()

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        batch = processed(changes)
        for processor, step in self._steps:
            batch = self._settled(step(batch), processor)
        return batch

    def _settled(self, batch: pa.RecordBatch, processor: str) -> pa.RecordBatch:
        """Count what the step does not want, and take it out."""
        reasons = batch.column("dropped")
        if reasons.null_count == len(reasons):
            return batch
        if self._mirror:
            batch = _without(batch, ("d", "t", "s"))
        self._count(batch, processor)
        if self._keep_dropped:
            return batch
        return _as_deletes(batch) if self._deletes else batch.filter(pc.is_null(batch.column("dropped")))

    def _count(self, batch: pa.RecordBatch, processor: str) -> None:
        gone = batch.filter(pc.is_valid(batch.column("dropped")))
        pairs = zip(gone.column("schema_id").to_pylist(), gone.column("dropped").to_pylist(), strict=True)
        self.drops.update(Drop(int(number or 0), processor, str(reason)) for number, reason in pairs)


def processed(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Changes as a chain gets them."""
    if changes.schema.names == PROCESSED.names:
        return changes
    made = [pa.nulls(changes.num_rows, field.type) for field in list(PROCESSED)[len(CHANGES) :]]
    return pa.RecordBatch.from_arrays([*changes.columns, *made], schema=PROCESSED)


def with_columns(batch: pa.RecordBatch, **columns: Any) -> pa.RecordBatch:
    """`batch` with these columns instead of its own."""
    arrays = [columns.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _without(batch: pa.RecordBatch, ops: Sequence[str]) -> pa.RecordBatch:
    """`batch` in which changes with these ops are wanted."""
    passes = pc.is_in(batch.column("op"), pa.array(ops))
    nothing = pa.scalar(None, pa.string())
    return with_columns(batch, dropped=pc.if_else(passes, nothing, batch.column("dropped")))


def _as_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Changes of rows that are not wanted as deletes of their keys; others that are not wanted go."""
    unwanted = np.asarray(pc.is_valid(batch.column("dropped")))
    rows = np.asarray(pc.is_in(batch.column("op"), pa.array(ROW_OPS))) & np.asarray(pc.is_valid(batch.column("key")))
    nothing, gone = pa.scalar(None, pa.string()), pa.array(unwanted & rows)
    batch = with_columns(
        batch,
        op=pc.if_else(gone, pa.scalar("d"), batch.column("op")),
        before=pc.if_else(gone, nothing, batch.column("before")),
        after=pc.if_else(gone, nothing, batch.column("after")),
        unchanged=pc.if_else(gone, pa.scalar(None, batch.schema.field("unchanged").type), batch.column("unchanged")),
        dropped=pa.nulls(batch.num_rows, pa.string()),
    )
    return batch.filter(pa.array(rows | ~unwanted))
