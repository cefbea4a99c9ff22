"""A query over changes as a plan of Spark's: images are typed, expressions computed, new images written of texts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from tailrace.change import PROCESSED
from tailrace.contracts import Place
from tailrace.errors import ProcessorError
from tailrace.jvm import JSON_LIMITS, reason
from tailrace.kinds import Kind
from tailrace.processors.outcome import image_of, members
from tailrace.processors.sql.statement import CHANGES, Lookup, Output, Statement
from tailrace.schema import TableSchema

if TYPE_CHECKING:
    from tailrace.processors.sql import SqlProcessor, TableRead

REASON = "where"
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
SEEN_OPS = ("c", "u", "d", "r")
MAX_DIGITS = 38

_TYPES: Mapping[str, T.DataType] = {
    "bool": T.BooleanType(),
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), T.IntegerType()),
    **dict.fromkeys(("int64", "uint32"), T.LongType()),
    "uint64": T.DecimalType(20, 0),
    "float32": T.FloatType(),
    "float64": T.DoubleType(),
    "bytes": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampNTZType(),
    "timestamp_tz": T.TimestampType(),
}


def type_of(kind: Kind) -> T.DataType:
    """The type of a column in a query; text where no type holds all of its values."""
    if kind.element is not None:
        return T.ArrayType(type_of(kind.element))
    if kind.precision is not None:
        digits, scale = kind.precision, kind.scale or 0
        return T.DecimalType(digits, scale) if 0 <= scale <= digits <= MAX_DIGITS else T.StringType()
    return _TYPES.get(kind.name, T.StringType())


def transformed(processor: SqlProcessor, changes: DataFrame, place: Place) -> DataFrame:
    """`changes`, those of the processor's tables as its query has them."""
    groups: dict[tuple[Any, ...], list[TableSchema]] = {}
    for table in place.tables.values():
        if table.columns and processor.concerns(table.schema, table.table):
            kinds = tuple((column.name, str(column.kind)) for column in table.columns)
            groups.setdefault((kinds, table.key), []).append(table)
    numbers = [table.id for tables in groups.values() for table in tables]
    seen = F.col("op").isin(*SEEN_OPS) & F.col("schema_id").isin(*numbers)
    found = changes.filter(~seen)
    for tables in groups.values():
        _refuse_lost_key(processor, tables[0])
        some = changes.filter(seen & F.col("schema_id").isin(*(table.id for table in tables)))
        found = found.unionByName(_of_version(processor, some, tables[0]))
    return found.select(*PROCESSED.names)


def _refuse_lost_key(processor: SqlProcessor, table: TableSchema) -> None:
    names = processor.statement.names_after(tuple(column.name for column in table.columns))
    computed = {each.name for each in processor.statement.outputs if each.form != "star" and each.source != each.name}
    for column in table.key:
        if column not in names or column in computed:
            message = f"'{processor.id}' does not select {column}, which is part of the key of {table.name}"
            raise ProcessorError("processor.lost_key", message, hint=f"select `after.{column}`", where=table.name)


def _of_version(processor: SqlProcessor, changes: DataFrame, table: TableSchema) -> DataFrame:
    statement = processor.statement
    rows = _typed(changes, table)
    with _views(processor, rows) as names:
        try:
            found = rows.sparkSession.sql(_query(statement, names))
        except PySparkException as error:
            message = f"'{processor.id}' is not a query over {table.name}: {reason(error)}"
            hint = "see the columns with `tailrace schemas show`"
            raise ProcessorError("processor.bad_query", message, hint=hint, where=table.name) from None
    texts = [_text(f"_c{number}", found.schema[f"_c{number}"].dataType) for number in range(len(statement.computed))]
    made = _rewriter(statement.outputs)
    texts_or_none = F.array(*texts) if texts else F.array().cast("array<string>")
    image = made(*(F.col(f"_row.{name}") for name in ("op", "before", "after", "unchanged")), "_missing", texts_or_none)
    dropped = F.when(F.col("_kept"), F.col("_row.dropped")).otherwise(F.lit(REASON))
    new = {name: F.col(f"_new.{name}") for name in ("before", "after", "unchanged")} | {"dropped": F.col("_dropped")}
    columns = [new.get(name, F.col(f"_row.{name}")).alias(name) for name in PROCESSED.names]
    return found.select("_row", image.alias("_new"), dropped.alias("_dropped")).select(*columns)


