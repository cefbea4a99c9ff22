"""Rows of a source and of its table in a lake, compared by content.

Both sides become the same texts: a value of the source is read as the lake's column holds it, and both are spelled by
one rule, so that equal values are equal texts whatever wrote them. A row's hash covers every column, nulls included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, IntegerType, LongType, StringType

from tailrace.capture.staging import read_staged
from tailrace.contracts import Extent
from tailrace.schema import TableSchema
from tailrace.sinks.lake.evolve import SOFT, UNFIT
from tailrace.sinks.lake.fold import Reading
from tailrace.sinks.lake.sql import literal, quoted
from tailrace.spark.images import IMAGES, SourceRows

Kind = Literal["missing", "extra", "changed", "duplicate"]
KEY, HASH, ROWS, SPELLED = "_tailrace_key", "_tailrace_hash", "_tailrace_rows", "_tailrace_spelled"
GONE, GONE_AT = SOFT
"""Columns of a table that keeps deleted rows."""
_ORDERED = (DateType, DecimalType, IntegerType, LongType)
"""Types that Spark orders as the database does."""


@dataclass(frozen=True)
class Difference:
    """A row on which the two sides differ. `key` has the key's texts by column; "" where the table has no key.

    `missing`: the lake lacks it; `extra`: only the lake has it; `duplicate`: the lake has it more than once.
    """

    key: str
    kind: Kind
    spelled: str | None
    """The key as the log spells it, where the source has the row."""
    hash: int | None
    """Of the lake's row."""
    touched: bool
    """Whether the log changed it after the source was read."""


class Compared:
    """What one comparison found. `close` frees what it holds."""

    def __init__(self, found: DataFrame) -> None:
        self._found = found.persist()
        counted = self._found.groupBy("kind", "touched").agg(F.count("*").alias("rows")).collect()
        self.counts: dict[Kind, int] = {row.kind: row.rows for row in counted if not row.touched}
        self.moving = sum(row.rows for row in counted if row.touched)

    def differences(self, limit: int) -> list[Difference]:
        """Those that no change explains, by key."""
        return self._taken(~F.col("touched"), limit)

    def touched(self) -> list[Difference]:
        """Those that a change may explain."""
        return self._taken(F.col("touched"), self.moving) if self.moving else []

    def _taken(self, which: Column, limit: int) -> list[Difference]:
        rows = self._found.filter(which).orderBy(KEY).limit(limit).collect()
        return [Difference(row[KEY], row.kind, row[SPELLED], row[HASH], row.touched) for row in rows]

    def close(self) -> None:
        self._found.unpersist()


