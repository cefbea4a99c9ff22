"""Which steps turn a lake table's columns into those of another version of the source's table. Pure: it plans only.

Columns are known by their number at the source, not by their name. The columns of one version are mapped to those of
the other as a whole, and the mapping is taken apart into statements that table formats have: rename, drop, add. A
process that finds a plan half done tells from the columns that are there which step comes next (Law 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from tailrace.schema import Column

SUFFIX = "__dropped"
"""Appended to the name of a column that the source dropped, once the source has another column of that name."""
SPARE = "_tailrace_"
"""The beginning of a name that a column has only between two steps, or inside one statement."""
TEXT = "string"

TypeJson = str | dict[str, Any]
"""A type as Spark writes it in JSON."""
Fold = Callable[[str], str]
"""Two names are the same to the table's format where this gives the same for both."""


@dataclass(frozen=True)
class Rename:
    column: str
    to: str


@dataclass(frozen=True)
class Drop:
    column: str


@dataclass(frozen=True)
class Add:
    """Add all of these columns, in one commit."""

    columns: dict[str, TypeJson]


@dataclass(frozen=True)
class Widen:
    """Give a column a wider type. May be repeated."""

    column: str
    type: TypeJson


@dataclass(frozen=True)
class CopyText:
    """Fill `column` with the values of the column `source`, as text. May be repeated."""

    column: str
    source: str


@dataclass(frozen=True)
class CopyUnfit:
    """Fill `column` with the maps of the column `source`, whose keys are names of columns. `names`: key → the key it
    becomes; entries whose key becomes None are left out. May be repeated."""

    column: str
    source: str
    names: dict[str, str | None]


@dataclass(frozen=True)
class Fill:
    """Give every row these values: column → text. May be repeated."""

    values: dict[str, str]


@dataclass(frozen=True)
class Note:
    """Write into the plan that all steps before this one are done, where the columns alone would not tell."""


Step = Rename | Drop | Add | Widen | CopyText | CopyUnfit | Fill | Note
_STEPS: dict[str, type[Step]] = {
    "rename": Rename,
    "drop": Drop,
    "add": Add,
    "widen": Widen,
    "copy_text": CopyText,
    "copy_unfit": CopyUnfit,
    "fill": Fill,
    "note": Note,
}
_NAMES = {kind: name for name, kind in _STEPS.items()}


