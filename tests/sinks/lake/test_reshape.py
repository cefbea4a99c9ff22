"""Columns of a table become those of another version: in any order of names, and from wherever it was broken off."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tailrace.schema import Column
from tailrace.sinks.lake.reshape import (
    TEXT,
    Add,
    CopyText,
    CopyUnfit,
    Drop,
    Existing,
    Fill,
    Moves,
    Note,
    Plan,
    Rename,
    Step,
    Steps,
    TypeJson,
    Widen,
    mapped,
)

UNFIT: TypeJson = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}


FOREVER = 10**9


class Died(Exception):
    """Nothing that came after was done."""


@dataclass
class Table:
    """A table that knows what is in each column: which column of the source it was filled for, and how."""

    columns: dict[str, TypeJson]
    holds: dict[str, str]
    written: str = ""
    lives: int = FOREVER
    commits: int = 0

    def live(self, commits: int, plan: Plan) -> None:
        """Begin, or go on where an earlier life ended, for at most so many commits."""
        self.lives = commits
        with suppress(Died):
            if self.written:
                self.run()
            elif not self.commits:
                self.run(plan)

    def run(self, plan: Plan | None = None) -> None:
        """Carry a plan out, or go on with the one that was begun."""
        if plan is None:
            plan = Plan.from_text(self.written)
            place = plan.next_step(self.columns)
            assert place is not None, f"{self.columns} are of no place in {plan.steps}"
        else:
            place = 0
            self._commit(written=plan.text())
        for number, step in enumerate(plan.steps[place:], place):
            self._do(step, plan.noted(number + 1))
        self._commit(written="")

    def _do(self, step: Step, noted: Plan) -> None:
        columns, holds = dict(self.columns), dict(self.holds)
        match step:
            case Rename():
                assert step.to not in columns, f"{step.to} is there already"
                columns[step.to], holds[step.to] = columns.pop(step.column), holds.pop(step.column)
            case Drop():
                del columns[step.column], holds[step.column]
            case Add():
                assert not set(columns) & set(step.columns)
                columns |= step.columns
                holds |= dict.fromkeys(step.columns, "nothing")
            case CopyText():
                holds[step.column] = f"text of {holds[step.source].removeprefix('text of ')}"
            case CopyUnfit():
                holds[step.column] = f"{holds[step.source]}, renamed"
            case Widen():
                columns[step.column] = step.type
            case Fill():
                holds |= step.values
            case Note():
                self._commit(written=noted.text())
                return
        self._commit(columns=columns, holds=holds)

    def _commit(self, **values: object) -> None:
        """All of it, or nothing."""
        self.lives -= 1
        if self.lives < 0:
            raise Died
        self.commits += 1
        for name, value in values.items():
            setattr(self, name, value)


def kept(
    columns: Mapping[str, int], dropped: Mapping[str, int] | None = None, own: Mapping[str, TypeJson] | None = None
) -> Existing:
    """A table with columns of these numbers, those that are of its version and those that were dropped."""
    numbers = {**columns, **(dropped or {})}
    kinds: dict[str, TypeJson] = {**dict.fromkeys(numbers, "integer"), **(own or {})}
    return Existing(kinds, numbers, frozenset(columns), frozenset(own or ()))


def wanted(**numbers: int) -> list[Column]:
    return [Column(name, "integer", number=number) for name, number in numbers.items()]


def steps_of(there: Existing, columns: Sequence[Column], moves: Moves) -> tuple[Step, ...]:
    steps = Steps(there.columns, [column.name for column in columns], str)
    steps.apply(moves)
    steps.add(dict.fromkeys(moves.new, "integer"))
    return tuple(steps.made)


@pytest.mark.parametrize(
    ("there", "columns", "steps"),
    [
        (kept({"a": 1}), wanted(a=1), []),
        (kept({"a": 1}), wanted(b=1), [Rename("a", "b")]),
        (kept({"a": 1, "b": 2}), wanted(b=1, c=2), [Rename("b", "c"), Rename("a", "b")]),
        (
            kept({"a": 1, "b": 2}),
            wanted(b=1, a=2),
            [Rename("a", "_tailrace_1"), Rename("b", "a"), Rename("_tailrace_1", "b")],
        ),
        (kept({"a": 1, "b": 2}), wanted(b=1), [Rename("b", "b__dropped"), Rename("a", "b")]),
        (kept({"b": 2}), wanted(b=3), [Rename("b", "b__dropped"), Add({"b": "integer"})]),
        (kept({"b": 3}, {"b__dropped": 2}), wanted(b=4), [Rename("b", "b__dropped_2"), Add({"b": "integer"})]),
        (kept({"a": 1}, {"b": 2}), wanted(a=1, b=3), [Rename("b", "b__dropped"), Add({"b": "integer"})]),
        (kept({"a": 1}, {"b": 2}), wanted(a=1, b=2), []),
        (kept({"a": 1}, {"b__dropped": 2}), wanted(a=1, b=2), [Rename("b__dropped", "b")]),
        (kept({"a": 1, "theirs": 0}), wanted(a=1, theirs=5), []),
        (kept({"a": 1, "b": 0}), wanted(a=0, b=2), []),
        (kept({"a": 1}), wanted(a=1, _tailrace_1=2), [Add({"_tailrace_1": "integer"})]),
    ],
)
def test_columns_are_known_by_their_numbers(there: Existing, columns: list[Column], steps: list[Step]) -> None:
    assert list(steps_of(there, columns, mapped(columns, there, str, drop=False))) == steps


def test_what_the_source_dropped_can_go() -> None:
    there, columns = kept({"a": 1, "b": 2}, {"c": 3}), wanted(b=1)
    moves = mapped(columns, there, str, drop=True)
    assert list(steps_of(there, columns, moves)) == [Drop("b"), Rename("a", "b")]
    assert moves.others(there) == {"c": 3}


def test_names_that_differ_only_in_capitals_are_one_to_some_formats() -> None:
    there, columns = kept({"A": 1, "b": 2}), wanted(a=1, B=3)
    moves = mapped(columns, there, str.lower, drop=False)
    steps = Steps(there.columns, ["a", "B"], str.lower)
    steps.apply(moves)
    assert steps.made == [
        Rename("b", "b__dropped"),
        Rename("A", "_tailrace_1"),
        Rename("_tailrace_1", "a"),
    ]
    assert moves.new == ["B"]


def test_columns_of_others_are_of_no_place() -> None:
    plan = Plan({"a": TEXT}, (Rename("a", "b"), Add({"c": TEXT})))
    assert plan.next_step({"a": TEXT, "theirs": TEXT}) == 0
    assert plan.next_step({"b": TEXT, "c": TEXT}) == 2
    assert plan.next_step({"b": "integer"}) is None
    assert plan.next_step({"a": TEXT, "b": TEXT}) is None


@pytest.mark.parametrize("drop", [False, True])
def test_a_plan_can_be_broken_off_anywhere(drop: bool) -> None:
    """Any mapping, columns that become text, and values that are renamed: killed at each commit, and once more
    somewhere in what follows."""
    for seed in range(60):
        chance = random.Random(seed)
        case = _case(chance, drop=drop)
        whole = case.table()
        whole.run(case.plan)
        case.check(whole)
        for first in range(whole.commits):
            table = case.table()
            for lives in (first, chance.randrange(whole.commits), FOREVER):
                table.live(lives, case.plan)
            assert table.holds == whole.holds, f"seed {seed}, killed after {first} commits"


@dataclass(frozen=True)
class _Case:
    there: Existing
    columns: list[Column]
    moves: Moves
    texts: list[str]
    renames_unfit: bool
    plan: Plan

    def table(self) -> Table:
        numbers = {name: f"column {number}" for name, number in self.there.numbers.items()}
        return Table(dict(self.there.columns), {**numbers, "_unfit": "values"})

    def check(self, table: Table) -> None:
        """Each column of the source is where its name says; what it dropped is gone or under a name of its own."""
        known = set(self.there.numbers.values())
        for column in self.columns:
            held = f"column {column.number}" if column.number in known else "nothing"
            assert table.holds[column.name] == (f"text of {held}" if column.name in self.texts else held)
        assert table.holds["_unfit"] == ("values, renamed" if self.renames_unfit else "values")
        rest = table.columns.keys() - {column.name for column in self.columns} - {"_unfit"}
        assert {name: table.holds[name] for name in rest} == {
            name: f"column {number}" for name, number in self.moves.others(self.there).items()
        }


def _case(chance: random.Random, *, drop: bool) -> _Case:
    """A table with some columns, some that the source dropped, and some other columns that it has now."""
    names, numbers = list("abcdef"), list(range(1, 9))
    here = dict(zip(_some(chance, names), _some(chance, numbers), strict=False))
    dropped = {name: 20 + place for place, name in enumerate(_some(chance, sorted(set(names) - set(here))))}
    there = kept(here, dropped, {"_unfit": UNFIT})
    columns = wanted(**dict(zip(_some(chance, names), _some(chance, numbers), strict=False)))
    moves = mapped(columns, there, str, drop=drop)
    texts = [name for name, was in moves.origins.items() if was and chance.random() < 0.3]
    steps = Steps(there.columns, [column.name for column in columns], str)
    steps.apply(moves)
    for name in texts:
        steps.to_text(name)
    renames_unfit = chance.random() < 0.5
    if renames_unfit:
        steps.rename_unfit("_unfit", UNFIT, moves)
    steps.add(dict.fromkeys(moves.new, "integer"))
    return _Case(there, columns, moves, texts, renames_unfit, Plan.of(there.columns, steps.made, {}))


def _some(chance: random.Random, of: list[Any]) -> list[Any]:
    return chance.sample(of, chance.randint(min(1, len(of)), len(of)))
