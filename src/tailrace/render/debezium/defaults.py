"""Defaults of columns, as far as Debezium makes them out from their expressions: it reads literals, and takes a fixed
value for whatever calls a function. Kafka's converter writes the default of a column in place of a null."""

from __future__ import annotations

import json
import re

from tailrace.render.debezium import rare
from tailrace.render.debezium.codes import Code
from tailrace.render.debezium.semantics import Encoding, encoding_of, is_as_declared
from tailrace.schema import Column

_OF_FUNCTIONS = {
    "bit": "0",
    "bit varying": "0",
    "boolean": "false",
    **dict.fromkeys(("character", "character varying", "text", "xml"), ""),
    **dict.fromkeys(("numeric", "real", "double precision"), "0.0"),
    **dict.fromkeys(("smallint", "integer", "bigint"), "0"),
    **dict.fromkeys(("json", "jsonb"), "{}"),
    "uuid": "00000000-0000-0000-0000-000000000000",
    "time without time zone": "00:00",
    **dict.fromkeys(("date", "timestamp without time zone", "timestamp with time zone"), "1970-01-01"),
    "interval": "00:00:00",
}
"""By type, those that it reads defaults of: what stands for the value of a function."""
_CALL = re.compile(r"[(]?[A-Za-z0-9_.]+\(.*\)")
_LITERAL = re.compile("'(.*?)'")
"""As Debezium has it: a quote inside ends it."""
_NOW = ("current_timestamp", "current_time", "current_date", "localtime", "localtimestamp")
_ARGUMENTS = re.compile(r"\([\d, -]+\)")
_DAY, _MINUTES = re.compile(r"\d+-\d\d-\d\d(?: BC)?"), re.compile(r"\d\d:\d\d")


def default_of(column: Column) -> str | None:
    """As JSON text, as it is written in records; None where there is none to tell."""
    if column.default is None or not (is_as_declared(column) or column.kind.name == "enum"):
        return None
    encoding = encoding_of(column)
    try:
        literal = _literal(column, encoding, column.default.strip())
        return None if literal is None else _written(encoding, literal)
    except (ValueError, ArithmeticError, KeyError):
        return None


def _literal(column: Column, encoding: Encoding, expression: str) -> str | None:
    if column.kind.name == "enum":
        found = re.fullmatch(r"'(.*)'::.+", expression)
        return found[1] if found else None
    kind = "interval" if column.type.startswith("interval") else _ARGUMENTS.sub("", column.type)
    if kind not in _OF_FUNCTIONS or encoding.code is Code.VARIABLE_DECIMAL:
        return None
    if _CALL.match(expression) or expression.lower() in _NOW:
        return _OF_FUNCTIONS[kind]
    if "'" not in expression:
        return None if expression.startswith("NULL::") else expression
    found = _LITERAL.search(expression)
    return found[1] if found else None


def _written(encoding: Encoding, literal: str) -> str:
    match encoding.code, encoding.schema["type"]:
        case Code.VERBATIM, "boolean":
            return str(literal.lower() == "true").lower()
        case ((Code.VERBATIM | Code.JSON), "string"):
            return json.dumps(literal, ensure_ascii=False)
        case Code.VERBATIM, _:
            return str(int(literal))
        case Code.FLOAT, _:
            return rare.double(float(literal))
        case ((Code.TIME_MICROS | Code.TIME_MILLIS), _):
            micros = rare.clock(literal + ":00" if _MINUTES.fullmatch(literal) else literal)
            return str(micros // 1000 if encoding.code is Code.TIME_MILLIS else micros)
        case ((Code.MICROS | Code.MILLIS | Code.ZONED), _):
            return rare.encoded(encoding, json.dumps(f"{literal} 00:00:00" if _DAY.fullmatch(literal) else literal))
        case _:
            return rare.encoded(encoding, json.dumps(literal))
