"""Which type a column gets in a mirror, by its kind; and how PostgreSQL itself turns the log's texts into values.

Types are named as PostgreSQL's `format_type` spells them.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from psycopg import sql

from tailrace.kinds import Kind, KindName

TEXT = "text"
_TYPES: dict[KindName, str] = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "integer",
    "uint32": "bigint",
    "uint64": "numeric(20,0)",
    "decimal": "numeric",
    "float32": "real",
    "float64": "double precision",
    "bytes": "bytea",
    "date": "date",
    "time": "time without time zone",
    "time_tz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamp_tz": "timestamp with time zone",
    "interval": "interval",
    "json": "json",
    "uuid": "uuid",
}
"""All others are text, but for arrays."""
_MOST_DIGITS = 1000
_WHOLE = ("smallint", "integer", "bigint")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_TEXTS = re.compile(r"text|character varying(\(\d+\))?|character(\(\d+\))?|citext|bpchar")
_LOOSE: tuple[KindName, ...] = ("text", "enum", "uuid", "interval", "json", "other")
"""Kinds whose values a type of the user's own may read too: an enum, jsonb, inet."""


def type_of(kind: Kind, *, key: bool = False) -> str:
    """The type for a column: exact, or text where no type holds all of its values. A `key` can be compared."""
    if kind.element is not None and kind.element.name == "json":
        return "jsonb" if key else "json"  # PostgreSQL would read each document, and not all that it keeps can be read
    if kind.element is not None:
        return f"{type_of(kind.element, key=key).removesuffix('[]')}[]"
    if kind.name == "other":
        return TEXT
    if kind.name == "json":
        return "jsonb" if key else "json"
    if kind.precision is not None:
        return _decimal(kind.precision, kind.scale or 0)
    return _TYPES.get(kind.name, TEXT)


def _decimal(precision: int, scale: int) -> str:
    return f"numeric({precision},{scale})" if 0 < precision <= _MOST_DIGITS and 0 <= scale <= precision else "numeric"


def wider(present: str, wanted: str) -> bool:
    """Whether `wanted` has every value of `present`, as the same value."""
    if present in _WHOLE:
        digits = _NUMERIC.fullmatch(wanted)
        wide = digits is not None and int(digits[1]) - int(digits[2]) >= 19 and int(digits[2]) >= 0  # noqa: PLR2004
        return wanted == "numeric" or wide or wanted in _WHOLE[_WHOLE.index(present) + 1 :]
    if present == "real":
        return wanted == "double precision"
    before, after = _NUMERIC.fullmatch(present), _NUMERIC.fullmatch(wanted)
    if before is None:
        return False
    return wanted == "numeric" or (after is not None and before[2] == after[2] and int(before[1]) < int(after[1]))


def holds(present: str, wanted: str) -> bool:
    """Whether a column of `present` holds every value of `wanted`, as the log spells it."""
    return present in (wanted, TEXT) or wider(wanted, present)


def reads(present: str, kind: Kind, *, key: bool) -> bool:
    """Whether a column of the user's may keep values of a kind: what it does not hold is found when it comes."""
    wanted = type_of(kind, key=key)
    return holds(present, wanted) or bool(_TEXTS.fullmatch(present)) or kind.name in _LOOSE


# -- values --------------------------------------------------------------------------------------------------


def staged(target: str) -> str:
    """The type in which values arrive: the column's own, where it reads the log's texts."""
    if target.endswith("[]"):
        return "json"
    return TEXT if target == "bytea" else target


def value(found: sql.Composable, target: str) -> sql.Composable:
    """The value of what is staged; of an array of bytes each is staged in hexadecimal digits."""
    if target == "bytea":
        return sql.SQL("decode({}, 'base64')").format(found)
    if target.endswith("[]"):
        array = "(SELECT v FROM json_to_record(json_build_object('v', {})) AS x(v {}))"
        return sql.SQL(array).format(found, sql.SQL(target))
    return found


def checked(text: sql.Composable, target: str) -> sql.Composable:
    """The value of a text; an error where COPY would raise one. A cast would cut what is too long."""
    kind = staged(target)
    if kind in ("json", "jsonb"):
        return value(sql.SQL("{}::{}").format(text, sql.SQL(kind)), target)
    read = "(SELECT v FROM json_to_record(json_build_object('v', {})) AS x(v {}))"
    return value(sql.SQL(read).format(text, sql.SQL(kind)), target)


def hexadecimal(text: str | None) -> str | None:
    """JSON of an array of bytes, with what `bytea` reads for each."""
    return None if text is None else json.dumps(_each_in_hex(json.loads(text)))


def _each_in_hex(found: Any) -> Any:
    if isinstance(found, list):
        return [_each_in_hex(each) for each in found]
    return None if found is None else "\\x" + base64.b64decode(found).hex()


def spelled(found: sql.Composable, present: str) -> sql.Composable:
    """The text of a value, as the log has it; of an array, JSON that means the same. Bytes and times in arrays of
    several dimensions are spelled as PostgreSQL's JSON has them."""
    match present:
        case "bytea":
            return sql.SQL("translate(encode({}, 'base64'), E'\\n', '')").format(found)
        case "timestamp with time zone":
            return _iso(found, sql.SQL("{} AT TIME ZONE 'UTC'").format(found), "Z")
        case "timestamp without time zone":
            return _iso(found, found, "")
        case "time without time zone" | "time with time zone":
            return _time(found)
        case _ if present.removesuffix("[]") in _SPELLED and present.endswith("[]"):
            each = spelled(sql.Identifier("e"), present.removesuffix("[]"))
            listed = "(SELECT coalesce(json_agg({} ORDER BY n), '[]')::text FROM unnest({}) WITH ORDINALITY x(e, n))"
            of_one = sql.SQL(listed).format(each, found)
            nested = "CASE WHEN array_ndims({0}) > 1 THEN {1} WHEN {0} IS NOT NULL THEN {2} END"
            return sql.SQL(nested).format(found, array_text(found), of_one)
        case _ if present.endswith("[]"):
            return array_text(found)
        case _:
            return sql.SQL("{}::text").format(found)


_SPELLED = (
    *("bytea", "time without time zone", "time with time zone"),
    *("timestamp without time zone", "timestamp with time zone"),
)
"""Types whose values JSON functions spell otherwise than the log does, as elements of arrays."""


def array_text(found: sql.Composable) -> sql.Composable:
    """JSON of an array."""
    return sql.SQL("regexp_replace(to_json({})::text, '[+]00:00\"', 'Z\"', 'g')").format(found)


def _iso(found: sql.Composable, local: sql.Composable, zone: str) -> sql.Composable:
    """Years that ISO 8601 does not have keep PostgreSQL's own text."""
    return sql.SQL(
        "CASE WHEN isfinite({0}) AND {0} >= '0001-01-01' "
        "THEN to_char({1}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US') || {2} ELSE {0}::text END"
    ).format(found, local, sql.Literal(zone))


def _time(found: sql.Composable) -> sql.Composable:
    """Six digits behind the point, and minutes in the zone, which PostgreSQL leaves out where they are none."""
    clock, zone = "substring({0}::text FROM '^[0-9:.]+')", "substring({0}::text FROM '[+-].*$')"
    return sql.SQL(
        f"CASE WHEN {clock} LIKE '%%.%%' THEN rpad({clock}, 15, '0') ELSE {clock} || '.000000' END "
        f"|| coalesce(rpad({zone}, greatest(length({zone}), 6), ':00'), '')"
    ).format(found)
