"""Makes a lake table for a version of the source's table, and carries out what `reshape` plans for the next version.

A plan that could not be made anew from half-changed columns is written into the table's properties before its first
step. A process that finds one there finishes it before anything else (Law 7).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, MapType, StringType, StructType, TimestampType

from tailrace.errors import SinkError
from tailrace.failpoints import failpoint
from tailrace.schema import TableSchema, differences
from tailrace.sinks.lake import reshape
from tailrace.sinks.lake.columns import TEXT, holds, text, type_of, wider
from tailrace.sinks.lake.defaults import filling, misfits, set_aside
from tailrace.sinks.lake.reshape import (
    Add,
    CopyText,
    CopyUnfit,
    Drop,
    Existing,
    Fill,
    Moves,
    Note,
    Plan,
    Rename,
    TypeJson,
    Widen,
)
from tailrace.sinks.lake.sql import literal, quoted
from tailrace.sinks.lake.target import BEGAN, DROPPED, LOG, PLAN, VERSION, Making, Shape, Target

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
TEXTS = MapType(StringType(), StringType())
"""The type of `_unfit`: column → the text of a value that does not fit it."""


def wanted_types(schema: TableSchema, sink: LakeSink) -> dict[str, DataType]:
    """The columns of a version, with the types new columns get. A key is no variant: those have no equality."""
    variants = {column.name for column in schema.columns if sink.json_as == "variant"} - set(schema.key)
    return {column.name: type_of(column.kind, variant=column.name in variants) for column in schema.columns}


def own_columns(sink: LakeSink) -> dict[str, DataType]:
    """What the sink adds to the source's columns."""
    if sink.write_mode == "append":
        return HISTORY
    return SOFT if sink.soft_delete else {}


def create(target: Target, schema: TableSchema, sink: LakeSink, log_id: str, began: int) -> None:
    """Make the table for `schema`, which will hold every change of the log since `began`."""
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
            {VERSION: json.dumps(schema.as_dict()), LOG: log_id, BEGAN: str(began), **options.properties},
            options.comment,
        )
    )


def evolve(target: Target, schema: TableSchema, sink: LakeSink, defaults: Mapping[str, str]) -> None:
    """Bring the columns to `schema`. `defaults`: what rows from before have in new columns, column → text."""
    shape = target.existing()
    known = shape.version
    if known is None or known.id != schema.id or schema.follows(known):
        _carry_out(target, _planned(target, shape, schema, sink, defaults))


def to_text(target: Target, columns: Iterable[str]) -> None:
    """Make columns text, with the values they have."""
    shape = target.existing()
    steps = reshape.Steps(shape.types, (), _fold(target))
    for column in columns:
        if not isinstance(shape.type(column), StringType):
            steps.to_text(column)
    if steps.made:
        _carry_out(target, Plan.of(shape.types, steps.made, {}))


def add_unfit_column(target: Target) -> None:
    """A place for values that do not fit."""
    target.add_columns({UNFIT: TEXTS})


def unfit_value(schema: TableSchema, column: str) -> SinkError:
    """What halts a table under the policy `halt`."""
    return SinkError(
        "sink.unfit_value",
        f"a value of {schema.name}.{column} does not fit its column in the lake",
        hint="set evolution: adapt (the column becomes text) or lenient, then start again: it catches up",
        where=schema.name,
    )


def finish(target: Target, shape: Shape) -> None:
    """Carry out the rest of a plan that an earlier process began, if there is one."""
    written = shape.properties.get(PLAN)
    if not written:
        return
    plan = Plan.from_text(written)
    place = plan.next_step(shape.types)
    if place is None:
        raise SinkError(
            "sink.table_altered",
            f"the columns of {target.sql_name} were altered by somebody else while Tailrace was changing them",
            hint=f"undo that (they were {', '.join(plan.before)}), or give the sink another id",
            where=target.sql_name,
        )
    _carry_out_from(target, plan, place)


# -- planning ------------------------------------------------------------------------------------------------


