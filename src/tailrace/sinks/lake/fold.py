"""What a batch leaves of each key: one row at most, the last, with columns the source did not send filled in.

Rows of one version of one table come in; `_op` and the typed columns go out, with `_unsent` naming the columns whose
value only the table itself has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from tailrace.json_members import members
from tailrace.jvm import JSON_LIMITS
from tailrace.schema import TableSchema
from tailrace.sinks.lake.columns import FLOATS, is_document, is_verbatim, text, type_of, value, wider
from tailrace.sinks.lake.evolve import UNFIT
from tailrace.sinks.lake.sql import literal, quoted
from tailrace.sinks.typed_rows import TypedRows


@dataclass(frozen=True)
class Reading:
    """How rows are read: the type of each column of the version, and its key. Values are read as texts first, so that
    those a column does not hold can be told.

    Two keys are the same where the log spells them alike. Spark's own equality is another: -0 equals 0, and of JSON it
    knows none. So keys are compared by their canonical texts, of which there is one for each spelling in the log:
    `canonical` makes it from the log's text, `canonical_here` from what the table holds."""

    types: Mapping[str, DataType]
    declared: Mapping[str, DataType]
    """The types that the columns would have if the table were made now."""
    key: tuple[str, ...]
    documents: tuple[str, ...] = ()
    """Columns whose values are JSON, to be kept as they are..."""
    nested: tuple[str, ...] = ()
    """...and those that may hold some."""
    lenient: bool = False
    """Whether the table sets values aside that do not fit."""
    bounded: tuple[str, ...] = ()
    """Columns of decimals that the source itself keeps to their digits."""
    strict: bool = False
    """Whether a value that its column does not hold is an error. That is quicker."""

    @classmethod
    def of(cls, schema: TableSchema, types: Mapping[str, DataType], *, lenient: bool = False) -> Reading:
        """The reading of a version's rows into a table whose columns have these types."""
        declared = {
            column.name: type_of(column.kind, variant=isinstance(types[column.name], VariantType))
            for column in schema.columns
        }
        verbatim = [column for column in schema.columns if is_verbatim(column.kind)]
        return cls(
            types,
            declared,
            schema.key,
            tuple(column.name for column in verbatim if is_document(column.kind)),
            tuple(column.name for column in verbatim if not is_document(column.kind)),
            lenient,
            tuple(name for name, each in types.items() if isinstance(each, DecimalType) and each == declared[name]),
        )

    @property
    def parts(self) -> StructType:
        """Every column as the text its JSON has; of a strict reading, some as their values."""
        return StructType(
            [StructField(name, each if self._is_direct(name) else StringType()) for name, each in self._items()]
        )

    @property
    def typed_rows(self) -> TypedRows | None:
        """The quickest way, where a value's JSON alone says what it is; None where it does not."""
        if self.lenient or self.nested or any(self.types[name] != self.declared[name] for name in self.types):
            return None
        rows = TypedRows(StructType([StructField(name, each) for name, each in self._items()]), self.documents)
        return rows if rows.can_be_made else None

    def as_strict(self) -> Reading:
        """The quicker way."""
        return replace(self, strict=True)

    def of_key(self) -> Reading:
        """The reading of keys."""
        types = {name: each for name, each in self._items() if name in self.key}
        documents, nested = (tuple(filter(types.__contains__, names)) for names in (self.documents, self.nested))
        return replace(self, types=types, documents=documents, nested=nested)

    def parsed(self, image: str) -> Column:
        """The parts of an image, which is SQL: as a column of its own it would be copied once more."""
        text = F.expr(image)
        row = F.from_json(self._signed(text), self.parts, {"mode": "FAILFAST", **JSON_LIMITS})
        for names, only_nested in ((self.documents, False), (self.nested, True)):
            if names:
                found = _members(names, only_nested)(text)
                for place, name in enumerate(names):
                    kept = found[f"c{place}"]
                    row = row.withField(quoted(name), F.coalesce(kept, row[name]) if only_nested else kept)
        return F.when(text.isNotNull(), row)

    def typed(self, rows: DataFrame) -> DataFrame:
        """`rows` with the value of each text in `row`, where it has a type that holds it, as `_v0`, `_v1` and so on."""
        values = {
            f"_v{place}": self._value(name, _field(name), each) for place, (name, each) in enumerate(self._items())
        }
        return rows.withColumns({name: F.expr(each) for name, each in values.items()})

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

    def strict_columns(self) -> list[str]:
        """The version's columns, from `row`, of a strict reading. SQL: each function would be calls into the JVM."""
        assert self.strict
        return [
            f"{_field(name) if self._is_direct(name) else _fitting(_field(name), each)} AS {quoted(name)}"
            for name, each in self._items()
        ]

    # -- the same key ----------------------------------------------------------------------------------------

    def is_plain(self, name: str) -> bool:
        """Whether two values of the column are equal to Spark exactly where the log spells them alike."""
        plain = _TOTAL if self.lenient else _EXACT
        return self._is_as_declared(name) and isinstance(self.types[name], plain)

    def is_ordered(self, name: str) -> bool:
        """Whether values of the log are in the order of the table's: a JSON string has its quotes there."""
        return self._is_as_declared(name) and name not in self.documents

    def _is_as_declared(self, name: str) -> bool:
        """Whether the column has the type of the source's column, or a wider one."""
        declared, target = self.declared[name], self.types[name]
        return target == declared or wider(declared, target)

    def canonical(self, name: str, found: str) -> str:
        """SQL: the text by which a value is compared, from the log's text. What the column cannot hold is marked."""
        target = self._compared(name)
        if isinstance(target, StringType):
            return found
        return f"coalesce({text(self._value(name, found, target), target)}, concat('?', {found}))"

    def canonical_here(self, name: str, found: str, aside: str | None) -> str:
        """SQL: the same of a value in the table. A column that became text holds what several writers spelled. `aside`:
        the map of values that did not fit, where there is one."""
        target = self.types[name]
        if isinstance(target, StringType):
            return self.canonical(name, found)
        kept = "null" if aside is None else f"concat('?', {_aside(name, aside)})"
        return f"coalesce({text(found, target)}, {kept})"

    def text_here(self, name: str, found: str) -> str:
        """SQL: the text of a value in the table, as a change would have it."""
        made = text(found, self.types[name])
        return f"coalesce({made}, {_aside(name, UNFIT)})" if self.lenient else made

    def _compared(self, name: str) -> DataType:
        """The type in which two values of the column are compared."""
        target = self.types[name]
        return self.declared[name] if isinstance(target, StringType) else target

    def _value(self, name: str, found: str, target: DataType) -> str:
        """SQL: the value of a text in the log; null where it does not fit. Where the source's column is text and the
        table's is not, a text fits only if the type would write the same: 03 is not 3."""
        made = value(found, target)
        if isinstance(self.declared[name], StringType) and not isinstance(target, StringType):
            return f"if({text(made, target)} = {found}, {made}, null)"
        return made

    # -- how a column is read --------------------------------------------------------------------------------

    def _signed(self, image: Column) -> Column:
        """The image with a float -0 as -0.0: the parser would take it for the integer 0. Nothing else is touched but
        JSON inside the image, which is not read from here."""
        floats = [name for name in self.types if name in self.nested or isinstance(self._compared(name), FLOATS)]
        if not floats:
            return image
        names = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in floats)
        signed = F.regexp_replace(image, f"([{{,] ?(?:{names}): ?-0)(?=[,}}])", "$1.0")
        return F.when(image.contains('":-0') | image.contains('": -0'), signed).otherwise(image)

    def _is_direct(self, name: str) -> bool:
        """Whether the parser itself makes the value, exactly or not at all. It rounds decimals, and takes a date with
        anything behind it for a date. The text of a number is slow."""
        return self.strict and (name in self.bounded or isinstance(self.types[name], _PARSED))

    def _items(self) -> list[tuple[str, DataType]]:
        return list(self.types.items())


