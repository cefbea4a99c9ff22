"""What Debezium makes of each column type: how its values are written, and which Connect schema they have.

PostgreSQL's spellings lead where they are known, since Debezium's semantic types are finer than kinds. A column whose
kind says something else, because a processor changed it or a domain hides its type, follows its kind.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace import spellings
from tailrace.kinds import OTHER, Kind
from tailrace.render.debezium.codes import Code
from tailrace.schema import Column

Schema = Mapping[str, Any]
"""A Connect schema as its JSON has it, without `optional` and `field`."""

PLACEHOLDER = "__debezium_unavailable_value"
MILLIS, MICROS = 3, 6
"""Up to so many fractional digits of seconds are counted in milliseconds; so many a time has by itself."""


@dataclass(frozen=True)
class Encoding:
    """A column's. `absent` stands for the value that a column which cannot be null lacks, `unsent` for one that the
    source did not send, `unsent_list` for an array of it. `array`: the value is an array, and this its elements'."""

    code: Code
    schema: Schema
    absent: str = "null"
    unsent: str = "null"
    unsent_list: str = "null"
    detail: int = 0
    """The scale of a decimal; the fractional digits of a zoned time; of JSON, whether null is a value of its own."""
    rare: str = ""
    """What Python knows it by."""
    array: bool = False


_ORDER = (
    "type",
    "items",
    "keys",
    "values",
    "fields",
    "optional",
    "name",
    "version",
    "doc",
    "parameters",
    "default",
    "field",
)


def connect(schema: Schema, *, optional: bool, field: str | None = None) -> dict[str, Any]:
    """A whole Connect schema, its members in the order that Kafka's converter has them in."""
    whole = {**schema, "optional": optional, "field": field}
    return {name: whole[name] for name in _ORDER if whole.get(name) is not None}


def encoding_of(column: Column) -> Encoding:
    """How the values of a column are written."""
    found = _of_spelling(column.type) if is_as_declared(column) else _of_kind(column.kind)
    if column.labels:
        found = replace(found, schema=_labelled(found.schema, column.labels))
    return replace(found, detail=1) if found.code is Code.JSON and not (column.nullable or found.array) else found


def is_as_declared(column: Column) -> bool:
    """Whether its values are still what the source declares: no processor made them another kind's."""
    return column.kind in (OTHER, spellings.kind_of(column.type))


def _labelled(schema: Schema, labels: tuple[str, ...]) -> Schema:
    """Of an enum, with all that a value can be."""
    if "items" in schema:
        return {**schema, "items": connect(_labelled(schema["items"], labels), optional=schema["items"]["optional"])}
    named = schema.get("name") == "io.debezium.data.Enum"
    return {**schema, "parameters": {"allowed": ",".join(labels)}} if named else schema


def _semantic(base: str, name: str = "", **parameters: str) -> Schema:
    schema: dict[str, Any] = {"type": base}
    if name:
        schema |= {"name": name, "version": 1}
    return schema | ({"parameters": parameters} if parameters else {})


def _fields(name: str, doc: str, *fields: dict[str, Any]) -> Schema:
    return {"type": "struct", "fields": list(fields), "name": name, "version": 1, "doc": doc}


