"""Row images as typed columns, made where the log is read: what Spark's own parser of JSON takes most of a first load
for.

Each value is exactly the one that the image says, or the read fails; then whoever reads takes the slow way, which tells
what does not fit. So only types are taken here whose JSON has one meaning, spelled as taps spell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TAKEN = (
    *(BooleanType, DateType, DecimalType, DoubleType, IntegerType),
    *(LongType, StringType, TimestampNTZType, TimestampType),
)


@dataclass(frozen=True)
class TypedRows:
    """Columns of images, by name. `documents` are columns of JSON, whose text is kept as it stands."""

    schema: StructType
    documents: tuple[str, ...] = ()

    @property
    def can_be_made(self) -> bool:
        """Whether columns of these types can be made here."""
        return all(isinstance(each.dataType, _TAKEN) for each in self.schema)

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of changes as batches of their rows. Raises `ValueError` where a value does not fit."""
        from tailrace.sinks import json_columns

        target = to_arrow_schema(self.schema, timestamp_utc=True)
        for batch in batches:
            yield json_columns.typed(batch.column("after"), target, self.documents)
