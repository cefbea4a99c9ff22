"""A table's columns become those of another version: old rows stay right, whenever the process is killed in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tailrace.schema import Column, TableSchema
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake.target import Target
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import Image, column_of
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]


def version(number: int, *columns: Column, table: str = "orders", relation: int = 100) -> TableSchema:
    key = column_of("id", "bigint", 1)
    return TableSchema(number, "shop", "public", table, (key, *columns), ("id",), relation=relation)


def texts(**numbers: int) -> tuple[Column, ...]:
    return tuple(column_of(name, "text", number) for name, number in numbers.items())


MOVES = {
    "swapped": texts(b=2, a=3),
    "shifted": texts(b=2, c=3),
    "dropped": texts(b=2),
    "anew": texts(a=2, b=4),
}
"""What becomes of columns a (number 2) and b (number 3) in one step: table → its columns then."""
MOVED: dict[str, dict[str, Image]] = {
    "keep": {
        "swapped": {"a": "old b", "b": "old a"},
        "shifted": {"b": "old a", "c": "old b"},
        "dropped": {"b": "old a", "b__dropped": "old b"},
        "anew": {"a": "old a", "b": "default", "b__dropped": "old b"},
    },
    "drop": {
        "swapped": {"a": "old b", "b": "old a"},
        "shifted": {"b": "old a", "c": "old b"},
        "dropped": {"b": "old a"},
        "anew": {"a": "old a", "b": "default"},
    },
}
"""What a row from before has then, by `dropped_columns`."""


@pytest.mark.parametrize("policy", MOVED)
def test_columns_are_known_by_their_numbers(lake: MakeLake, policy: str) -> None:
    """Several tables, each with other renames, drops and additions in one transaction."""
    made = lake(dropped_columns=policy)
    for place, table in enumerate(MOVES, 1):
        made.feed.add(version(place, *texts(a=2, b=3), table=table), "c", {"id": 1, "a": "old a", "b": "old b"})
    made.keep()
    for place, (table, columns) in enumerate(MOVES.items(), 11):
        after = version(place, *columns, table=table)
        made.feed.evolve(after, {"b": "default"} if table == "anew" else {})
        made.feed.add(after, "c", {"id": 2, **{each.name: "new" for each in columns}})
    made.keep()
    for table, old in MOVED[policy].items():
        new = {name: None if name.endswith("__dropped") else "new" for name in old}
        assert made.rows(f"public__{table}") == [{"id": 1, **old}, {"id": 2, **new}], table


def test_a_dropped_column_gives_way_again_and_comes_back(lake: MakeLake) -> None:
    """Also when the source had no such column for a while. A version that returns finds its column by its number."""
    made = lake()
    steps = [texts(b=2), texts(c=3), texts(b=4), texts(b=5), texts(b=2, c=4)]
    for number, columns in enumerate(steps, 1):
        schema = version(number, *columns)
        made.feed.evolve(schema)
        made.feed.add(schema, "c", {"id": number, **{each.name: f"{number}" for each in columns}})
    made.keep()
    rows = made.rows()
    assert {name: [row[name] for row in rows] for name in rows[0] if name != "id"} == {
        "b": ["1", None, None, None, "5"],
        "c": [None, None, "3", None, "5"],
        "b__dropped_3": [None, None, None, "4", None],
        "c__dropped": [None, "2", None, None, None],
    }


# -- kills ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A table of version `before` with `rows` becomes one of version `after` and gets the rows `new`. The process is
    killed once at each of `points`, one after the other. Then the table is as `expected`."""

    points: tuple[str, ...]
    before: TableSchema
    rows: list[Image]
    after: TableSchema
    new: list[Image]
    expected: list[Image]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