def _typed(changes: DataFrame, table: TableSchema) -> DataFrame:
    """Each change as `_row`, its images as structs, and which columns nobody knows. A column that the source did not
    send is as it was before, if the change says; of a delete `after` is the row that was."""
    whole = T.StructType([T.StructField(column.name, type_of(column.kind)) for column in table.columns])
    known = changes.select(
        F.struct(*PROCESSED.names).alias("_row"),
        *("op", "database", "schema", "table", "ts_us"),
        *("key", "before"),
        _known_images()("op", "key", "before", "after", "unchanged").alias("_known"),
    )
    images = {"key": F.col("key"), "before": F.col("before"), "after": F.col("_known.image")}
    typed = (F.from_json(image, whole, JSON_LIMITS).alias(name) for name, image in images.items())
    return known.select(
        "_row", "op", "database", "schema", "table", "ts_us", F.col("_known.missing").alias("_missing"), *typed
    )


def _query(statement: Statement, names: Mapping[str, str]) -> str:
    computed = (f"{each.sql} AS _c{number}" for number, each in enumerate(statement.computed))
    joins = (f"LEFT JOIN {names[each.alias]} AS {each.alias} ON {each.on}" for each in statement.lookups)
    outputs = ", ".join(("_row", "_missing", *computed, f"{_kept(statement)} AS _kept"))
    return " ".join((f"SELECT {outputs} FROM {names[CHANGES]} AS {CHANGES}", *joins))


def _kept(statement: Statement) -> str:
    """Whether a change is wanted. A delete of a row that is not known well enough is; nothing else passes unless the
    predicate is true."""
    kept = f"coalesce(({statement.where or 'true'}), {CHANGES}.op = 'd')"
    for lookup in statement.lookups:
        several = f"raise_error('several rows of {lookup.table} are found for one change')"
        kept = f"if({lookup.alias}._count > 1, {several}, {kept})"
    if statement.reads:
        needed = ", ".join(
            "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in sorted(statement.reads)
        )
        unsent = "raise_error('the predicate needs a column that the source did not send')"
        unknown = f"{CHANGES}.op <> 'd' and arrays_overlap(_missing, array({needed}))"
        kept = f"if({unknown}, {unsent}, {kept})"
    return kept


@contextmanager
def _views(processor: SqlProcessor, rows: DataFrame) -> Iterator[dict[str, str]]:
    """Views of the changes and of what is looked into, while a query is read. Names are nobody else's."""
    frames = {CHANGES: rows}
    for lookup in processor.statement.lookups:
        read = _read(rows.sparkSession, processor.tables_read[lookup.table])
        frames[lookup.alias] = _counted(read, lookup)
    names = {alias: f"tailrace_{uuid.uuid4().hex}" for alias in frames}
    for alias, frame in frames.items():
        frame.createTempView(names[alias])
    try:
        yield names
    finally:
        for name in names.values():
            rows.sparkSession.catalog.dropTempView(name)


def _read(spark: SparkSession, table: TableRead) -> DataFrame:
    reader = spark.read.format(table.format)
    for name, value in table.options.items():
        reader = reader.option(name, value.get_secret_value())
    if table.version is not None:
        reader = reader.option("versionAsOf" if table.format == "delta" else "snapshot-id", table.version)
    return reader.load(table.path) if table.path is not None else reader.load()


def _counted(frame: DataFrame, lookup: Lookup) -> DataFrame:
    """With the number of rows that look alike to the query: one change must not become several."""
    from pyspark.sql import Window

    return frame.withColumn("_count", F.count(F.lit(1)).over(Window.partitionBy(*lookup.columns)))