@dataclass(frozen=True)
class Plan:
    """Steps from the columns `before` (name → type) to others. `properties`: what the table's properties say once all
    steps are done. `done`: so many steps are done, and perhaps more."""

    before: dict[str, TypeJson]
    steps: tuple[Step, ...]
    properties: dict[str, str] = field(default_factory=dict)
    done: int = 0

    @classmethod
    def of(cls, before: Mapping[str, TypeJson], steps: Iterable[Step], properties: Mapping[str, str]) -> Plan:
        """A plan of these steps, with a `Note` wherever the next step cannot be told from the columns."""
        return cls(dict(before), tuple(_with_notes(before, tuple(steps))), dict(properties))

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be made anew from the columns it left half done: then it need not be written down."""
        return all(isinstance(each, Add | Widen | Fill) for each in self.steps)

    def noted(self, done: int) -> Plan:
        return replace(self, done=done)

    def text(self) -> str:
        return json.dumps({**asdict(self), "steps": [{_NAMES[type(each)]: asdict(each)} for each in self.steps]})

    @classmethod
    def from_text(cls, text: str) -> Plan:
        found = json.loads(text)
        steps = tuple(_STEPS[name](**values) for each in found["steps"] for name, values in each.items())
        return cls(**{**found, "steps": steps})

    def next_step(self, columns: Mapping[str, TypeJson]) -> int | None:
        """The place in `steps` to go on from, as the table's `columns` (name → type) tell; its length where all are
        done, None where the columns are those of no place.

        Where several places look the same it is the first of them: the steps between them may be repeated.
        """
        touched = _touched(self.steps)
        seen = _look(columns, touched)
        looks = [_look(state, touched) for state in self._states()]
        return next((place for place in range(self.done, len(looks)) if looks[place] == seen), None)

    def _states(self) -> Iterator[dict[str, TypeJson]]:
        """The columns before each step, and after the last."""
        columns = dict(self.before)
        yield columns
        for each in self.steps:
            columns = _after(each, columns)
            yield columns


def _with_notes(before: Mapping[str, TypeJson], steps: tuple[Step, ...]) -> Iterator[Step]:
    """The steps, and a `Note` before each that makes the columns look as they did at an earlier place."""
    touched = _touched(steps)
    columns, seen = dict(before), [_look(before, touched)]
    for each in steps:
        columns = _after(each, columns)
        look = _look(columns, touched)
        if look != seen[-1] and look in seen:
            yield Note()
            seen = seen[-1:]
        yield each
        seen.append(look)


def _touched(steps: Iterable[Step]) -> set[str]:
    """The columns that come, go or change in these steps. Others may be altered by whoever likes to."""
    return {name for each in steps for name in _named(each)}


def _named(step: Step) -> tuple[str, ...]:
    match step:
        case Rename():
            return step.column, step.to
        case Add():
            return tuple(step.columns)
        case Drop() | Widen() | CopyText() | CopyUnfit():
            return (step.column,)
        case Fill() | Note():
            return ()


def _after(step: Step, columns: Mapping[str, TypeJson]) -> dict[str, TypeJson]:
    match step:
        case Rename():
            return {step.to if name == step.column else name: each for name, each in columns.items()}
        case Drop():
            return {name: each for name, each in columns.items() if name != step.column}
        case Add():
            return {**columns, **step.columns}
        case Widen() | CopyText() | CopyUnfit() | Fill() | Note():
            return dict(columns)


def _look(columns: Mapping[str, TypeJson], touched: Iterable[str]) -> set[tuple[str, bool]]:
    """What the place in a plan is told by: which columns are there, and whether they are text."""
    return {(name, columns[name] == TEXT) for name in touched if name in columns}


# -- mapping -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Existing:
    """A table as it is. `numbers`: column → its number at the source, 0 or absent where that is not known; `current`:
    the columns of the table's version; `own`: the sink's. All others were dropped at the source, or are the user's."""

    columns: Mapping[str, TypeJson]
    numbers: Mapping[str, int]
    current: frozenset[str]
    own: frozenset[str]


@dataclass(frozen=True)
class Moves:
    """What becomes of columns. `origins`: wanted column → the column that it is now, None for a new one; `dropped`:
    columns to drop; `aside`: columns that leave their name to another → the name they get."""

    origins: Mapping[str, str | None]
    dropped: tuple[str, ...]
    aside: Mapping[str, str]

    @property
    def renamed(self) -> dict[str, str]:
        """Column of the table → its new name."""
        return {was: name for name, was in self.origins.items() if was not in (None, name)} | dict(self.aside)

    @property
    def new(self) -> list[str]:
        return [name for name, was in self.origins.items() if was is None]

    def others(self, table: Existing) -> dict[str, int]:
        """The columns that were dropped at the source and stay in the table: new name → number at the source."""
        here = {was for was in self.origins.values() if was is not None} | set(self.dropped)
        staying = {name: number for name, number in table.numbers.items() if number and name not in here}
        return {self.aside.get(name, name): number for name, number in staying.items() if name in table.columns}


