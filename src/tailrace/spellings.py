"""What PostgreSQL's spellings of types mean.

PostgreSQL's source says kinds with this. It stands here because of logs and lake tables from before columns had kinds:
whoever loads one has nothing but spellings, and they are PostgreSQL's.
"""

from __future__ import annotations

import re

from tailrace.kinds import OTHER, Kind

UNKNOWN = Kind(domain=True)
"""Of a type of the user's of which there is nothing but the name."""

_NUMERIC = re.compile(r"numeric\((\d+)(?:,\s*(-?\d+))?\)")
_INTERVAL = re.compile(r"interval\b")  # interval day to second(3)
_PRECISION = re.compile(r"\(\d+\)")
_KINDS = {
    "boolean": Kind("bool"),
    "smallint": Kind("int16"),
    "integer": Kind("int32"),
    "bigint": Kind("int64"),
    "oid": Kind("uint32"),
    "numeric": Kind("decimal"),
    "real": Kind("float32"),
    "double precision": Kind("float64"),
    "bytea": Kind("bytes"),
    "date": Kind("date"),
    "time without time zone": Kind("time"),
    "time with time zone": Kind("time_tz"),
    "timestamp without time zone": Kind("timestamp"),
    "timestamp with time zone": Kind("timestamp_tz"),
    "json": Kind("json"),
    "jsonb": Kind("json"),
    "uuid": Kind("uuid"),
    **dict.fromkeys(("text", "character", '"char"', "character varying", "bpchar", "name"), Kind("text")),
    **dict.fromkeys(("money", "bit", "bit varying", "xml", "tsvector", "tsquery"), OTHER),
    **dict.fromkeys(("inet", "cidr", "macaddr", "macaddr8"), OTHER),
    **dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), OTHER),
}


def kind_of(spelled: str) -> Kind:
    """The kind of a column's type."""
    if spelled.endswith("[]"):
        return Kind("array", element=kind_of(spelled.removesuffix("[]")))
    return kind_of_scalar(spelled) or UNKNOWN


def kind_of_scalar(spelled: str) -> Kind | None:
    """The kind of a type of PostgreSQL's own that is no array; None where it is none of these."""
    digits = _NUMERIC.fullmatch(spelled)
    if digits:
        return Kind("decimal", int(digits[1]), int(digits[2] or 0))
    if _INTERVAL.match(spelled):
        return Kind("interval")
    return _KINDS.get(_PRECISION.sub("", spelled))
