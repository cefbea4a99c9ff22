"""Rows of a source as a sink's chain of processors leaves them, for comparing them with the sink's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from tailrace.change import CHANGES, PROCESSED_DDL
from tailrace.errors import ProcessorError
from tailrace.passage import carried
from tailrace.processors.chain import Chain, processed
from tailrace.schema import TableSchema
from tailrace.spark.chain import SinkChain

IMAGES = "key string, after string"
_EMPTY: dict[str, object] = {"int64": 0, "int32": 0, "string": "", "bool": False}


@dataclass(frozen=True)
class SourceRows:
    """Rows of one table, before and behind a chain."""

    chain: SinkChain
    table: TableSchema

    def behind(self, images: DataFrame) -> DataFrame:
        """Images (`IMAGES`) behind the chain. A row that it drops has no `after`."""
        if not self.chain:
            return images
        head = self.chain.task.chain if self.chain.task is not None else Chain()
        frame = images.mapInArrow(_Passing(self, head), PROCESSED_DDL)
        return self.chain.behind(frame, {self.table.id: self.table}).select("key", "after")

    def changes(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Images as the changes that a read of the table would be."""
        table, rows = self.table, images.num_rows
        known = {"op": "r", "database": table.database, "schema": table.schema, "table": table.table}
        known |= {"source": self.chain.place.pipeline}
        columns = [
            images.column(field.name)
            if field.name in ("key", "after")
            else pa.repeat(table.id, rows).cast(field.type)
            if field.name == "schema_id"
            else pa.nulls(rows, field.type)
            if field.nullable
            else pa.repeat(pa.scalar(known.get(field.name, _EMPTY[str(field.type)]), field.type), rows)
            for field in CHANGES
        ]
        return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


@dataclass(frozen=True)
class _Passing:
    """`mapInArrow`'s function: images through the part of a chain that works on batches."""

    rows: SourceRows
    head: Chain

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = replace(self.rows.chain.place, tables={self.rows.table.id: self.rows.table})
        with carried():
            opened = self.head.open(place)
            for batch in batches:
                yield opened(processed(self.rows.changes(batch)))


def shape(chain: SinkChain, table: TableSchema) -> TableSchema:
    """A version of a table behind a chain. Raises where a mirror behind it could not tell its rows."""
    found = chain.whole.shape(table)
    if chain.place.mirror and found.key != table.key:
        raise ProcessorError(
            "processor.key_changed",
            f"the key of {table.name} is not the source's behind the processors",
            hint="leave key columns as they are before a sink with write_mode: upsert",
            where=table.name,
        )
    return found
