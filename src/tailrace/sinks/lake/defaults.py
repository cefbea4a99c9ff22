"""What rows from before have in columns that the source added: the column's default, exactly, whatever its type."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from tailrace.json_members import split
from tailrace.kinds import Kind
from tailrace.schema import TableSchema
from tailrace.sinks.lake.columns import is_document, unfit, value
from tailrace.sinks.lake.sql import literal, quoted


def defaults_of(image: str, schema: TableSchema) -> dict[str, str]:
    """Column → text of its default, from an `s` change's image. Columns whose default is null are not in it."""
    kinds = {column.name: column.kind for column in schema.columns}
    found = split(split(image)["defaults"])
    return {name: _text(raw, kinds[name]) for name, raw in found.items() if name in kinds and raw != "null"}


def misfits(session: SparkSession, defaults: Mapping[str, str], types: Mapping[str, DataType]) -> list[str]:
    """The columns whose default their type does not hold."""
    names = [name for name in defaults if name in types]
    if not names:
        return []
    tests = ", ".join(unfit(literal(defaults[name]), types[name]) for name in names)
    [wrong] = session.sql(f"SELECT array({tests})").collect()
    return [name for name, each in zip(names, wrong[0], strict=True) if each]


def filling(defaults: Mapping[str, str], types: Mapping[str, DataType]) -> dict[str, str]:
    """SQL by column: its default; null where the type does not hold it."""
    return {name: value(literal(each), types[name]) for name, each in defaults.items() if name in types}


def set_aside(defaults: Mapping[str, str], unfit_column: str) -> str:
    """SQL: the map of values that did not fit, with these instead of what it has for their columns."""
    names = ", ".join(map(literal, defaults))
    entries = ", ".join(f"{literal(name)}, {literal(each)}" for name, each in defaults.items())
    others = f"map_filter(coalesce({quoted(unfit_column)}, map()), (k, v) -> not array_contains(array({names}), k))"
    return f"map_concat({others}, map({entries}))"


def _text(raw: str, kind: Kind) -> str:
    """The text that a change would have: of JSON columns the JSON itself, of others the string in it."""
    text: str = raw if is_document(kind) or not raw.startswith('"') else json.loads(raw)
    return text
