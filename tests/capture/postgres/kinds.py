"""The kind of every type in `values.py`, and the type its columns have in lake tables."""

from __future__ import annotations

KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int16": ("int2",),
    "int32": ("int4",),
    "int64": ("int8",),
    "uint32": ("oid",),
    "decimal": ("numeric",),
    "decimal(1000,500)": ("numeric(1000, 500)",),
    "decimal(10,2)": ("numeric(10, 2)",),
    "decimal(3,-2)": ("numeric(3, -2)",),
    "decimal(2,4)": ("numeric(2, 4)",),
    "float32": ("float4",),
    "float64": ("float8",),
    "text": ("text", "varchar", "varchar(3)", "bpchar", "char(5)", "char(2)", '"char"', "name", "citext"),
    "bytes": ("bytea",),
    "date": ("date",),
    "time": ("time", "time(0)"),
    "time_tz": ("timetz",),
    "timestamp": ("timestamp", "timestamp(3)"),
    "timestamp_tz": ("timestamptz",),
    "interval": ("interval", "interval year to month"),
    "json": ("json", "jsonb"),
    "uuid": ("uuid",),
    "enum": ("mood",),
    "domain<enum>": ("temper",),
    "domain<int32>": ("count",),
    "domain<decimal(10,2)>": ("price", "discount"),
    "domain<json>": ("document",),
    "domain<bytes>": ("digest",),
    "domain<timestamp_tz>": ("moment",),
    "domain<other>": ("area", "thing"),
    "domain<array<text>>": ("tags", "labels"),
    "array<other>": ("tags[]",),  # its elements are the database's own text
}
"""Every other type is `other`."""

LAKE: dict[str, str] = {
    "bool": "boolean",
    "int16": "int",
    "int32": "int",
    "int64": "bigint",
    "uint32": "bigint",
    "decimal(10,2)": "decimal(10,2)",
    "decimal(2,4)": "decimal(4,4)",
    "float32": "float",
    "float64": "double",
    "bytes": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamp_tz": "timestamp",
}
"""Every other kind is `string`; an array is one of its elements' type, and of JSON a `string`."""

MAY_NEST = {"json", "array<json>", "array<float32>", "array<float64>"}
"""Kinds whose values are kept as the text they have, with all domains."""

_BY_TYPE = {each: kind for kind, types in KINDS.items() for each in types}


def kind_of(case: str) -> str:
    """As a column of this type has it."""
    if case in _BY_TYPE:
        return _BY_TYPE[case]
    element, bracket, _ = case.partition("[")
    return f"array<{kind_of(element)}>" if bracket else "other"


def lake_of(kind: str) -> str:
    """The type of a column of this kind."""
    if kind.startswith("array<"):
        element = kind[len("array<") : -1]
        return "string" if element == "json" else f"array<{lake_of(element)}>"
    return LAKE.get(kind, "string")
