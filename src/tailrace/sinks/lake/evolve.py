"""Bringing a table's columns to a version of the source's table. Each step may be repeated after a crash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, MapType, StringType, TimestampType

from tailrace.errors import SinkError
from tailrace.schema import TableSchema, differences
from tailrace.sinks.lake.columns import TEXT, holds, text, type_of, value, wider
from tailrace.sinks.lake.sql import literal, quoted
from tailrace.sinks.lake.target import LOG, VERSION, Making, Shape, Target

if TYPE_CHECKING:
    from tailrace.sinks.lake import LakeSink

HISTORY: dict[str, DataType] = {
    "_op": StringType(),
    "_ts": TimestampType(),
    "_tx": StringType(),
    "_position": StringType(),
    "_event_id": StringType(),
    "_seq": LongType(),
    "_unchanged": ArrayType(StringType()),
}
"""What `append` adds to each change."""
SOFT: dict[str, DataType] = {"_is_deleted": BooleanType(), "_deleted_at": TimestampType()}
"""What `soft_delete` adds to each row."""
UNFIT = "_unfit"
DRAFT = "_tailrace_text_"
"""What a column that becomes text is called meanwhile."""


def wanted_types(schema: TableSchema, sink: LakeSink) -> dict[str, DataType]:
    """The columns of a version, with the types new columns get. A key is no variant: those have no equality."""
    variants = {column.name for column in schema.columns if sink.json_as == "variant"} - set(schema.key)
    return {column.name: type_of(column.type, variant=column.name in variants) for column in schema.columns}


def own_columns(sink: LakeSink) -> dict[str, DataType]:
    """What the sink adds to the source's columns."""
    if sink.write_mode == "append":
        return HISTORY
    return SOFT if sink.soft_delete else {}


def create(target: Target, schema: TableSchema, sink: LakeSink, log_id: str) -> None:
    """Make the table for `schema`."""
    if not sink.auto_create_table:
        raise SinkError(
            "sink.table_missing",
            f"there is no table {target.sql_name} for {schema.name}",
            hint="make it, or set auto_create_table: true",
            where=schema.name,
        )
    _refuse_names(target, schema, sink, ())
    options = sink.options(schema)
    _refuse_layout(schema, sink)
    target.create(
        Making(
            {**wanted_types(schema, sink), **own_columns(sink)},
            sink.partitions_of(schema),
            options.cluster_by,
            {VERSION: json.dumps(schema.as_dict()), LOG: log_id, **options.properties},
            options.comment,
        )
    )


def evolve(target: Target, schema: TableSchema, sink: LakeSink, defaults: Mapping[str, str], mark: int | None) -> None:
    """Bring the columns to `schema`. `defaults`: JSON texts that rows from before have in added columns; the write that
    fills them carries `mark`."""
    shape = target.existing()
    known = shape.version
    steps = [] if known is None else differences(known, schema)
    types = wanted_types(schema, sink)
    _refuse_names(target, schema, sink, _staying(shape, steps, sink))
    for step in steps:
        if step["kind"] == "rename":
            target.rename_column(step["from"], step["to"])
        if step["kind"] == "drop" and sink.dropped_columns == "drop":
            target.drop_column(step["column"])
    target.add_columns(types)
    for column, wanted in types.items():
        fit(target, column, wanted, schema, sink)
    filled = {name: each for name, each in defaults.items() if name in types and each != "null"}
    if filled and mark is not None:
        _fill(target, filled, mark)
    target.set_properties({VERSION: json.dumps(schema.as_dict())})


def _staying(shape: Shape, steps: list[dict[str, Any]], sink: LakeSink) -> list[str]:
    """The columns that keep their names."""
    gone = {step["from"] for step in steps if step["kind"] == "rename"}
    if sink.dropped_columns == "drop":
        gone |= {step["column"] for step in steps if step["kind"] == "drop"}
    return [name for name in shape.schema.names if name not in gone]