def _planned(target: Target, shape: Shape, schema: TableSchema, sink: LakeSink, defaults: Mapping[str, str]) -> Plan:
    table, fold = _existing(shape, schema, sink), _fold(target)
    types, aside = _types_for(defaults, target, schema, sink)
    moves = reshape.mapped(schema.columns, table, fold, drop=sink.dropped_columns == "drop")
    _refuse_names(target, schema, sink, _staying(table, moves))
    steps = reshape.Steps(table.columns, types, fold)
    steps.apply(moves)
    if _unfit_is_renamed(target, shape, moves):
        steps.rename_unfit(UNFIT, TEXTS.jsonValue(), moves)
    new = _fitted(steps, shape, schema, sink, moves, types) | aside | own_columns(sink)
    missing = {name: each.jsonValue() for name, each in new.items() if name not in table.columns}
    steps.add({name: types[name].jsonValue() for name in moves.new} | missing)
    steps.fill({name: each for name, each in defaults.items() if name in types})
    properties = {VERSION: json.dumps(schema.as_dict()), DROPPED: json.dumps(moves.others(table))}
    return Plan.of(table.columns, steps.made, properties)


def _types_for(
    defaults: Mapping[str, str], target: Target, schema: TableSchema, sink: LakeSink
) -> tuple[dict[str, DataType], dict[str, DataType]]:
    """The columns of a version, with types that hold these defaults too; and a column to be added for those that are
    set aside, by the sink's policy."""
    types = wanted_types(schema, sink)
    added: dict[str, DataType] = {}
    for column in misfits(target.session, defaults, types):
        match sink.evolution_of(schema):
            case "adapt":
                types[column] = TEXT
            case "lenient":
                added[UNFIT] = TEXTS
            case "halt":
                raise unfit_value(schema, column)
    return types, added


def _existing(shape: Shape, schema: TableSchema, sink: LakeSink) -> Existing:
    """The table as it is. A table that the source made anew has other columns of the same numbers: names tell then."""
    version = shape.version
    current = {} if version is None else {column.name: column.number for column in version.columns}
    anew = version is not None and {"kind": "recreate"} in differences(version, schema)
    numbers = {} if anew else {**shape.dropped, **current}
    own = {*own_columns(sink), UNFIT} - {column.name for column in schema.columns} - set(current)
    return Existing(shape.types, numbers, frozenset(current), frozenset(own))


def _staying(table: Existing, moves: Moves) -> list[str]:
    """The columns that are neither of the new version nor the sink's, under the names they will have."""
    gone = {was for was in moves.origins.values() if was is not None} | table.own | set(moves.dropped)
    return [moves.aside.get(name, name) for name in table.columns if name not in gone]


def _unfit_is_renamed(target: Target, shape: Shape, moves: Moves) -> bool:
    """Whether `_unfit` has values of a column that is renamed or dropped."""
    names = [*moves.renamed, *moves.dropped]
    if shape.type(UNFIT) is None or not names:
        return False
    named = F.arrays_overlap(F.map_keys(quoted(UNFIT)), F.array(*map(F.lit, names)))
    return bool(target.session.table(target.sql_name).filter(named).limit(1).collect())


def _fitted(
    steps: reshape.Steps,
    shape: Shape,
    schema: TableSchema,
    sink: LakeSink,
    moves: Moves,
    types: Mapping[str, DataType],
) -> dict[str, DataType]:
    """Let columns that are there hold every value of these types, by steps or by a column to be added."""
    added: dict[str, DataType] = {}
    for name, was in moves.origins.items():
        match _fit(None if was is None else shape.type(was), types[name], schema, name, sink):
            case "text":
                steps.to_text(name)
            case "wider":
                steps.widen(name, types[name].jsonValue())
            case "unfit":
                added[UNFIT] = TEXTS
            case "as it is":
                pass
    return added


def _fit(
    present: DataType | None, wanted: DataType, schema: TableSchema, column: str, sink: LakeSink
) -> Literal["as it is", "wider", "text", "unfit"]:
    """What makes a column hold every value of `wanted`, by the sink's policy."""
    if present is None or holds(present, wanted):
        return "as it is"
    if wider(present, wanted):
        return "wider"
    change = f"{schema.name}.{column} from {present.simpleString()} to {wanted.simpleString()}"
    match sink.evolution_of(schema):
        case "adapt":
            return "text"
        case "lenient":
            return "unfit"
        case "halt":
            raise SinkError(
                "sink.incompatible_type",
                f"the type changed: {change}",
                hint="set evolution: adapt (the column becomes text) or lenient, then start again: it catches up",
                where=schema.name,
            )


