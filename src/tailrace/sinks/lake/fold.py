"""What a batch leaves of each key: one row at most, the last, with columns the source did not send filled in.

Rows of one version of one table come in; `_op` and the typed columns go out, with `_kept` naming the columns whose
value only the table itself has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.sinks.lake.columns import text, value
from tailrace.sinks.lake.sql import literal, quoted
from tailrace.sinks.lake.verbatim import members


@dataclass(frozen=True)
class Reading:
    """How rows are read: the type of each column of the version, and its key. Values are read as texts first, so that
    those a column does not hold can be told."""

    types: Mapping[str, DataType]
    key: tuple[str, ...]
    json: tuple[str, ...] = ()
    """Columns whose values are JSON, to be kept as they are..."""
    nested: tuple[str, ...] = ()
    """...and those that may hold some."""
    lenient: bool = False
    """Whether the table sets values aside that do not fit."""
    bounded: tuple[str, ...] = ()
    """Columns of decimals that the source itself keeps to their digits."""
    hopeful: bool = False
    """Whether a value that its column does not hold is an error. That is quicker."""

    @property
    def parts(self) -> StructType:
        """Every column as the text its JSON has; of a hopeful reading, some as their values."""
        return StructType(
            [StructField(name, each if self._is_direct(name) else StringType()) for name, each in self._items()]
        )

    @property
    def key_texts(self) -> StructType:
        return StructType([StructField(name, StringType()) for name in self.key])

    def hoping(self) -> Reading:
        """The quicker way."""
        return replace(self, hopeful=True)

    def parsed(self, image: str) -> Column:
        """The parts of an image, which is SQL: as a column of its own it would be copied once more."""
        text = F.expr(image)
        row = F.from_json(text, self.parts, {"mode": "FAILFAST"})
        for name in () if self.hopeful else self._floating():
            signed = F.expr(_is_minus_zero(name, image))
            row = row.withField(quoted(name), F.when((row[name] == "0") & signed, "-0").otherwise(row[name]))
        for names, only_nested in ((self.json, False), (self.nested, True)):
            if names:
                found = _members(names, only_nested)(text)
                for place, name in enumerate(names):
                    kept = found[f"c{place}"]
                    row = row.withField(quoted(name), F.coalesce(kept, row[name]) if only_nested else kept)
        return F.when(text.isNotNull(), row)

    def typed(self, rows: DataFrame) -> DataFrame:
        """`rows` with the value of each text in `row`, where it has a type that holds it, as `_v0`, `_v1` and so on."""
        values = {f"_v{place}": F.expr(value(_field(name), each)) for place, (name, each) in enumerate(self._items())}
        return rows.withColumns(values)

    def columns(self) -> list[Column]:
        """The version's columns, of rows that are `typed`."""
        return [F.col(f"_v{place}").alias(name) for place, name in enumerate(self.types)]

    def misfits(self) -> Column:
        """Column → text, of the values in `row` that their columns do not hold; of rows that are `typed`."""
        texts = {f"_v{place}": name for place, (name, each) in enumerate(self._items()) if each != StringType()}
        wrong = {name: f"({_field(name)} is not null and {found} is null)" for found, name in texts.items()}
        if not wrong:
            return F.expr(f"cast(map() as {_TEXTS})")
        entries = ", ".join(
            f"if({test}, struct({literal(name)} as key, {_field(name)} as value), null)" for name, test in wrong.items()
        )
        found = f"map_from_entries(filter(array({entries}), e -> e is not null))"
        return F.expr(f"if({' or '.join(wrong.values())}, {found}, cast(map() as {_TEXTS}))")

    def strict(self) -> list[str]:
        """The version's columns, from `row` and the `_image` it was, of a hopeful reading. SQL: each function would be
        calls into the JVM."""
        assert self.hopeful
        return [f"{self._strictly(name, each)} AS {quoted(name)}" for name, each in self._items()]

    def _strictly(self, name: str, each: DataType) -> str:
        field = _field(name)
        if isinstance(each, DoubleType):
            return f"if({field} = 0 and {_is_minus_zero(name, IMAGE)}, cast('-0' as double), {field})"
        if isinstance(each, FloatType):
            return _fitting(f"if({field} = '0' and {_is_minus_zero(name, IMAGE)}, '-0', {field})", each)
        return field if self._is_direct(name) else _fitting(field, each)

    def _is_direct(self, name: str) -> bool:
        """Whether the parser itself makes the value, exactly or not at all. It rounds decimals, and takes a date with
        anything behind it for a date. The text of a number is slow."""
        return self.hopeful and (name in self.bounded or isinstance(self.types[name], _PARSED))

    def _floating(self) -> list[str]:
        return [name for name, each in self._items() if isinstance(each, DoubleType | FloatType)]

    def _items(self) -> list[tuple[str, DataType]]:
        return list(self.types.items())


IMAGE = "_image"
_TEXTS = "map<string,string>"
_PARSED = (BooleanType, DoubleType, IntegerType, LongType, TimestampType, TimestampNTZType)


def _is_minus_zero(name: str, image: str) -> str:
    """SQL: whether the value is spelled -0, which the parser takes for the integer 0."""
    spelled = (literal(f"{json.dumps(name, ensure_ascii=False)}:-0{end}") for end in ",}")
    return "(" + " or ".join(f"contains({image}, {each})" for each in spelled) + ")"