class Comparison:
    """One version of a source's table, and the lake's table with columns of these types."""

    def __init__(
        self,
        spark: SparkSession,
        schema: TableSchema,
        lake: Mapping[str, DataType],
        rows: SourceRows | None = None,
    ) -> None:
        """`schema` is the version as the lake has it, behind the chain that `rows` of the source go through."""
        self._spark, self._schema, self._rows = spark, schema, rows
        self._lake = lake
        self._reading = Reading.of(
            schema, {column.name: lake.get(column.name, StringType()) for column in schema.columns}
        )

    @property
    def orders_keys(self) -> bool:
        """Whether a range of keys is the same here and in the database."""
        return bool(self._schema.key) and all(
            isinstance(self._lake.get(name), _ORDERED) and isinstance(self._reading.declared[name], _ORDERED)
            for name in self._schema.key
        )

    # -- the two sides ---------------------------------------------------------------------------------------

    def staged(self, files: Sequence[str]) -> DataFrame:
        """The images in staged files; each file is a task."""
        named = self._spark.createDataFrame([(file,) for file in files], "file string")
        return self._behind(named.repartition(max(1, len(files))).mapInArrow(_load, IMAGES))

    def images(self, rows: Iterable[tuple[str, str]]) -> DataFrame:
        """Images at hand: (key, after)."""
        return self._behind(self._spark.createDataFrame(list(rows), IMAGES))

    def _behind(self, images: DataFrame) -> DataFrame:
        return images if self._rows is None else self._rows.behind(images)

    def source(self, images: DataFrame) -> DataFrame:
        """The source's side."""
        rows = images.filter("after is not null").select("key", self._reading.parsed("after").alias("row"))
        cells = {name: F.expr(self._reading.canonical(name, _field(name))) for name in self._reading.types}
        return rows.select(F.col("key").alias(SPELLED), *_aliased(cells))

    def lake(self, table: DataFrame) -> DataFrame:
        """The lake's side."""
        present = set(table.columns)
        cells = {name: F.expr(self._from_table(name, present)) for name in self._reading.types}
        return table.select(*_aliased(cells))

    def within(self, table: DataFrame, low: Extent, high: Extent) -> DataFrame:
        """The lake's rows whose keys are in the ranges from `low` to `high`."""
        if low.low is not None:
            table = table.filter(self._beyond(low.low))
        return table.filter(~self._beyond(high.high)) if high.high is not None else table

    def among(self, side: DataFrame, keys: Sequence[str]) -> DataFrame:
        """A side's rows with these keys."""
        wanted = self._spark.createDataFrame([(key,) for key in keys], f"{KEY} string")
        return self._keyed(side).join(F.broadcast(wanted), KEY, "left_semi")

    def touched(self, keys: Iterable[str]) -> DataFrame:
        """Keys of the log as keys of a comparison."""
        if not self._schema.key:
            return self._spark.createDataFrame([], f"{KEY} string")
        found = self._spark.createDataFrame([(key,) for key in keys], "key string")
        rows = found.select(self._reading.of_key().parsed("key").alias("row"))
        places = {name: place for place, name in enumerate(self._reading.types)}
        cells = {name: F.expr(self._reading.canonical(name, _field(name))) for name in self._schema.key}
        texts = [column.alias(_cell(places[name])) for name, column in cells.items()]
        return rows.select(*texts).select(self._key().alias(KEY)).distinct()

    # -- compared --------------------------------------------------------------------------------------------

    def compare(self, source: DataFrame, lake: DataFrame, touched: DataFrame) -> Compared:
        """Rows that are not the same on both sides; those in `touched` are told apart."""
        spelled = F.col(SPELLED) if SPELLED in source.columns else F.lit(None).cast("string")
        left = self._counted(source.withColumn(SPELLED, spelled), "s", F.first(SPELLED).alias(SPELLED))
        right = self._counted(lake, "l")
        rows = left.join(right, KEY, "full_outer")
        kind = (
            F.when(F.col("l_rows").isNull(), "missing")
            .when(F.col("s_rows").isNull(), "extra")
            .when(F.col("l_rows") > F.col("s_rows"), "duplicate")
            .when(F.col("l_rows") < F.col("s_rows"), "missing")
            .when(F.col("l_hash") != F.col("s_hash"), "changed")
        )
        found = rows.withColumn("kind", kind).filter("kind is not null")
        marked = found.join(F.broadcast(touched.withColumn("_hit", F.lit(True))), KEY, "left")
        hit = F.coalesce("_hit", F.lit(False)).alias("touched")
        return Compared(marked.select(KEY, SPELLED, F.col("l_hash").alias(HASH), "kind", hit))

    def cells(self, side: DataFrame, keys: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Key → column → text, of these keys; of one row where there are several."""
        rows = self.among(side, keys).collect()
        return {row[KEY]: {name: row[_cell(place)] for place, name in enumerate(self._reading.types)} for row in rows}

    def key_sql(self, present: set[str]) -> str:
        """SQL: the key of a row of the lake's table, as differences have it."""
        if not self._schema.key:
            return f"cast({self.hash_sql(present)} as string)"
        parts = ", ".join(f"{literal(name)}, {self._from_table(name, present)}" for name in self._schema.key)
        return f"to_json(named_struct({parts}))"

    def hash_sql(self, present: set[str]) -> str:
        """SQL: the hash of a row of the lake's table."""
        return _hash([self._from_table(name, present) for name in self._reading.types])

    def _counted(self, side: DataFrame, name: str, *more: Column) -> DataFrame:
        """A side's rows by key, with how many there are and the hash of one."""
        keyed = self._keyed(side)
        found = (F.count("*").alias(f"{name}_rows"), F.max(HASH).alias(f"{name}_hash"))
        return keyed.groupBy(KEY).agg(*found, *more)

    def _keyed(self, side: DataFrame) -> DataFrame:
        if KEY in side.columns:
            return side
        hashed = F.expr(_hash([_cell(place) for place in range(len(self._reading.types))])).alias(HASH)
        with_hash = side.select("*", hashed)
        return with_hash.select("*", (self._key() if self._schema.key else F.col(HASH).cast("string")).alias(KEY))

    def _key(self) -> Column:
        names = list(self._reading.types)
        parts = [F.col(_cell(names.index(name))).alias(name) for name in self._schema.key]
        return F.to_json(F.struct(*parts))

    def _beyond(self, bound: tuple[str, ...]) -> Column:
        """Whether a row's key is above `bound`, column by column."""
        above = F.lit(False)
        for name, each in reversed(list(zip(self._schema.key, bound, strict=True))):
            limit = F.lit(each).cast(self._reading.types[name])
            above = (F.col(quoted(name)) > limit) | ((F.col(quoted(name)) == limit) & above)
        return above

    def _from_table(self, name: str, present: set[str]) -> str:
        """SQL: the text of a value of the lake."""
        if name not in present:
            return "cast(null as string)"
        return self._reading.canonical_here(name, quoted(name), UNFIT if UNFIT in present else None)


def _load(named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of staged files, the images of rows."""
    for batch in named:
        for file in batch.column("file").to_pylist():
            for rows, _ in read_staged(Path(str(file))):
                yield rows.select(["key", "after"])


def _aliased(cells: Mapping[str, Column]) -> list[Column]:
    return [column.alias(_cell(place)) for place, column in enumerate(cells.values())]


def _cell(place: int) -> str:
    return f"_c{place}"


def _field(name: str) -> str:
    return f"row.{quoted(name)}"


def _hash(cells: Sequence[str]) -> str:
    """SQL: Spark's hashes skip nulls, so where they are is hashed too."""
    return f"xxhash64({', '.join(f'({cell}) is null, {cell}' for cell in cells)})"


def read_key(key: str) -> dict[str, Any]:
    """The key's texts by column."""
    found = json.loads(key) if key.startswith("{") else {}
    return dict(found)