def _fold(target: Target) -> reshape.Fold:
    return str if target.TELLS_CASES else str.lower


# -- carrying out --------------------------------------------------------------------------------------------


def _carry_out(target: Target, plan: Plan) -> None:
    first = target.columns_record() if plan.steps else {}
    if not plan.is_repeatable:
        first[PLAN] = plan.text()
    if first:
        target.set_properties(first)
        failpoint("lake.evolve.after_plan")
    _carry_out_from(target, plan, 0)


def _carry_out_from(target: Target, plan: Plan, place: int) -> None:
    for number, step in enumerate(plan.steps[place:], place):
        _do(target, step, plan.noted(number + 1))
    target.set_properties({**plan.properties, **({} if plan.is_repeatable else {PLAN: ""})})
    failpoint("lake.evolve.after_version")


def _do(target: Target, step: reshape.Step, noted: Plan) -> None:
    match step:
        case Rename():
            target.rename_column(step.column, step.to)
            failpoint("lake.evolve.after_rename")
        case Drop():
            target.drop_column(step.column)
            failpoint("lake.evolve.after_drop")
        case Add():
            target.add_columns({name: _type(each) for name, each in step.columns.items()})
            failpoint("lake.evolve.after_add")
        case Widen():
            target.widen_column(step.column, _type(step.type))
            failpoint("lake.evolve.after_widen")
        case CopyText():
            present = target.existing().schema[step.source].dataType
            _set(target, {step.column: text(quoted(step.source), present)})
            failpoint("lake.evolve.after_copy")
        case CopyUnfit():
            _set(target, {step.column: _renamed_unfit(step)})
            failpoint("lake.evolve.after_copy_unfit")
        case Fill():
            _set(target, _filled(target, step.values))
            failpoint("lake.evolve.after_fill")
        case Note():
            target.set_properties({PLAN: noted.text()})
            failpoint("lake.evolve.after_note")


def _type(written: TypeJson) -> DataType:
    field = {"name": "one", "type": written, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})["one"].dataType


def _renamed_unfit(step: CopyUnfit) -> str:
    """SQL: the maps of `_unfit` under the new names of their columns."""
    dropped = ", ".join(literal(name) for name, to in step.names.items() if to is None)
    names = ", ".join(f"{literal(name)}, {literal(to)}" for name, to in step.names.items() if to is not None)
    found = quoted(step.source)
    if dropped:
        found = f"map_filter({found}, (k, v) -> not array_contains(array({dropped}), k))"
    return f"transform_keys({found}, (k, v) -> coalesce(try_element_at(map({names}), k), k))" if names else found


def _filled(target: Target, texts: Mapping[str, str]) -> dict[str, str]:
    """SQL: the values of these texts. One that its column does not hold is set aside in a lenient table."""
    shape = target.existing()
    types = {name: shape.schema[name].dataType for name in texts}
    values = filling(texts, types)
    wrong = misfits(target.session, texts, types) if shape.type(UNFIT) is not None else []
    if wrong:
        values[UNFIT] = set_aside({name: texts[name] for name in wrong}, UNFIT)
    return values


def _set(target: Target, values: Mapping[str, str]) -> None:
    """Set columns of all rows to values, which are SQL. Without a mark: what is repeated makes no difference."""
    changes = ", ".join(f"{quoted(name)} = {each}" for name, each in values.items())
    target.execute(f"UPDATE {target.sql_name} SET {changes}")


# -- names and layouts ---------------------------------------------------------------------------------------


def _refuse_names(target: Target, schema: TableSchema, sink: LakeSink, staying: Iterable[str]) -> None:
    """A table cannot have two columns of one name, whoever's they are. `staying` are there already."""
    names = [column.name for column in schema.columns]
    own = [*own_columns(sink), UNFIT]
    taken = next((name for name in names if name in own or name.lower().startswith(reshape.SPARE)), None)
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
