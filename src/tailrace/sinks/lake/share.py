"""A table's share of a batch: what is in it, and the steps it is applied in, each with a mark of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tailrace.contracts import Content
from tailrace.errors import SinkError
from tailrace.schema import TableSchema


@dataclass(frozen=True)
class Part:
    """One version of a table in a batch."""

    schema: TableSchema
    content: Content


@dataclass
class Share:
    """All of one table."""

    name: str
    parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Apply the rows of `[start, end)`, which are of one version; `content` is of all its rows in the batch."""

    schema: TableSchema
    start: int
    end: int
    content: Content

    @property
    def only_inserts(self) -> bool:
        """Whether all are inserts of new keys."""
        return self.content.ops - {"s", "t"} == {"c"} and not self.content.has_key_changes


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


def shares_of(contents: Iterable[Content], versions: Mapping[int, TableSchema]) -> list[Share]:
    """What a batch has, table by table. Logical messages are of none."""
    shares: dict[str, Share] = {}
    for content in contents:
        if content.ops != {"m"}:
            schema = versions[content.schema_id]
            shares.setdefault(schema.name, Share(schema.name)).parts.append(Part(schema, content))
    return list(shares.values())


def steps(share: Share, start: int, end: int, breaking: frozenset[str]) -> list[Step]:
    """What to do with a table's changes of `[start, end)`, in order. `breaking` are the ops that are steps of their
    own."""
    parts = [part for part in share.parts if part.content.last >= start]
    _refuse_mixed(parts)
    found: list[Step] = []
    followers = [part.content.first for part in parts[1:]]
    for part, until in zip(parts, [*followers, end], strict=False):
        first = found[-1].end if found else start
        found += _part_steps(part, first, until, breaking)
    return found


def _part_steps(part: Part, start: int, end: int, breaking: frozenset[str]) -> list[Step]:
    found: list[Step] = []
    for each in part.content.breaks:
        if each.seq < start or each.op not in breaking:
            continue
        if start < each.seq and part.content.first < each.seq:
            found.append(Rows(part.schema, start, each.seq, part.content))
        start = each.seq + 1
        if each.op == "t":
            found.append(Clear(each.seq, start))
        else:
            found.append(Evolve(part.schema, each.seq, start, each.after or ""))
    if start < end and part.content.last >= start:
        found.append(Rows(part.schema, start, end, part.content))
    return found


def _refuse_mixed(parts: list[Part]) -> None:
    for before, after in pairwise(parts):
        if before.content.last > after.content.first:
            raise SinkError(
                "sink.versions_mixed",
                f"rows of two versions of {after.schema.name} alternate in the log",
                hint="please report it; to go on, read the table anew: tailrace snapshot PIPELINE --table",
                where=after.schema.name,
            )
