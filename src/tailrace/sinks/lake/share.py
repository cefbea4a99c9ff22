"""A table's share of a batch: what is in it, and the steps it is applied in, each with a mark of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tailrace.errors import SinkError
from tailrace.schema import TableSchema


@dataclass(frozen=True)
class Part:
    """The rows of one version of a table in a batch."""

    schema: TableSchema
    rows: int
    first: int
    last: int
    last_us: int
    breaks: frozenset[str]
    """Which of truncate (`t`) and schema change (`s`) are among them."""
    only_inserts: bool
    """Whether all else are inserts of new keys."""
    moved: bool
    """Whether rows that got another key lack columns."""
    lazy: tuple[str, ...]
    """Columns that some of the rows lack."""


@dataclass
class Share:
    """All of one table."""

    name: str
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Apply the rows of `[start, end)`, which are of one version."""

    schema: TableSchema
    start: int
    end: int
    only_inserts: bool
    moved: bool
    lazy: tuple[str, ...]


@dataclass(frozen=True)
class Clear:
    """The table was truncated at `start`."""

    start: int
    end: int


@dataclass(frozen=True)
class Evolve:
    """The table has another version from `start` on."""

    schema: TableSchema
    start: int
    end: int
    image: str


Step = Rows | Clear | Evolve


def survey(changes: DataFrame, versions: Mapping[int, TableSchema]) -> list[Share]:
    """What the batch has of each table. Logical messages are of none."""
    found = (
        changes.filter("op <> 'm'")
        .groupBy("schema_id")
        .agg(
            F.count("*").alias("rows"),
            F.min("seq").alias("first"),
            F.max("seq").alias("last"),
            F.max("ts_us").alias("last_us"),
            F.collect_set("op").alias("ops"),
            F.count_if(F.col("headers")["old_key"].isNotNull()).alias("moved"),
            F.count_if(F.col("headers")["old_key"].isNotNull() & (F.size("unchanged") > 0)).alias("lacking"),
            F.array_distinct(F.flatten(F.collect_set("unchanged"))).alias("lazy"),
        )
        .collect()
    )
    shares: dict[str, Share] = {}
    for row in sorted(found, key=lambda each: each["first"]):
        schema = versions[row.schema_id]
        ops = set(row.ops)
        part = Part(
            schema,
            row.rows,
            row.first,
            row.last,
            row.last_us,
            frozenset(ops & {"s", "t"}),
            ops - {"s", "t"} == {"c"} and not row.moved,
            bool(row.lacking),
            tuple(sorted(row.lazy)),
        )
        shares.setdefault(schema.name, Share(schema.name)).parts.append(part)
    return list(shares.values())


def steps(changes: DataFrame, share: Share, start: int, end: int, breaking: frozenset[str]) -> list[Step]:
    """What to do with a table's changes of `[start, end)`, in order. `changes` are the table's, `breaking` the ops that
    are steps of their own."""
    parts = [part for part in share.parts if part.last >= start]
    if not parts:
        return []
    _refuse_mixed(parts)
    found: list[Step] = []
    for part, follower in zip(parts, [*parts[1:], None], strict=True):
        until = end if follower is None else follower.first
        first = found[-1].end if found else start
        found += _part_steps(changes, part, first, until, part.breaks & breaking)
    return found


def _part_steps(changes: DataFrame, part: Part, start: int, end: int, breaking: frozenset[str]) -> list[Step]:
    found: list[Step] = []
    for row in _breaks(changes, part, start, breaking) if breaking else ():
        if row.seq > start:
            found.append(_rows(part, start, row.seq))
        start = row.seq + 1
        if row.op == "t":
            found.append(Clear(row.seq, start))
        else:
            found.append(Evolve(part.schema, row.seq, start, row.after))
    if start < end and part.last >= start:
        found.append(_rows(part, start, end))
    return found


def _rows(part: Part, start: int, end: int) -> Rows:
    return Rows(part.schema, start, end, part.only_inserts, part.moved, part.lazy)


def _breaks(changes: DataFrame, part: Part, start: int, breaking: frozenset[str]) -> list[Row]:
    mine = (F.col("schema_id") == part.schema.id) & (F.col("seq") >= start) & F.col("op").isin(*breaking)
    return changes.filter(mine).select("seq", "op", "after").orderBy("seq").collect()


def _refuse_mixed(parts: list[Part]) -> None:
    for before, after in pairwise(parts):
        if before.last > after.first:
            raise SinkError(
                "sink.versions_mixed",
                f"rows of two versions of {after.schema.name} alternate in the log",
                hint="please report it; to go on, read the table anew: tailrace snapshot PIPELINE --table",
                where=after.schema.name,
            )