def mapped(wanted: Sequence[Column], table: Existing, fold: Fold, *, drop: bool) -> Moves:
    """Which column of the table each wanted one is: the one with its number, or its name where a number is not known.

    A column that the source dropped is dropped with `drop`; else it stays, under another name where its own is wanted.
    """
    origins = _by_number(wanted, table)
    _by_name(wanted, table, origins)
    here = {was for was in origins.values() if was is not None} | table.own
    others = [name for name in table.columns if name not in here]
    dropped = tuple(name for name in others if drop and name in table.current)
    names = {fold(column.name) for column in wanted}
    taken = names | {fold(name) for name in table.columns}
    aside = {}
    for name in others:
        if name not in dropped and fold(name) in names:
            aside[name] = _free(f"{name}{SUFFIX}", taken, fold)
            taken.add(fold(aside[name]))
    return Moves(origins, dropped, aside)


def _by_number(wanted: Sequence[Column], table: Existing) -> dict[str, str | None]:
    names = {number: name for name, number in table.numbers.items() if number and name in table.columns}
    return {column.name: names.get(column.number) for column in wanted}


def _by_name(wanted: Sequence[Column], table: Existing, origins: dict[str, str | None]) -> None:
    claimed = {was for was in origins.values() if was is not None} | table.own
    for column in wanted:
        free = column.name in table.columns and column.name not in claimed
        unknown = 0 in (column.number, table.numbers.get(column.name, 0))
        if origins[column.name] is None and free and unknown:
            origins[column.name] = column.name


def _free(name: str, taken: set[str], fold: Fold) -> str:
    """`name`, or the first of `name_2`, `name_3` and so on that nobody has."""
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(each for each in names if fold(each) not in taken)


# -- steps ---------------------------------------------------------------------------------------------------


class Steps:
    """Puts steps together."""

    def __init__(self, columns: Iterable[str], wanted: Iterable[str], fold: Fold) -> None:
        self.made: list[Step] = []
        self._there = {fold(name) for name in columns}
        self._taken = self._there | {fold(name) for name in wanted}
        self._fold = fold

    def apply(self, moves: Moves) -> None:
        """Drop, then rename: each column once its new name is free, so that columns may also change places."""
        for name in moves.dropped:
            self._drop(name)
        waiting = moves.renamed
        while waiting:
            free = [name for name, to in waiting.items() if self._fold(to) not in self._there]
            column = free[0] if free else next(iter(waiting))
            to = waiting.pop(column)
            if not free:  # each waits for another one's name: this one makes room
                spare = self._spare()
                waiting[spare], to = to, spare
            self._rename(column, to)

    def add(self, columns: Mapping[str, TypeJson]) -> None:
        if columns:
            self.made.append(Add(dict(columns)))
            self._there |= {self._fold(name) for name in columns}

    def fill(self, values: Mapping[str, str]) -> None:
        if values:
            self.made.append(Fill(dict(values)))

    def widen(self, column: str, wanted: TypeJson) -> None:
        self.made.append(Widen(column, wanted))

    def to_text(self, column: str) -> None:
        """Make a column text, with the values it has."""
        spare = self._spare()
        self.add({spare: TEXT})
        self.made.append(CopyText(spare, column))
        self._replace(column, spare)

    def rename_unfit(self, unfit: str, kind: TypeJson, moves: Moves) -> None:
        """Let the column `unfit`, maps by the name of a column, have the names that columns get."""
        spare = self._spare()
        self.add({spare: kind})
        self.made.append(CopyUnfit(spare, unfit, {**moves.renamed, **dict.fromkeys(moves.dropped)}))
        self._replace(unfit, spare)

    def _replace(self, column: str, by: str) -> None:
        self._drop(column)
        self._rename(by, column)

    def _rename(self, column: str, to: str) -> None:
        self.made.append(Rename(column, to))
        self._there = self._there - {self._fold(column)} | {self._fold(to)}

    def _drop(self, column: str) -> None:
        self.made.append(Drop(column))
        self._there.discard(self._fold(column))

    def _spare(self) -> str:
        """A name that no column has, now or later."""
        name = next(each for number in count(1) if self._fold(each := f"{SPARE}{number}") not in self._taken)
        self._taken.add(self._fold(name))
        return name