def _text(name: str, kind: T.DataType) -> Column:
    """A computed value as JSON text, as images have it."""
    value = F.col(name)
    match kind:
        case T.DecimalType():
            found = F.concat(F.lit('"'), value.cast("string"), F.lit('"'))
        case T.TimestampType():
            found = F.concat(F.lit('"'), F.date_format(value, f"{_MOMENT}'Z'"), F.lit('"'))
        case T.TimestampNTZType():
            found = F.concat(F.lit('"'), F.date_format(value, _MOMENT), F.lit('"'))
        case _:
            whole = F.to_json(F.struct(value.alias("v")))
            found = F.substring(whole, F.lit(6), F.length(whole) - 6)
    return F.when(value.isNotNull(), found).otherwise(F.lit("null"))


def _rows(*columns: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _known_image(
    op: str, key: str | None, before: str | None, after: str | None, unchanged: Sequence[str] | None
) -> dict[str, Any]:
    """The row as far as it is known, and the columns that are not."""
    if op == "d":
        return {"image": before or key, "missing": []}
    if not unchanged or after is None:
        return {"image": after, "missing": []}
    was = members(before) if before else {}
    texts = members(after)
    texts |= {name: was[name] for name in unchanged if name in was and name not in texts}
    return {"image": image_of(texts), "missing": [name for name in unchanged if name not in texts]}


def _over_rows(function: Callable[..., dict[str, Any]], ddl: str, kind: pa.StructType) -> Any:
    """A function of a row's columns as one of Spark's columns."""

    def call(*columns: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark evaluates these
        return cast("pa.Array[Any]", pa.array([function(*row) for row in _rows(*columns)], kind))

    return arrow_udf(call, ddl)  # type: ignore[call-overload]


_NAMES = pa.list_(pa.string())


def _known_images() -> Any:
    return _over_rows(
        _known_image,
        "struct<image string, missing array<string>>",
        pa.struct([pa.field("image", pa.string()), pa.field("missing", _NAMES)]),
    )


def _rewriter(outputs: tuple[Output, ...]) -> Any:
    """Writes the images of changes anew: what is selected keeps its text, what is computed is there too."""
    texts = [pa.field(name, pa.string()) for name in ("before", "after")]
    return _over_rows(
        partial(_rewritten, outputs),
        "struct<before string, after string, unchanged array<string>>",
        pa.struct([*texts, pa.field("unchanged", _NAMES)]),
    )


def _rewritten(
    outputs: tuple[Output, ...],
    op: str,
    before: str | None,
    after: str | None,
    unchanged: Sequence[str] | None,
    missing: Sequence[str],
    texts: Sequence[str],
) -> dict[str, Any]:
    computed = dict(zip((each.name for each in outputs if each.form == "expression"), texts, strict=True))
    lost = [each.name for each in outputs if each.form == "expression" and each.reads & set(missing)]
    computed = {name: text for name, text in computed.items() if name not in lost}
    gone = [name for each in outputs for name in _selected(each, dict.fromkeys(unchanged or (), ""))]
    found = {} if after is None else _image(outputs, after, computed)
    return {
        "before": before and image_of(_image(outputs, before, computed if op == "d" else {})),
        "after": after and image_of(found),
        "unchanged": unchanged and [name for name in dict.fromkeys((*gone, *lost)) if name not in found],
    }


def _image(outputs: tuple[Output, ...], image: str, computed: Mapping[str, str]) -> dict[str, str]:
    texts, found = members(image), dict[str, str]()
    for each in outputs:
        found |= {each.name: computed[each.name]} if each.name in computed else _selected(each, texts)
    return found


def _selected(output: Output, texts: Mapping[str, str]) -> dict[str, str]:
    """What an output takes of an image as it is."""
    match output.form:
        case "star":
            return {name: text for name, text in texts.items() if name not in output.but}
        case "column":
            return {output.name: texts[output.source]} if output.source in texts else {}
        case _:
            return {}
