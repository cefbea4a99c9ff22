"""Sharing a batch out among tasks by the value of a column (`sharding.key`)."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from tailrace.jvm import JSON_LIMITS
from tailrace.schema import TableSchema


class ValueSharding:
    """Equal values of `column` go to one task, so that order holds per value.

    That needs the column in every change of a table. Where it is part of the row's key, it is there. Elsewhere a
    delete, or an update of other columns, may come without it; a batch is looked through for such changes. A table that
    has one is shared out by the row's key instead, in this batch and from then on: order then holds per key, as without
    the option. So is a table without the column.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._lacking: set[str] = set()

    def place(self, frame: DataFrame, versions: Iterable[TableSchema]) -> Column:
        """What decides a row's task. `versions` are those of the tables in the batch."""
        found = list(versions)
        without = {each.name for each in found if self._column not in {column.name for column in each.columns}}
        unsure = [each for each in found if self._column not in each.key and each.name not in without | self._lacking]
        self._lacking |= self._look(frame, unsure)
        by_value = [each.id for each in found if each.name not in without | self._lacking]
        only = StructType([StructField(self._column, StringType())])
        value = F.from_json(_image(), only, JSON_LIMITS).getField(self._column)
        return F.when(F.col("schema_id").isin(by_value), value).otherwise(F.col("key"))

    def warnings(self) -> tuple[str, ...]:
        """Which tables are not shared out as they were meant to be."""
        return tuple(
            f"{table}: changes without {self._column} were met, so sharding.key does not hold for it: its changes are "
            "in order per row. Let the database send the column with every change (PostgreSQL: REPLICA IDENTITY FULL)"
            for table in sorted(self._lacking)
        )

    def _look(self, frame: DataFrame, versions: list[TableSchema]) -> set[str]:
        """Names of the tables that have a change without the column."""
        if not versions:
            return set()
        names = {each.id: each.name for each in versions}
        has = F.array_contains(F.json_object_keys(_image()), self._column)
        lacking = frame.filter(F.col("schema_id").isin(list(names)) & ~has).select("schema_id").distinct()
        return {names[row.schema_id] for row in lacking.collect()}


def _image() -> Column:
    return F.coalesce("after", "before")