A, B, N = column_of("a", "text", 2), column_of("b", "text", 3), column_of("n", "integer", 4)
V1 = version(1, A, B, N)
OLD = {"id": 1, "a": "old a", "b": "old b", "n": 1}
CASES = {
    "columns_move": Case(
        (
            "lake.evolve.after_plan",
            "lake.evolve.after_rename",
            "lake.evolve.after_rename",
            "lake.evolve.after_note",
            "lake.evolve.after_rename",
            "lake.evolve.after_version",
        ),
        V1,
        [OLD],
        version(2, *texts(b=2, a=3), N),
        [{"id": 2, "a": "new a", "b": "new b", "n": 2}],
        [{"id": 1, "a": "old b", "b": "old a", "n": 1}, {"id": 2, "a": "new a", "b": "new b", "n": 2}],
    ),
    "columns_come_and_get_wider": Case(
        (
            "lake.evolve.after_widen",
            "lake.evolve.after_add",
            "lake.evolve.after_fill",
            "lake.evolve.after_version",
        ),
        V1,
        [OLD],
        version(2, A, B, column_of("n", "bigint", 4), column_of("d", "text", 5)),
        [{"id": 2, "a": "new a", "b": "new b", "n": 1 << 40, "d": "new d"}],
        [{**OLD, "d": "default"}, {"id": 2, "a": "new a", "b": "new b", "n": 1 << 40, "d": "new d"}],
        {"d": "default"},
    ),
    "a_column_steps_aside": Case(
        (
            "lake.evolve.after_plan",
            "lake.evolve.after_rename",
            "lake.evolve.after_add",
            "lake.evolve.after_fill",
            "lake.evolve.after_version",
        ),
        V1,
        [OLD],
        version(2, A, N, *texts(b=5)),
        [{"id": 2, "a": "new a", "b": "new b", "n": 2}],
        [
            {"id": 1, "a": "old a", "b__dropped": "old b", "n": 1, "b": "default"},
            {"id": 2, "a": "new a", "b__dropped": None, "n": 2, "b": "new b"},
        ],
        {"b": "default"},
    ),
    "a_column_is_dropped_and_made_anew": Case(
        (
            "lake.evolve.after_plan",
            "lake.evolve.after_drop",
            "lake.evolve.after_note",
            "lake.evolve.after_add",
            "lake.evolve.after_fill",
            "lake.evolve.after_version",
        ),
        V1,
        [OLD],
        version(2, A, N, *texts(b=5)),
        [{"id": 2, "a": "new a", "b": "new b", "n": 2}],
        [{**OLD, "b": "default"}, {"id": 2, "a": "new a", "b": "new b", "n": 2}],
        {"b": "default"},
        {"dropped_columns": "drop"},
    ),
    "a_type_becomes_text": Case(
        (
            "lake.evolve.after_plan",
            "lake.evolve.after_add",
            "lake.evolve.after_copy",
            "lake.evolve.after_drop",
            "lake.evolve.after_rename",
            "lake.evolve.after_version",
        ),
        V1,
        [OLD],
        version(2, A, B, column_of("n", "text", 4)),
        [{"id": 2, "a": "new a", "b": "new b", "n": "two"}],
        [{**OLD, "n": "1"}, {"id": 2, "a": "new a", "b": "new b", "n": "two"}],
    ),
    "a_value_makes_its_column_text": Case(
        (
            "lake.evolve.after_plan",
            "lake.evolve.after_add",
            "lake.evolve.after_copy",
            "lake.evolve.after_drop",
            "lake.evolve.after_rename",
            "lake.evolve.after_version",
        ),
        version(1, column_of("d", "numeric(6,2)", 2)),
        [{"id": 1, "d": "1.25"}],
        version(1, column_of("d", "numeric(6,2)", 2)),
        [{"id": 2, "d": "NaN"}],
        [{"id": 1, "d": "1.25"}, {"id": 2, "d": "NaN"}],
    ),
    "values_that_do_not_fit_go_with_their_column": Case(
        (
            "lake.evolve.after_plan",
            "lake.evolve.after_drop",
            "lake.evolve.after_rename",
            "lake.evolve.after_add",
            "lake.evolve.after_copy_unfit",
            "lake.evolve.after_drop",
            "lake.evolve.after_note",
            "lake.evolve.after_rename",
            "lake.evolve.after_version",
        ),
        version(1, column_of("d", "numeric(6,2)", 2), column_of("e", "numeric(6,2)", 3)),
        [{"id": 1, "d": "NaN", "e": "NaN"}],
        version(2, column_of("e", "numeric(6,2)", 2)),
        [{"id": 2, "e": "Infinity"}],
        [{"id": 1, "e": None, "_unfit": {"e": "NaN"}}, {"id": 2, "e": None, "_unfit": {"e": "Infinity"}}],
        {},
        {"evolution": "lenient", "dropped_columns": "drop"},
    ),
    "a_table_is_made_anew": Case(
        ("lake.evolve.after_clear", "lake.evolve.after_add"),
        V1,
        [OLD],
        version(2, A, column_of("c", "integer", 3), relation=200),
        [{"id": 2, "a": "new a", "c": 3}],
        [{"id": 2, "a": "new a", "b": None, "n": None, "c": 3}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kill_between_two_steps_is_taken_up_by_the_next_start(lake: MakeLake, name: str) -> None:
    case = CASES[name]
    made = lake(**case.options)
    for row in case.rows:
        made.feed.add(case.before, "c", row)
    made.keep()
    if case.after.id != case.before.id:
        made.feed.evolve(case.after, case.defaults)
    for row in case.new:
        made.feed.add(case.after, "c", row)
    for point in case.points:
        with dies_at(point):
            made.again()
            made.keep()
    made.again()
    made.keep()
    assert made.rows() == case.expected
    assert made.keeper.warnings() == ()


def test_columns_that_somebody_altered_in_between_halt_the_table_alone(lake: MakeLake) -> None:
    case = CASES["a_type_becomes_text"]
    made = lake()
    made.feed.add(V1, "c", OLD)
    made.keep()
    made.feed.evolve(case.after)
    with dies_at("lake.evolve.after_copy"):
        made.keep()
    for column in ("n", "_tailrace_1"):
        made.target().drop_column(column)
    made.again()
    made.keep()
    [warning] = made.keeper.warnings()
    assert "public.orders halted: " in warning and "altered by somebody else" in warning


# -- roll back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["columns_move", "a_column_is_dropped_and_made_anew", "a_value_makes_its_column_text"])
def test_a_roll_back_brings_the_columns_of_then(lake: MakeLake, name: str) -> None:
    """With their values, and what came after is applied again: also to a version from the middle of the change."""
    case = CASES[name]
    made = lake(**case.options)
    for row in case.rows:
        made.feed.add(case.before, "c", row)
    made.keep()
    then, before = made.target().versions(), made.rows()
    if case.after.id != case.before.id:
        made.feed.evolve(case.after, case.defaults)
    for row in case.new:
        made.feed.add(case.after, "c", row)
    made.keep()
    after, later = made.rows(), made.target().versions()
    for version in (then[-1], later[len(then)]):
        made.target().roll_back(version.id)
        if version is then[-1]:
            assert made.rows() == before
        made.again()
        made.keep()
        assert made.rows() == after
    assert made.keeper.warnings() == ()


def test_rows_that_were_rolled_back_without_their_columns(lake: MakeLake) -> None:
    """As Iceberg's own procedure does it."""
    made = lake()
    if not isinstance(made.sink, IcebergSink):
        pytest.skip("Delta goes back as a whole")
    case = CASES["a_type_becomes_text"]
    made.feed.add(V1, "c", OLD)
    made.keep()
    then = made.target().state()
    made.feed.evolve(case.after).add(case.after, "c", case.new[0])
    made.keep()
    target = made.target()
    target.execute(f"CALL `default`.system.set_current_snapshot('{target.sql_name}', {then})")
    assert [row["n"] for row in made.rows()] == [None]
    made.again()
    made.keep()
    assert made.rows() == case.expected


def test_columns_that_cannot_be_brought_back_halt_the_table_alone(
    lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a start, too: the others go on."""
    made = lake()
    other = version(5, A, table="other", relation=200)
    made.feed.add(V1, "c", OLD)
    made.keep()
    then = made.target().versions()[-1].id
    made.feed.add(V1, "d", OLD).add(other, "c", {"id": 1, "a": "a"})
    made.keep()
    made.target().roll_back(then)

    def fail(target: Target) -> None:
        raise PySparkException("the columns of then are gone")

    monkeypatch.setattr(type(made.target()), "restore_columns", fail)
    made.again()
    made.feed.add(other, "c", {"id": 2, "a": "a"})
    made.keep()
    assert [row["id"] for row in made.rows("public__other")] == [1, 2]
    [warning] = made.keeper.warnings()
    assert "public.orders halted: " in warning and "the columns of then are gone" in warning