_TEXTS = "map<string,string>"
_PARSED = (BooleanType, DoubleType, IntegerType, LongType, TimestampType, TimestampNTZType)
_TOTAL = (BinaryType, BooleanType, IntegerType, LongType, StringType)
"""Types that hold every value of a column declared like that, each with one spelling in the log."""
_EXACT = (*_TOTAL, DateType, DecimalType, TimestampType, TimestampNTZType)
"""Those too that do not hold every value, but each that they hold has one spelling."""


def _aside(name: str, aside: str) -> str:
    """SQL: the text of a value that did not fit its column."""
    return f"try_element_at({aside}, {literal(name)})"


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
    return rows.select("op", "ts_us", reading.parsed(_IMAGE).alias("row"), _no_names("_unsent"))


def with_row(rows: DataFrame, reading: Reading) -> DataFrame:
    """Each change with its parts in `row`; of a delete, those of its key."""
    return rows.withColumn("row", reading.parsed(_IMAGE))


_IMAGE = "coalesce(after, key)"


def with_moved(rows: DataFrame, reading: Reading, partial_columns: Sequence[str], table: DataFrame) -> DataFrame:
    """A row that got another key has the columns it lacks from the row it was: as an earlier change in `rows` left it,
    which may have moved itself, or as `table` has it, which holds what was before `rows`."""
    others = rows.filter(~_moved())
    moved = _with_old(rows.filter(_moved()), reading, partial_columns, table).localCheckpoint()
    while moved.filter(_moved()).limit(1).collect():
        known = others.unionByName(moved.drop("_old"))
        moved = _answered(moved, known, partial_columns).localCheckpoint()
    return others.unionByName(moved.drop("_old"))


