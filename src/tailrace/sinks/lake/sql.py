"""The two ways in which a user's text may stand in a statement of Spark SQL: as a quoted name, or as a literal.

Rows are a DataFrame's. What is left are names, the lowest and highest key of a batch, defaults of new columns, and a
table's properties, comment and location. They go through `quoted` and `literal`, which hold for every character there
is. Parameters (`session.sql(statement, args={...})`) are no way: behind the parsers of Delta and Iceberg they stay
unbound. Both functions need the `SQL_SETTINGS`, which every session of a lake has and which count only where that
session is the thread's (`jvm.activate`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import DataType

SQL_SETTINGS = {
    "spark.sql.variable.substitute": "false",  # `${…}` would be looked up among settings and the environment
    "spark.sql.parser.escapedStringLiterals": "false",  # a backslash in a literal is written as two
    "spark.sql.parser.quotedRegexColumnNames": "false",  # a quoted name is a name, and no pattern
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
}
"""Under which a statement means what it says."""


def quoted(name: str) -> str:
    """An identifier."""
    return "`" + name.replace("`", "``") + "`"


def dotted(parts: tuple[str, ...]) -> str:
    """An identifier of several parts."""
    return ".".join(map(quoted, parts))


def literal(text: str) -> str:
    """A string. Backslashes and quotes are all that a literal reads as something else; line breaks may stand in it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def pairs(properties: Mapping[str, str]) -> str:
    """Table properties as a statement lists them."""
    return ", ".join(f"{literal(key)} = {literal(text)}" for key, text in properties.items())


def declared(columns: Mapping[str, DataType]) -> str:
    """Columns as a CREATE or ADD statement lists them."""
    return ", ".join(f"{quoted(name)} {each.simpleString()}" for name, each in columns.items())
