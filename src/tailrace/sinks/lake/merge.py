"""The MERGE that brings a table to what a batch leaves of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.sinks.lake.fold import Reading
from tailrace.sinks.lake.ranges import Ranges
from tailrace.sinks.lake.sql import literal, quoted

OP, UNSENT, UNFIT, AT = "_tailrace_op", "_tailrace_unsent", "_tailrace_unfit", "_tailrace_at"
"""Columns of the merge's source beside the table's."""


@dataclass(frozen=True)
class Measured:
    """What a merge's source has."""

    rows: int
    unsent: bool
    """Whether some rows leave columns as the table has them."""
    unfit: list[str]


def strict_source(winners: DataFrame, reading: Reading) -> DataFrame:
    """One typed row per key: a value that its column does not hold is an error. Every row has all columns, and a
    delete those of its key."""
    return winners.selectExpr(*reading.strict_columns(), f"op AS {OP}", f"timestamp_micros(ts_us) AS {AT}")


def source(winners: DataFrame, reading: Reading) -> DataFrame:
    """One typed row per key."""
    return reading.typed(winners).select(
        *reading.columns(),
        F.col("op").alias(OP),
        F.col("_unsent").alias(UNSENT),
        reading.misfits().alias(UNFIT),
        F.timestamp_micros("ts_us").alias(AT),
    )


def unfit_columns(name: str) -> Column:
    """The columns with values that do not fit."""
    return F.array_distinct(F.flatten(F.collect_set(F.map_keys(F.col(name))))).alias("unfit")


def measure(rows: DataFrame) -> Measured:
    [found] = rows.agg(F.count("*"), F.max(F.size(UNSENT)), unfit_columns(UNFIT)).collect()
    return Measured(found[0], bool(found[1]), found[2] or [])


def fresh(rows: DataFrame, columns: Sequence[str], *, lenient: bool, soft: bool) -> DataFrame:
    """What an empty table gets: every row that is not deleted."""
    own = [F.col(UNFIT).alias("_unfit")] if lenient else []
    if soft:
        own += [F.lit(False).alias("_is_deleted"), F.lit(None).cast("timestamp").alias("_deleted_at")]
    return rows.filter(F.col(OP) != "d").select(*(F.col(quoted(name)) for name in columns), *own)


_COMES_BACK = (
    "a row that processors had dropped comes back without columns that the source did not send: "
    "ALTER TABLE … REPLICA IDENTITY FULL at the source, then give the sink another id and read the table anew"
)


@dataclass(frozen=True)
class Statement:
    """The MERGE for a source. `unsent`: whether some rows leave columns as the table has them."""

    columns: Sequence[str]
    reading: Reading
    ranges: Ranges
    unsent: bool
    lenient: bool
    soft: bool
    whole_inserts: bool = False
    """Whether a row that the table lacks must have all columns: processors had dropped it, and with it what the source
    does not send again."""

    def text(self, target: str, view: str) -> str:
        gone = f"WHEN MATCHED AND s.{OP} = 'd' THEN " + (
            f"UPDATE SET `_is_deleted` = true, `_deleted_at` = s.{AT}" if self.soft else "DELETE"
        )
        updates = ", ".join(f"{name} = {text}" for name, text in self._updates())
        inserts = self._inserts()
        return " ".join(
            (
                f"MERGE INTO {target} t USING {view} s ON {self._condition()}",
                gone,
                f"WHEN MATCHED THEN UPDATE SET {updates}" if updates else "",
                f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join(inserts)})",
                f"VALUES ({', '.join(inserts.values())})",
            )
        )

    def _condition(self) -> str:
        same = [self._same(name) for name in self.reading.key]
        ranges = [
            f"t.{quoted(name)} {sign} cast({literal(bound)} as {self.reading.types[name].simpleString()})"
            for name, bounds in self.ranges.items()
            for sign, bound in zip((">=", "<="), bounds, strict=True)
        ]
        return " AND ".join(same + ranges)

    def _same(self, name: str) -> str:
        """SQL: whether a row and a change have the same value in a column of the key."""
        here, there = f"t.{quoted(name)}", f"s.{quoted(name)}"
        if self.reading.is_plain(name):
            return f"{here} = {there}"
        aside, new_aside = ("t.`_unfit`", f"s.{UNFIT}") if self.lenient else (None, None)
        return (
            f"{self.reading.canonical_here(name, here, aside)} = {self.reading.canonical_here(name, there, new_aside)}"
        )

    def _updates(self) -> list[tuple[str, str]]:
        found = [(quoted(name), self._new(name)) for name in self.columns if name not in self.reading.key]
        if self.lenient:
            old = f"map_filter(coalesce(t.`_unfit`, map()), (k, v) -> array_contains(s.{UNSENT}, k))"
            found.append(("`_unfit`", f"map_concat({old}, s.{UNFIT})"))
        if self.soft:
            found += [("`_is_deleted`", "false"), ("`_deleted_at`", "cast(null as timestamp)")]
        return found

    def _new(self, name: str) -> str:
        new = f"s.{quoted(name)}"
        if not self.unsent:
            return new
        return f"CASE WHEN array_contains(s.{UNSENT}, {literal(name)}) THEN t.{quoted(name)} ELSE {new} END"

    def _inserts(self) -> dict[str, str]:
        found = {quoted(name): f"s.{quoted(name)}" for name in self.columns}
        if self.whole_inserts and self.unsent:
            key = quoted(self.reading.key[0])
            found[key] = f"if(size(s.{UNSENT}) > 0, raise_error({literal(_COMES_BACK)}), {found[key]})"
        if self.lenient:
            found["`_unfit`"] = f"s.{UNFIT}"
        if self.soft:
            found |= {"`_is_deleted`": "false", "`_deleted_at`": "cast(null as timestamp)"}
        return found