def _with_old(moved: DataFrame, reading: Reading, partial_columns: Sequence[str], table: DataFrame) -> DataFrame:
    """The texts that the table has for the row each was, in `_old`."""
    asked = moved.withColumn("_was", reading.of_key().parsed("headers['old_key']"))
    aside = UNFIT if reading.lenient else None
    had = [
        F.expr(reading.text_here(name, quoted(name))).alias(f"c{place}") for place, name in enumerate(partial_columns)
    ]
    keys = [
        F.expr(reading.canonical_here(name, quoted(name), aside)).alias(f"_key_{place}")
        for place, name in enumerate(reading.key)
    ]
    same = [
        F.expr(reading.canonical(name, f"_was.{quoted(name)}")) == F.col(f"_key_{place}")
        for place, name in enumerate(reading.key)
    ]
    return asked.join(table.select(*keys, F.struct(*had).alias("_old")), same, "left").select(*moved.columns, "_old")


def _answered(moved: DataFrame, known: DataFrame, partial_columns: Sequence[str]) -> DataFrame:
    """One link further: what each lacks, where the change before it at its old key has it, or no change does."""
    marks = [_mark(name).alias(f"m{place}") for place, name in enumerate(partial_columns)]
    told = known.select("key", "seq", F.lit(1).alias("kind"), F.lit(None).cast("bigint").alias("asker"), *marks)
    asking = moved.filter(_moved()).select(
        F.col("headers")["old_key"].alias("key"),
        (F.col("seq") - 1).alias("seq"),  # before the delete of its own old key
        F.lit(0).alias("kind"),
        F.col("seq").alias("asker"),
        *(F.lit(None).cast(_MARK).alias(f"m{place}") for place in range(len(partial_columns))),
    )
    before = Window.partitionBy("key").orderBy("seq", "kind").rowsBetween(Window.unboundedPreceding, -1)
    found = [
        F.last(f"m{place}", ignorenulls=True).over(before).alias(f"m{place}") for place in range(len(partial_columns))
    ]
    answers = told.unionByName(asking).select("kind", "asker", *found).filter("kind = 0").drop("kind")
    return _filled(moved.join(answers, F.col("seq") == F.col("asker"), "left"), partial_columns).select(*moved.columns)


_MARK = "struct<waits:boolean,text:string>"


def _mark(name: str) -> Column:
    """What a change says of a column: its text, or that it waits for it itself; null: nothing."""
    lacks = F.array_contains(_lacking(), name)
    sent = F.struct(F.lit(False).alias("waits"), F.col("row")[name].alias("text"))
    waits = F.struct(F.lit(True).alias("waits"), F.lit(None).cast("string").alias("text"))
    return F.when(~lacks, sent).when(_moved(), waits).cast(_MARK)


def _filled(asked: DataFrame, partial_columns: Sequence[str]) -> DataFrame:
    row, lacking = F.col("row"), _lacking()
    for place, name in enumerate(partial_columns):
        lacks, answer = F.array_contains(_lacking(), name), F.col(f"m{place}")
        found = F.when(answer.isNull(), F.col("_old")[f"c{place}"]).otherwise(answer["text"])
        waits = F.coalesce(answer["waits"], F.lit(False))
        row = row.withField(quoted(name), F.when(lacks & ~waits, found).otherwise(row[name]))
        lacking = F.when(waits, lacking).otherwise(F.array_remove(lacking, name))
    return asked.withColumn("row", row).withColumn("unchanged", lacking)


def folded(rows: DataFrame, partial_columns: Sequence[str]) -> DataFrame:
    """The last change of each key, where some changes lack some of the `partial_columns`.

    What a change lacks is in the one before it in the batch, back to one that has all; else it is `_unsent`.
    """
    keys = Window.partitionBy("key")
    whole = F.when((F.col("op") == "d") | (F.size(_lacking()) == 0), F.col("seq"))
    recent = rows.withColumn("_base", F.max(whole).over(keys)).filter("_base is null or seq >= _base")
    filled = [_last_sent(name).alias(f"_partial_{place}") for place, name in enumerate(partial_columns)]
    last = F.max_by(F.struct("op", "ts_us", "row"), "seq").alias("last")
    unsent = F.array(
        *(F.when(F.col(f"_partial_{place}").isNull(), F.lit(name)) for place, name in enumerate(partial_columns))
    )
    row = F.col("last.row")
    for place, name in enumerate(partial_columns):
        row = row.withField(quoted(name), F.col(f"_partial_{place}.text"))
    names = F.filter(unsent, lambda each: each.isNotNull()).alias("_unsent")
    found = recent.groupBy("key").agg(last, *filled)
    return found.select("last.op", "last.ts_us", row.alias("row"), names)


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