def _fitting(text: str, target: DataType) -> str:
    if isinstance(target, StringType):
        return text
    return f"coalesce({value(text, target)}, if({text} is null, null, raise_error('a value does not fit')))"


def _members(names: Sequence[str], only_nested: bool) -> Callable[[Column], Column]:
    kind = ", ".join(f"c{place} string" for place in range(len(names)))
    made: Callable[[Column], Column] = arrow_udf(  # type: ignore[call-overload]
        members(names, only_nested=only_nested), f"struct<{kind}>"
    )
    return made


def whole(rows: DataFrame, reading: Reading) -> DataFrame:
    """What a batch leaves, where `rows` are the last change of each key and have all columns; of a delete, those of
    the key."""
    image = "coalesce(after, key)"
    row = reading.parsed(image).alias("row")
    return rows.select("key", "op", "ts_us", row, F.expr(image).alias(IMAGE), _no_names("_kept"))


def with_row(rows: DataFrame, reading: Reading) -> DataFrame:
    """Each change with its parts in `row`."""
    return rows.withColumn("row", reading.parsed("after"))


def with_moved(rows: DataFrame, reading: Reading, lazy: Sequence[str], table: DataFrame) -> DataFrame:
    """A row that got another key has the columns it lacks from the row it was: as an earlier change in `rows` left it,
    which may have moved itself, or as `table` has it, which holds what was before `rows`."""
    others = rows.filter(~_moved())
    moved = _with_old(rows.filter(_moved()), reading, lazy, table).localCheckpoint()
    while moved.filter(_moved()).limit(1).collect():
        known = others.unionByName(moved.drop("_old"))
        moved = _answered(moved, known, lazy).localCheckpoint()
    return others.unionByName(moved.drop("_old"))


def _with_old(moved: DataFrame, reading: Reading, lazy: Sequence[str], table: DataFrame) -> DataFrame:
    """The texts that the table has for the row each was, in `_old`."""
    asked = moved.withColumn("_was", F.from_json(F.col("headers")["old_key"], reading.key_texts))
    had = [F.expr(text(quoted(name), reading.types[name])).alias(f"c{place}") for place, name in enumerate(lazy)]
    keys = [F.col(quoted(name)).alias(f"_key_{place}") for place, name in enumerate(reading.key)]
    same = [
        F.expr(value(f"_was.{quoted(name)}", reading.types[name])) == F.col(f"_key_{place}")
        for place, name in enumerate(reading.key)
    ]
    return asked.join(table.select(*keys, F.struct(*had).alias("_old")), same, "left").select(*moved.columns, "_old")


def _answered(moved: DataFrame, known: DataFrame, lazy: Sequence[str]) -> DataFrame:
    """One link further: what each lacks, where the change before it at its old key has it, or no change does."""
    marks = [_mark(name).alias(f"m{place}") for place, name in enumerate(lazy)]
    told = known.select("key", "seq", F.lit(1).alias("kind"), F.lit(None).cast("bigint").alias("asker"), *marks)
    asking = moved.filter(_moved()).select(
        F.col("headers")["old_key"].alias("key"),
        (F.col("seq") - 1).alias("seq"),  # before the delete of its own old key
        F.lit(0).alias("kind"),
        F.col("seq").alias("asker"),
        *(F.lit(None).cast(_MARK).alias(f"m{place}") for place in range(len(lazy))),
    )
    before = Window.partitionBy("key").orderBy("seq", "kind").rowsBetween(Window.unboundedPreceding, -1)
    found = [F.last(f"m{place}", ignorenulls=True).over(before).alias(f"m{place}") for place in range(len(lazy))]
    answers = told.unionByName(asking).select("kind", "asker", *found).filter("kind = 0").drop("kind")
    return _filled(moved.join(answers, F.col("seq") == F.col("asker"), "left"), lazy).select(*moved.columns)


_MARK = "struct<waits:boolean,text:string>"


def _mark(name: str) -> Column:
    """What a change says of a column: its text, or that it waits for it itself; null: nothing."""
    lacks = F.array_contains(_lacking(), name)
    sent = F.struct(F.lit(False).alias("waits"), F.col("row")[name].alias("text"))
    waits = F.struct(F.lit(True).alias("waits"), F.lit(None).cast("string").alias("text"))
    return F.when(~lacks, sent).when(_moved(), waits).cast(_MARK)


def _filled(asked: DataFrame, lazy: Sequence[str]) -> DataFrame:
    row, lacking = F.col("row"), _lacking()
    for place, name in enumerate(lazy):
        lacks, answer = F.array_contains(_lacking(), name), F.col(f"m{place}")
        found = F.when(answer.isNull(), F.col("_old")[f"c{place}"]).otherwise(answer["text"])
        waits = F.coalesce(answer["waits"], F.lit(False))
        row = row.withField(quoted(name), F.when(lacks & ~waits, found).otherwise(row[name]))
        lacking = F.when(waits, lacking).otherwise(F.array_remove(lacking, name))
    return asked.withColumn("row", row).withColumn("unchanged", lacking)


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
