"""Which columns of a table a relation message names. Pure.

The stream tells names and types; which column a name stands for, only its number in the catalog tells, and the catalog
may be further than the stream: changes that lie ahead are already in it. So the numbers are found by their history:
from the version that the log has, through the message, to the catalog, in as few changes of columns as possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tailrace.capture.postgres.messages import RelationColumn
from tailrace.schema import Column

DROPPED = "???"
"""How the database spells a type that is gone."""
MANY = 5_000
"""More histories than these are not looked at."""
_XIDS = 1 << 32


@dataclass(frozen=True)
class Attribute:
    """A column as the catalog has it now, which may be later than where the stream is.

    `listed`: a publication says which of the table's columns it has. `missing`: the text of the value that rows from
    before the column have. `changed`: the transaction that changed it last; of a dropped column, the one that did that.
    `required`: no row has a null there. `default`: the expression of its default. `primary`: its place in the primary
    key, from 1; 0 where it is not part of it. `labels`: those of the enum that its values, or their elements, are of.
    """

    number: int
    name: str
    type_oid: int
    type_modifier: int
    dropped: bool
    generated: bool
    listed: bool
    missing: str | None
    changed: int
    required: bool = False
    default: str | None = None
    primary: int = 0
    labels: tuple[str, ...] = ()

    @property
    def optional(self) -> bool:
        """Whether the stream may be without it while the table has it."""
        return self.generated or self.listed


@dataclass(frozen=True)
class Numbers:
    """The number of each column, 0 where it is not known. `sure`: no other history is as likely."""

    each: tuple[int, ...]
    sure: bool = True


@dataclass(frozen=True)
class Told:
    """What a relation message says, with each type's spelling, in the transaction `xid` (0: none)."""

    columns: Sequence[RelationColumn]
    types: Sequence[str]
    xid: int = 0


def numbers_of(told: Told, known: Sequence[Column], attributes: Sequence[Attribute]) -> Numbers:
    """The numbers of the columns that `told` has. `known`: the columns of the same table that the log met last, if any;
    `attributes`: all that the catalog has now, in order, or none where the table is gone."""
    if all(column.number for column in told.columns):
        return Numbers(tuple(column.number for column in told.columns))
    had = {column.number: column for column in known}
    if not attributes or 0 in had:
        had = {}
    if not had and (present := _present(told, attributes)):
        return Numbers(present, sure=not any(_is_dropped_later(told.xid, each) for each in attributes))
    histories = [_History(told, had, chosen) for chosen in _choices(len(told.columns), had, attributes)]
    if not histories:
        return Numbers(_by_name(told, known), sure=not attributes)
    best = min(histories, key=lambda each: (each.overtaken, each.changes, each.early, [-n for n in each.numbers]))
    doubt = best.overtaken or best.early or [each.changes <= best.changes for each in histories].count(True) > 1
    return Numbers(best.numbers, sure=len(histories) == 1 or not doubt)


def _present(told: Told, attributes: Sequence[Attribute]) -> tuple[int, ...]:
    """The numbers, if the catalog has the table as it was told; else none."""
    names = {column.name for column in told.columns}
    there = [each for each in attributes if not each.dropped and (each.name in names or not each.optional)]
    same = [(a.name, a.type_oid, a.type_modifier) for a in there] == [
        (c.name, c.type_oid, c.type_modifier) for c in told.columns
    ]
    return tuple(each.number for each in there) if same else ()


def _is_dropped_later(xid: int, attribute: Attribute) -> bool:
    """Whether the column was dropped after the transaction, by its number: it may have been what is told."""
    return attribute.dropped and xid != 0 and _is_after(attribute.changed, xid)


def _by_name(told: Told, known: Sequence[Column]) -> tuple[int, ...]:
    """What names alone tell, and order: new columns come last in a table, so where one stands before an older name,
    that name may be another column by now."""
    numbers = {column.name: column.number for column in known}
    found = tuple(numbers.get(column.name, 0) for column in told.columns)
    older = [number for number in found if number]
    in_order = older == sorted(older) and found[: len(older)] == tuple(older)
    return found if in_order else (0,) * len(found)


Choice = Mapping[Attribute, bool]
"""Attributes that the table may have had then, in order, and whether it had them."""


def _choices(count: int, had: Mapping[int, Column], attributes: Sequence[Attribute]) -> Iterator[Choice]:
    """The sets of `count` columns that the table may have had. Numbers are never given twice and follow the order of
    columns: what the log has and the catalog still has was there then; what is neither of the log nor newer was not."""
    newest = max(had, default=0)
    possible = [a for a in attributes if a.number in had or a.number > newest or (a.optional and not a.dropped)]
    certain = {a for a in possible if a.number in had and not a.dropped and not a.optional}
    others = [a for a in possible if a not in certain]
    wanted = count - len(certain)
    if not 0 <= wanted <= len(others) or math.comb(len(others), wanted) > MANY:
        return
    for some in combinations(others, wanted):
        chosen = {a: a in certain or a in some for a in possible}
        if _in_turn(chosen, newest):
            yield chosen


def _in_turn(chosen: Choice, newest: int) -> bool:
    """New columns come one after the other: one that is there while an older one is not yet cannot be."""
    new = [(a, there) for a, there in chosen.items() if a.number > newest and not a.optional]
    first_missing = min((a.number for a, there in new if not there and not a.dropped), default=math.inf)
    return not any(there and a.number > first_missing for a, there in new)


class _History:
    """One way from the log's version through the message to the catalog. `overtaken` and `early`: columns of which
    transactions would have changed the table in another order than they got their numbers. That happens, but only to
    those that are open at the same time; `early` also where the transaction itself changed the column, as a part of it
    that has a number of its own."""

    def __init__(self, told: Told, had: Mapping[int, Column], chosen: Choice) -> None:
        self.numbers = tuple(a.number for a, there in chosen.items() if there)
        self.changes = self.overtaken = self.early = 0
        columns = iter(zip(told.columns, told.types, strict=True))
        for attribute, there in chosen.items():
            column, spelled = next(columns) if there else (None, "")
            was = had.get(attribute.number)
            self.changes += _changes_before(was, column, spelled) if had else 0
            self.changes += _changes_since(column, attribute)
            self.overtaken += _is_overtaken(told.xid, attribute, there)
            existed = was is not None or attribute.number < max(self.numbers, default=0)  # columns are made in order
            self.early += existed and not there and _is_dropped_later(told.xid, attribute)


def _changes_before(was: Column | None, column: RelationColumn | None, spelled: str) -> int:
    if was is None or column is None:
        return (was is None) != (column is None)
    return (was.name != column.name) + (spelled not in (was.type, DROPPED))


def _changes_since(column: RelationColumn | None, now: Attribute) -> int:
    if column is None:
        return not now.dropped and not now.optional
    if now.dropped:
        return 1
    kinds = (column.type_oid, column.type_modifier), (now.type_oid, now.type_modifier)
    return (column.name != now.name) + (kinds[0] != kinds[1])


def _is_overtaken(xid: int, attribute: Attribute, there: bool) -> bool:
    """Whether the column was changed after the transaction, by one with a smaller number."""
    ahead = there if attribute.dropped else not there and not attribute.optional
    return xid != 0 and ahead and _is_after(xid, attribute.changed)


def _is_after(one: int, other: int) -> bool:
    """Of two 32-bit transaction numbers, which go round."""
    return 0 < (one - other) % _XIDS < _XIDS // 2
