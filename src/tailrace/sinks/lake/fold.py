"""What a batch leaves of each key: one row at most, the last, with columns the source did not send filled in.

Rows of one version of one table come in; `_op` and the typed columns go out, with `_kept` naming the columns whose
value only the table itself has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StringType, StructField, StructType

from tailrace.sinks.lake.columns import text, unfit, value
from tailrace.sinks.lake.target import literal, quoted
from tailrace.sinks.lake.verbatim import members


@dataclass(frozen=True)
class Reading:
    """How rows are read: the type of each column of the version, and its key."""

    types: Mapping[str, DataType]
    key: tuple[str, ...]
    json: tuple[str, ...] = ()
    """Columns whose values are JSON, to be kept as they are..."""
    nested: tuple[str, ...] = ()
    """...and those that may hold some."""

    @property
    def texts(self) -> StructType:
        """Every column as the text its JSON has."""
        return StructType([StructField(name, StringType()) for name in self.types])

    @property
    def key_texts(self) -> StructType:
        return StructType([StructField(name, StringType()) for name in self.key])

    def parsed(self, image: str) -> Column:
        """The texts of an image."""
        row = F.from_json(F.col(image), self.texts, {"mode": "FAILFAST"})
        for names, only_nested in ((self.json, False), (self.nested, True)):
            if names:
                found = _members(names, only_nested)(F.col(image))
                for place, name in enumerate(names):
                    text = found[f"c{place}"]
                    row = row.withField(quoted(name), F.coalesce(text, row[name]) if only_nested else text)
        return F.when(F.col(image).isNotNull(), row)

    def typed(self) -> list[Column]:
        """The version's columns, from the texts in `row`."""
        return [F.expr(value(_field(name), each)).alias(name) for name, each in self.types.items()]

    def misfits(self) -> Column:
        """Column → text, of the values in `row` that their columns do not hold."""
        checked = {name: each for name, each in self.types.items() if not isinstance(each, StringType)}
        entries = ", ".join(
            f"if({unfit(_field(name), each)}, struct({literal(name)} as key, {_field(name)} as value), null)"
            for name, each in checked.items()
        )
        found = f"filter(array({entries}), e -> e is not null)" if entries else "array()"
        return F.expr(f"map_from_entries(cast({found} as array<struct<key:string,value:string>>))")


def _members(names: Sequence[str], only_nested: bool) -> Callable[[Column], Column]:
    kind = ", ".join(f"c{place} string" for place in range(len(names)))
    made: Callable[[Column], Column] = arrow_udf(  # type: ignore[call-overload]
        members(names, only_nested=only_nested), f"struct<{kind}>"
    )
    return made


def last_of_each_key(rows: DataFrame, reading: Reading) -> DataFrame:
    """The last change of each key, where every change has all columns."""
    last = F.max_by(F.struct("op", "after", "ts_us"), "seq").alias("last")
    row = reading.parsed("last.after").alias("row")
    return rows.groupBy("key").agg(last).select("key", "last.op", "last.ts_us", row, _no_names("_kept"))


def with_row(rows: DataFrame, reading: Reading) -> DataFrame:
    """Each change with its values as texts in `row`."""
    return rows.withColumn("row", reading.parsed("after"))


def with_moved(rows: DataFrame, reading: Reading, lazy: Sequence[str], table: DataFrame) -> DataFrame:
    """A row that got another key has the columns it lacks from the row it was, which `table` still has.

    The caller sees to it that no change before it in `rows` touches that row.
    """
    moved = rows.filter(_moved()).withColumn("_was", F.from_json(F.col("headers")["old_key"], reading.key_texts))
    old = table.select(
        *(F.col(quoted(name)).alias(f"_old_key_{place}") for place, name in enumerate(reading.key)),
        *(F.expr(text(quoted(name), reading.types[name])).alias(f"_old_{place}") for place, name in enumerate(lazy)),
    )
    same = [
        F.expr(value(f"_was.{quoted(name)}", reading.types[name])) == F.col(f"_old_key_{place}")
        for place, name in enumerate(reading.key)
    ]
    row = F.col("row")
    for place, name in enumerate(lazy):
        lacks = F.array_contains(_lacking(), name)
        row = row.withField(quoted(name), F.when(lacks, F.col(f"_old_{place}")).otherwise(row[name]))
    filled = moved.join(old, _all(same), "left")
    filled = filled.withColumn("row", row).withColumn("unchanged", _no_names("unchanged")).select(*rows.columns)
    return rows.filter(~_moved()).unionByName(filled)


def moved_cuts(rows: DataFrame) -> list[int]:
    """Where `rows` must be cut so that a row that got another key finds in the table what it was.

    It does unless a change before it in the same part touches the row it was.
    """
    moved = rows.filter(_moved()).select(F.col("headers")["old_key"].alias("was"), F.col("seq").alias("at"))
    earlier = rows.select("key", "seq", "op").join(moved, F.col("key") == F.col("was"))
    own = (F.col("op") == "d") & (F.col("seq") == F.col("at") - 1)
    touched = earlier.filter((F.col("seq") < F.col("at")) & ~own).groupBy("at").agg(F.max("seq").alias("touched"))
    cuts: list[int] = []
    for row in sorted(touched.collect(), key=lambda each: each["at"]):
        if not cuts or cuts[-1] <= row.touched:
            cuts.append(row["at"] - 1)
    return cuts


def folded(rows: DataFrame, lazy: Sequence[str]) -> DataFrame:
    """The last change of each key, where some changes lack some of the `lazy` columns.

    What a change lacks is in the one before it in the batch, back to one that has all; else it is `_kept`.
    """
    keys = Window.partitionBy("key")
    whole = F.when((F.col("op") == "d") | (F.size(_lacking()) == 0), F.col("seq"))
    recent = rows.withColumn("_base", F.max(whole).over(keys)).filter("_base is null or seq >= _base")
    filled = [_last_sent(name).alias(f"_lazy_{place}") for place, name in enumerate(lazy)]
    last = F.max_by(F.struct("op", "ts_us", "row"), "seq").alias("last")
    kept = F.array(*(F.when(F.col(f"_lazy_{place}").isNull(), F.lit(name)) for place, name in enumerate(lazy)))
    row = F.col("last.row")
    for place, name in enumerate(lazy):
        row = row.withField(quoted(name), F.col(f"_lazy_{place}.text"))
    names = F.filter(kept, lambda each: each.isNotNull()).alias("_kept")
    found = recent.groupBy("key").agg(last, *filled)
    return found.select("key", "last.op", "last.ts_us", row.alias("row"), names)


def _field(name: str) -> str:
    return f"row.{quoted(name)}"


def _last_sent(name: str) -> Column:
    """The text of the column in the last change that has it."""
    sent = ~F.array_contains(_lacking(), name)
    return F.max_by(F.when(sent, F.struct(F.col("row")[name].alias("text"))), F.when(sent, F.col("seq")))


def _lacking() -> Column:
    return F.coalesce(F.col("unchanged"), _no_names("_none"))


def _moved() -> Column:
    return F.coalesce(F.col("headers")["old_key"].isNotNull() & (F.size(_lacking()) > 0), F.lit(False))


def _no_names(name: str) -> Column:
    return F.array().cast("array<string>").alias(name)


def _all(conditions: Sequence[Column]) -> Column:
    found = conditions[0]
    for each in conditions[1:]:
        found = found & each
    return found