def _field(base: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    return connect({"type": base}, optional=optional, field=name)


_TEXT = json.dumps(PLACEHOLDER)
_BYTES = json.dumps(base64.b64encode(PLACEHOLDER.encode()).decode())
_NUMBERS = json.dumps(list(PLACEHOLDER.encode()), separators=(",", ":"))
_UUID = '"b68a35a7-17ad-35b3-af2a-ae46edb4545a"'
"""The UUID that Java names after the placeholder."""

OMITTED = Encoding(Code.OMITTED, {})
"""Columns of such types are not in Debezium's events."""


def _text(name: str = "", *, listed: bool = False) -> Encoding:
    """`listed`: there is something to stand for an array that was not sent."""
    schema = _semantic("string", name and f"io.debezium.data.{name}")
    return Encoding(Code.VERBATIM, schema, '""', _TEXT, f"[{_TEXT}]" if listed else "null")


def _number(base: str, *, listed: bool = False) -> Encoding:
    return Encoding(Code.VERBATIM, _semantic(base), "0", unsent_list=_NUMBERS if listed else "null")


def _timed(code: Code, base: str, name: str, *, listed: bool = False) -> Encoding:
    schema = _semantic(base, f"io.debezium.time.{name}")
    return Encoding(code, schema, "0", unsent_list=_NUMBERS if listed else "null")


def _decimal(precision: int | None, scale: int) -> Encoding:
    scale &= 2047  # how Debezium reads a negative one
    parameters = {"scale": str(scale)} | ({"connect.decimal.precision": str(precision)} if precision else {})
    schema = _semantic("bytes", "org.apache.kafka.connect.data.Decimal", **parameters)
    return Encoding(Code.DECIMAL, schema, '"AA=="', detail=scale)


def _rare(rare: str, schema: Schema, absent: str = "null", **more: Any) -> Encoding:
    return Encoding(Code.RARE, schema, absent, rare=rare, **more)


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": connect(item, optional=False)}


def _vector(base: str, name: str) -> Encoding:
    items = connect({"type": base}, optional=False)
    schema = {"type": "array", "items": items, "name": f"io.debezium.data.{name}", "version": 1}
    return _rare("vector", schema, "[]")


_VARIABLE = Encoding(
    Code.VARIABLE_DECIMAL,
    _fields(
        "io.debezium.data.VariableScaleDecimal",
        "Variable scaled decimal",
        _field("int32", "scale"),
        _field("bytes", "value"),
    ),
    '{"scale":0,"value":"AA=="}',
)
_POINT = _rare(
    "point",
    _fields(
        "io.debezium.data.geometry.Point",
        "Geometry (POINT)",
        _field("double", "x"),
        _field("double", "y"),
        _field("bytes", "wkb", optional=True),
        _field("int32", "srid", optional=True),
    ),
    '{"x":0.0,"y":0.0,"wkb":"AQEAAAAAAAAAAAAAAAAAAAAAAAAA","srid":null}',
)
_SPARSE = _rare(
    "sparsevec",
    _fields(
        "io.debezium.data.SparseDoubleVector",
        "Sparse double vector",
        _field("int16", "dimensions"),
        connect(
            {
                "type": "map",
                "keys": connect({"type": "int16"}, optional=False),
                "values": connect({"type": "double"}, optional=False),
            },
            optional=False,
            field="vector",
        ),
    ),
)
_INT2_VECTOR = _rare("emptied", _list_of({"type": "int16"}), "[]")
_OID_VECTOR = _rare("emptied", _list_of({"type": "int64"}), "[]")
_BOOL = Encoding(Code.VERBATIM, _semantic("boolean"), "false")
_BIT = _rare("bit", _semantic("boolean"), "false")
_BYTEA = Encoding(Code.VERBATIM, _semantic("bytes"), '""', _BYTES, f"[{_BYTES}]")
_JSON = replace(_text("Json", listed=True), code=Code.JSON)
_UUIDS = replace(_text("Uuid"), unsent_list=f"[{_UUID}]")
_DATE = _timed(Code.DATE, "int32", "Date", listed=True)
_INTERVAL = _rare("interval", _semantic("int64", "io.debezium.time.MicroDuration"), "0")
_TIMETZ = _rare("timetz", _semantic("string", "io.debezium.time.ZonedTime"), '"00:00:00Z"')
_FLOAT32, _FLOAT64 = (Encoding(Code.FLOAT, _semantic(base), "0.0") for base in ("float", "double"))

_PLAIN: dict[str, Encoding] = {
    "boolean": _BOOL,
    "smallint": _number("int16"),
    "integer": _number("int32", listed=True),
    "bigint": _number("int64", listed=True),
    "oid": _number("int64"),
    "real": _FLOAT32,
    "double precision": _FLOAT64,
    "numeric": _VARIABLE,
    "money": _rare("money", _semantic("bytes", "org.apache.kafka.connect.data.Decimal", scale="2"), '"AA=="'),
    "bytea": _BYTEA,
    "date": _DATE,
    "json": _JSON,
    "jsonb": _JSON,
    "uuid": _UUIDS,
    "xml": _text("Xml"),
    "ltree": _text("Ltree"),
    "tsvector": _text("Tsvector"),
    "hstore": _rare("hstore", _semantic("string", "io.debezium.data.Json"), '"{}"', unsent=_TEXT),
    "point": _POINT,
    "int2vector": _INT2_VECTOR,
    "oidvector": _OID_VECTOR,
    "vector": _vector("double", "DoubleVector"),
    "halfvec": _vector("float", "FloatVector"),
    "sparsevec": _SPARSE,
    **dict.fromkeys(("text", "character", "character varying", "bpchar", '"char"', "citext"), _text(listed=True)),
    **dict.fromkeys(("name", "isbn", "inet", "cidr", "macaddr", "macaddr8"), _text()),
    **dict.fromkeys(("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"), _text()),
}
_NO_ARRAYS = ("money", "name", "point", "halfvec", "sparsevec", "bit varying", "xml")
_UNREAD_ARRAYS = ("bit", "vector", "int2vector", "oidvector")
"""Debezium describes such columns, and has null in all of them."""
_SPELLED = re.compile(r"(?P<head>[^(]+?)(?:\((?P<arguments>[\d, -]+)\))?(?P<tail> (?:with|without) time zone)?")


def _of_spelling(spelled: str) -> Encoding:
    found = _SPELLED.fullmatch(spelled.removesuffix("[]"))
    if found is None:
        return OMITTED
    numbers = [int(number) for number in (found["arguments"] or "").split(",") if number]
    head, tail = found["head"], found["tail"] or ""
    scalar = _sized(head + tail, numbers) or _PLAIN.get(head, OMITTED)
    if not spelled.endswith("[]"):
        return scalar
    if head in _UNREAD_ARRAYS:
        schema = scalar.schema if head == "bit" else _list_of(scalar.schema)
        return _rare("nothing", schema, scalar.absent)
    return OMITTED if head in _NO_ARRAYS or scalar is _INTERVAL else _array(scalar)


def _sized(name: str, numbers: list[int]) -> Encoding | None:
    """Of types whose arguments decide."""
    digits = numbers[0] if numbers else MICROS
    if name == "numeric" and numbers:
        return _decimal(numbers[0], numbers[1] if len(numbers) > 1 else 0)
    if name in ("bit", "bit varying"):
        return _BIT if name == "bit" and numbers in ([], [1]) else _bits(numbers)
    if name.startswith("interval"):
        return _INTERVAL
    match name:
        case "timestamp without time zone":
            return _timestamp(digits)
        case "time without time zone":
            return _time(digits)
        case "timestamp with time zone":
            return _zoned(digits)
        case "time with time zone":
            return _TIMETZ
        case _:
            return None


def _bits(numbers: list[int]) -> Encoding:
    length = str(numbers[0] if numbers else 2**31 - 1)
    return _rare("bits", _semantic("bytes", "io.debezium.data.Bits", length=length), '""')


def _timestamp(digits: int) -> Encoding:
    if digits <= MILLIS:
        return _timed(Code.MILLIS, "int64", "Timestamp")
    return _timed(Code.MICROS, "int64", "MicroTimestamp")


def _time(digits: int) -> Encoding:
    if digits <= MILLIS:
        return _timed(Code.TIME_MILLIS, "int32", "Time")
    return _timed(Code.TIME_MICROS, "int64", "MicroTime")


def _zoned(digits: int) -> Encoding:
    schema = _semantic("string", "io.debezium.time.ZonedTimestamp")
    return Encoding(Code.ZONED, schema, '"1970-01-01T00:00:00Z"', detail=digits)


def _array(element: Encoding) -> Encoding:
    """Elements lose a time's microseconds, and the fraction of one with a zone: so Debezium has them."""
    if element.code is Code.OMITTED or element.array:
        return OMITTED
    detail = 1 if element.code is Code.TIME_MICROS else element.detail
    rare = "timetz_element" if element.rare == "timetz" else element.rare
    schema = {"type": "array", "items": connect(element.schema, optional=True)}
    return replace(
        element, schema=schema, absent="[]", unsent=element.unsent_list, detail=detail, rare=rare, array=True
    )


def _of_kind(kind: Kind) -> Encoding:
    """Of a column whose spelling says nothing, or something else."""
    if kind.element is not None:
        return OMITTED if kind.element.domain else _array(_of_kind(kind.element))
    if kind.name == "decimal":
        return _VARIABLE if kind.precision is None else _decimal(kind.precision, kind.scale or 0)
    return _KINDS.get(kind.name, OMITTED)


_KINDS: dict[str, Encoding] = {
    "bool": _BOOL,
    **dict.fromkeys(("int8", "uint8", "int16"), _number("int16")),
    **dict.fromkeys(("uint16", "int32"), _number("int32", listed=True)),
    **dict.fromkeys(("uint32", "int64"), _number("int64", listed=True)),
    "uint64": _decimal(20, 0),
    "float32": _FLOAT32,
    "float64": _FLOAT64,
    "text": _text(listed=True),
    "bytes": _BYTEA,
    "date": _DATE,
    "time": _time(MICROS),
    "time_tz": _TIMETZ,
    "timestamp": _timestamp(MICROS),
    "timestamp_tz": _zoned(MICROS),
    "interval": _INTERVAL,
    "json": _JSON,
    "uuid": _UUIDS,
    "enum": _text("Enum"),
}
