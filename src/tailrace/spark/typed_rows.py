"""Row images as typed columns, made in Python's tasks: what Spark's own parser of JSON takes most of a first load for.

Each value is exactly what the image says, or the read fails; then whoever reads takes the slow way, which tells what
does not fit. So only types are taken here whose JSON has one meaning, and Arrow's conversions, which round nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
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

from tailrace.sinks.lake.verbatim import members

_AS_THEY_ARE = (BooleanType, DoubleType, IntegerType, LongType, StringType)
"""Types that JSON has itself."""
_FROM_TEXT = (DateType, DecimalType, TimestampNTZType, TimestampType)
"""Types whose values are texts there."""


def can_type(types: Iterable[DataType]) -> bool:
    """Whether columns of these types can be made here."""
    return all(isinstance(each, _AS_THEY_ARE + _FROM_TEXT) for each in types)


@dataclass(frozen=True)
class TypedRows:
    """Columns of images, by name. `documents` are columns of JSON, whose text is kept as it stands."""

    schema: StructType
    documents: tuple[str, ...] = ()

    def as_text(self) -> str:
        return json.dumps({"schema": self.schema.jsonValue(), "documents": self.documents})

    @classmethod
    def from_text(cls, text: str) -> TypedRows:
        found = json.loads(text)
        return cls(StructType.fromJson(found["schema"]), tuple(found["documents"]))

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of changes as batches of their rows. Raises `pyarrow.ArrowInvalid` where a value does not fit."""
        target = to_arrow_schema(self.schema, timestamp_utc=True)
        for batch in batches:
            yield self._typed(batch.column("after"), target)

    def _typed(self, images: Any, target: pa.Schema) -> pa.RecordBatch:
        parsed = self._parsed(images, target)
        verbatim = _documents(images, self.documents)
        columns = [
            verbatim[each.name] if each.name in verbatim else parsed.column(each.name).cast(each.type)
            for each in target
        ]
        return pa.RecordBatch.from_arrays(columns, schema=target)

    def _parsed(self, images: Any, target: pa.Schema) -> pa.RecordBatch:
        """Values as JSON has them. One image a line: none has a line break of its own."""
        wanted = [pa.field(each.name, self._read_as(each)) for each in target if each.name not in self.documents]
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(images)], images), "\n")[0].as_buffer()
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema(wanted), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(images):
            raise pa.ArrowInvalid(f"{table.num_rows} rows of {len(images)} images")
        [batch] = table.combine_chunks().to_batches() or [None]
        return batch

    def _read_as(self, column: pa.Field[Any]) -> pa.DataType:
        is_text = isinstance(self.schema[column.name].dataType, _FROM_TEXT)
        return pa.string() if is_text else column.type


def _documents(images: Any, names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}
    found = members(names, only_nested=False)(images)
    return {name: found.field(place) for place, name in enumerate(names)}