def _refuse_names(target: Target, schema: TableSchema, sink: LakeSink, staying: Iterable[str]) -> None:
    """A table cannot have two columns of one name, whoever's they are. `staying` are there already."""
    names = [column.name for column in schema.columns]
    own = [*own_columns(sink), *([UNFIT] if sink.evolution_of(schema) == "lenient" else [])]
    taken = next((name for name in names if name in own), None)
    if taken is not None:
        raise SinkError(
            "sink.column_taken",
            f"{schema.name} has a column {taken}, a name the sink needs",
            hint="rename the column and give the sink another id, or keep this table in a sink with other options",
            where=schema.name,
        )
    known: dict[str, str] = {}
    for name in () if target.TELLS_CASES else (*names, *own, *staying):
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise SinkError(
                "sink.columns_alike",
                f"{schema.name} has columns {other} and {name}, which are the same to this format",
                hint="rename one of them and give the sink another id, or keep this table in an Iceberg sink",
                where=schema.name,
            )


def _refuse_layout(schema: TableSchema, sink: LakeSink) -> None:
    """Partitions and clusters must be of columns that are there."""
    names = [column.name for column in schema.columns]
    partitions = ("partition_by", sink.partitions_of(schema), sink.column_of)
    clusters = ("cluster_by", sink.options(schema).cluster_by, str)
    for option, wanted, column_of in (partitions, clusters):
        for each in wanted:
            if column_of(each) not in names:
                raise SinkError(
                    "sink.no_such_column",
                    f"{option} names {each}, which {schema.name} does not have",
                    hint=f"use its columns: {', '.join(names)}",
                    where=schema.name,
                )


def fit(target: Target, column: str, wanted: DataType, schema: TableSchema, sink: LakeSink) -> None:
    """Make a column hold every value of `wanted`, or do what the policy says."""
    present = target.existing().type(column)
    if present is None or holds(present, wanted):
        return
    if wider(present, wanted):
        target.widen_column(column, wanted)
        return
    change = f"{schema.name}.{column} from {present.simpleString()} to {wanted.simpleString()}"
    match sink.evolution_of(schema):
        case "adapt":
            to_text(target, column)
        case "lenient":
            keep_unfit(target)
        case "halt":
            raise SinkError(
                "sink.incompatible_type",
                f"the type changed: {change}",
                hint="set evolution: adapt (the column becomes text) or lenient, then start again: it catches up",
                where=schema.name,
            )


def keep_unfit(target: Target) -> None:
    """A place for values that do not fit."""
    target.add_columns({UNFIT: MapType(StringType(), StringType())})


def to_text(target: Target, column: str) -> None:
    """Make a column text, with the values it has. Can be repeated from any point."""
    draft = f"{DRAFT}{column}"
    present = target.existing().type(column)
    if isinstance(present, StringType):
        return
    if present is not None:
        target.add_columns({draft: TEXT})
        target.execute(f"UPDATE {target.sql_name} SET {quoted(draft)} = {text(quoted(column), present)}")
        target.drop_column(column)
    target.rename_column(draft, column)


def defaults_of(image: str) -> dict[str, str]:
    """The texts of `defaults` in an `s` change's image."""
    return {
        name: json.loads(raw) if raw.startswith('"') else raw
        for name, raw in _members(_members(image)["defaults"]).items()
    }


def _fill(target: Target, defaults: Mapping[str, str], mark: int) -> None:
    """Give every row the defaults. A default that its column does not hold stays out of a lenient table's column."""
    shape = target.existing()
    types = {name: present for name in defaults if (present := shape.type(name)) is not None}
    changes = ", ".join(
        f"{quoted(name)} = {value(literal(defaults[name]), present)}" for name, present in types.items()
    )
    if changes:
        target.execute(f"UPDATE {target.sql_name} SET {changes}", mark)


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object, each as the text it has."""
    decoder, found, at = json.JSONDecoder(), {}, 1
    while text[at - 1] != "}" and text[at:].strip() != "}":
        name, at = decoder.raw_decode(text, _blanks(text, at))
        start = _blanks(text, _blanks(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        found[name], at = text[start:end], _blanks(text, end) + 1
    return found


def _blanks(text: str, at: int) -> int:
    while text[at] in " \t":
        at += 1
    return at
