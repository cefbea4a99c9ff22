"""Tables that change: columns come, go, get other names and types, and values that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.lake.sql import quoted
from tailrace.testing.feed import column_of, schema_of
from tests.sinks.lake.conftest import MakeSink
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]
V1 = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})
V2 = replace(
    V1,
    id=2,
    columns=(
        column_of("id", "bigint", 1),
        column_of("n", "bigint", 2),
        column_of("remark", "text", 3),
        column_of("status", "text", 4),
        column_of("price", "numeric(10,2)", 5),
    ),
)
V3 = replace(V2, id=3, columns=tuple(c for c in V2.columns if c.name != "price"))


def test_columns_come_with_their_default_get_another_name_and_a_wider_type(lake: MakeLake) -> None:
    """In the middle of a batch, and again after a crash between the steps."""
    table = lake()
    table.feed.add(V1, "c", {"id": 1, "n": 1, "note": "a"}).add(V1, "c", {"id": 2, "n": 2, "note": None})
    table.feed.evolve(V2, {"status": "new", "price": "9.50"})
    table.feed.add(V2, "u", {"id": 2, "n": 1 << 40, "remark": "b", "status": "sent", "price": None})
    table.keep()
    table.feed.evolve(V3)
    table.feed.add(V3, "c", {"id": 3, "n": 3, "remark": "c", "status": None})
    table.again()
    table.keep()
    assert [{**row, "price": str(row["price"])} for row in table.rows()] == [
        {"id": 1, "n": 1, "remark": "a", "status": "new", "price": "9.50"},
        {"id": 2, "n": 1 << 40, "remark": "b", "status": "sent", "price": "None"},
        {"id": 3, "n": 3, "remark": "c", "status": None, "price": "None"},
    ]


def test_rows_from_before_have_the_default_whatever_it_is(lake: MakeLake) -> None:
    """One that its column does not hold follows the policy, as any value does."""
    kinds = {"d": "date", "t": "text", "j": "jsonb", "f": "double precision", "fs": "double precision[]"}
    defaults = {"d": "infinity", "t": "null", "j": '"a": -0', "f": -0.0, "fs": [-0.0, None]}
    policies = ("adapt", "lenient", "halt")
    table = lake(tables={f"public.{policy}": {"evolution": policy} for policy in policies})
    for number, policy in enumerate(policies):
        before = schema_of(2 * number + 1, policy, {"id": "bigint"})
        after = schema_of(2 * number + 2, policy, {"id": "bigint", **kinds})
        table.feed.add(before, "c", {"id": 1}).evolve(after, defaults)
        table.feed.add(after, "c", {"id": 2, **dict.fromkeys(kinds), "d": "2024-02-29"})
    table.keep()
    adapted, lenient = (
        [{**row, **{name: str(row[name]) for name in ("d", "f", "fs")}} for row in table.rows(f"public__{policy}")]
        for policy in policies[:2]
    )
    others = {"t": "null", "j": '"\\"a\\": -0"', "f": "-0.0", "fs": "[-0.0, None]"}
    nothing = {"t": None, "j": None, "f": "None", "fs": "None"}
    assert adapted == [{"id": 1, "d": "infinity", **others}, {"id": 2, "d": "2024-02-29", **nothing}]
    assert lenient == [
        {"id": 1, "d": "None", **others, "_unfit": {"d": "infinity"}},
        {"id": 2, "d": "2024-02-29", **nothing, "_unfit": {}},
    ]
    assert [row["id"] for row in table.rows("public__halt")] == [1]
    [warning] = table.keeper.warnings()
    assert "public.halt.d does not fit" in warning


def test_names_are_what_the_source_has(lake: MakeLake) -> None:
    """Of tables and columns, from the beginning on and later."""
    odd = ["two words", "a,b;{c}(d)=e", 'q"uo\\te', "tick`s", "dot.dot", "$é✓"]
    name = "odd name, it's $so"
    v1 = schema_of(1, name, {odd[0]: "bigint", "n": "integer", odd[1]: "text"}, (odd[0],))
    v2 = schema_of(2, name, {odd[0]: "bigint", odd[2]: "integer", odd[1]: "text", odd[3]: "text"}, (odd[0],))
    v3 = schema_of(3, name, {each.name: each.type for each in v2.columns} | dict.fromkeys(odd[4:], "text"), (odd[0],))
    table = lake()
    table.feed.add(v1, "c", {odd[0]: 1, "n": 1, odd[1]: "x"}).add(v1, "c", {odd[0]: 2, "n": 2, odd[1]: "y"})
    table.keep()
    table.feed.evolve(v2, {odd[3]: "new"}).add(v2, "u", {odd[0]: 2, odd[2]: 22, odd[1]: "z", odd[3]: "old"})
    table.feed.evolve(v3).add(v3, "d", {odd[0]: 9})
    table.feed.add(v3, "u", {odd[0]: 1, odd[2]: 11, odd[1]: "w", odd[3]: "v", odd[4]: "dots"}, unchanged=[odd[5]])
    table.keep()
    found = [list(row.values()) for row in table.rows(f"public__{name}", order=quoted(odd[0]))]
    assert found == [[1, 11, "w", "v", "dots", None], [2, 22, "z", "old", None, None]]
    assert list(table.rows(f"public__{name}", order="1")[0]) == [odd[0], odd[2], odd[1], *odd[3:]]


def test_a_column_cannot_take_the_name_of_another(lake: MakeLake) -> None:
    """Such a table halts alone. To Delta, names that differ only in capitals are the same."""
    table = lake(write_mode="append")
    table.feed.add(V1, "c", {"id": 1, "n": 1, "note": "a"})
    alike = schema_of(8, "alike", {"id": "bigint", "N": "integer", "n": "integer"})
    table.feed.add(alike, "c", {"id": 1, "N": 1, "n": 2})
    taken = replace(V1, id=9, columns=(*V1.columns, column_of("_op", "text", 9)))
    table.feed.evolve(taken).add(taken, "c", {"id": 2, "n": 1, "note": "a", "_op": "x"})
    table.keep()
    assert [row["id"] for row in table.rows()] == [1]
    halted = sorted(table.keeper.warnings())
    assert "has a column _op, a name the sink needs" in halted[-1]
    if isinstance(table.sink, DeltaSink):
        assert "columns N and n, which are the same" in halted[0]
    else:
        assert len(halted) == 1
        assert table.sql("SELECT id, N, n FROM {}", "public__alike") == [{"id": 1, "N": 1, "n": 2}]


def test_two_tables_cannot_be_one(lake: MakeLake) -> None:
    """The second halts, in the batch in which both are new and when it comes later; a renamed table goes on."""
    table = lake(table_name="all")
    other = replace(V1, id=5, schema="sales", relation=200)
    table.feed.add(V1, "c", {"id": 1, "n": 1, "note": "a"}).add(other, "c", {"id": 2, "n": 1, "note": "b"})
    table.keep()
    [halted] = table.keeper.warnings()
    assert "would be one table in the lake" in halted
    [kept] = {"public.orders", "sales.orders"} - {halted.partition(" ")[0]}
    mine = V1 if kept == "public.orders" else other
    third = replace(V1, id=6, schema="third", relation=300)
    renamed = replace(mine, id=7, table="renamed")
    table.feed.add(third, "t").add(third, "c", {"id": 3, "n": 1, "note": "c"})
    table.feed.evolve(renamed).add(renamed, "c", {"id": 4, "n": 1, "note": "d"})
    table.keep()
    assert {each.partition(" ")[0] for each in table.keeper.warnings()} == {halted.partition(" ")[0], "third.orders"}
    assert [row["id"] for row in table.rows("all")] == [1 if mine is V1 else 2, 4]


def test_dropped_columns_can_go(lake: MakeLake) -> None:
    table = lake(dropped_columns="drop")
    table.feed.add(V2, "c", {"id": 1, "n": 1, "remark": "a", "status": "x", "price": "1.00"})
    table.feed.evolve(V3)
    table.feed.add(V3, "c", {"id": 2, "n": 2, "remark": "b", "status": "y"})
    table.keep()
    assert table.rows() == [
        {"id": 1, "n": 1, "remark": "a", "status": "x"},
        {"id": 2, "n": 2, "remark": "b", "status": "y"},
    ]


def test_a_table_made_anew_holds_nothing_of_the_old_one(lake: MakeLake) -> None:
    """Also where the rows before it ended just there, and where another table's came in between."""
    anew = replace(V1, id=5, relation=200)
    table = lake()
    table.feed.add(V1, "c", {"id": 1, "n": 1, "note": "a"}).add(V1, "u", {"id": 1, "n": 2, "note": "b"})
    table.feed.evolve(anew).add(anew, "r", {"id": 2, "n": 3, "note": "c"})
    table.keep()
    assert table.rows() == [{"id": 2, "n": 3, "note": "c"}]
    again = replace(V1, id=6, relation=300)
    table.feed.add(OTHER, "c", {"id": 1, "d": "1.00"})
    table.feed.evolve(again).add(again, "r", {"id": 3, "n": 4, "note": "d"})
    table.keep()
    assert table.rows() == [{"id": 3, "n": 4, "note": "d"}]


TEXT_N = replace(V1, id=4, columns=(V1.columns[0], column_of("n", "text", 2), V1.columns[2]))


def _retyped(table: Lake) -> None:
    table.feed.add(V1, "c", {"id": 1, "n": 1, "note": "a"})
    table.feed.evolve(TEXT_N)
    table.feed.add(TEXT_N, "c", {"id": 2, "n": "two", "note": "b"}).add(TEXT_N, "c", {"id": 3, "n": "3", "note": "c"})


def test_adapt_makes_a_column_text(lake: MakeLake) -> None:
    table = lake(evolution="adapt")
    _retyped(table)
    table.keep()
    assert [(row["id"], row["n"]) for row in table.rows()] == [(1, "1"), (2, "two"), (3, "3")]


def test_lenient_sets_values_aside_that_do_not_fit(lake: MakeLake) -> None:
    table = lake(evolution="lenient")
    _retyped(table)
    table.feed.add(TEXT_N, "u", {"id": 1, "n": "one", "note": "a"})
    table.keep()
    assert [(row["n"], row["_unfit"]) for row in table.rows()] == [(None, {"n": "one"}), (None, {"n": "two"}), (3, {})]


OTHER = schema_of(9, "other", {"id": "bigint", "d": "numeric(6,2)"})


def test_a_table_that_halts_is_caught_up_alone(lake: MakeLake, make: MakeSink) -> None:
    """The others go on, the log keeps what it needs, and with another policy it catches up."""
    table = lake(tables={"public.orders": {"evolution": "halt"}})
    _retyped(table)
    table.feed.add(OTHER, "c", {"id": 1, "d": "1.00"})
    table.keep()
    assert [row["id"] for row in table.rows()] == [1]
    assert [row["id"] for row in table.rows("public__other")] == [1]
    [warning] = table.keeper.warnings()
    assert "public.orders" in warning and "evolution: adapt" in warning
    assert table.feed.retained == {"public.orders": 1}
    table.feed.say().add(TEXT_N, "u", {"id": 2, "n": "zwei", "note": "b"}).add(OTHER, "u", {"id": 1, "d": "2.00"})
    table.keep()
    assert str(table.rows("public__other")[0]["d"]) == "2.00"
    table.again(make(evolution="adapt"))
    assert table.keeper.warnings() == () and table.feed.retained == {}
    assert [(row["id"], row["n"]) for row in table.rows()] == [(1, "1"), (2, "zwei"), (3, "3")]


def test_a_table_that_waits_for_what_is_gone_halts_alone(lake: MakeLake, make: MakeSink) -> None:
    table = lake(tables={"public.orders": {"evolution": "halt"}})
    _retyped(table)
    table.feed.add(OTHER, "c", {"id": 1, "d": "1.00"})
    table.keep()
    table.at = table.feed.trim()
    table.again(make(evolution="adapt"))
    [warning] = table.keeper.warnings()
    assert "public.orders halted" in warning and f"the log begins at {table.at}" in warning
    assert table.feed.retained == {}
    table.feed.add(OTHER, "u", {"id": 1, "d": "2.00"})
    table.keep()
    assert str(table.rows("public__other")[0]["d"]) == "2.00"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("adapt", ["1.25", "NaN"]), ("lenient", ["1.25", None]), ("halt", ["1.25"])],
)
def test_values_that_do_not_fit_follow_the_policy(lake: MakeLake, policy: str, expected: list[Any]) -> None:
    table = lake(evolution=policy)
    table.feed.add(OTHER, "c", {"id": 1, "d": "1.25"})
    table.keep()
    table.feed.add(OTHER, "c", {"id": 2, "d": "NaN"})
    table.keep()
    rows = table.rows("public__other")
    assert [None if row["d"] is None else str(row["d"]) for row in rows] == expected
    if policy == "lenient":
        assert rows[1]["_unfit"] == {"d": "NaN"}
    assert bool(table.keeper.warnings()) == (policy == "halt")


def test_history_has_every_change(lake: MakeLake) -> None:
    table = lake(write_mode="append")
    table.feed.add(V1, "c", {"id": 1, "n": 1, "note": "a"}).add(V1, "u", {"id": 1, "n": 2}, unchanged=["note"])
    table.feed.add(V1, "d", {"id": 1}).add(V1, "t").evolve(V2).add(V2, "c", {"id": 2, "n": 3, "remark": "b"})
    table.keep()
    table.keep(0)
    rows = table.rows(order="_seq")
    assert [(row["_op"], row["id"], row["n"], row["remark"], row["_unchanged"]) for row in rows] == [
        ("c", 1, 1, "a", None),
        ("u", 1, 2, None, ["note"]),
        ("d", 1, None, None, None),
        ("t", None, None, None, None),
        ("c", 2, 3, "b", None),
    ]
    assert [row["_seq"] for row in rows] == [0, 1, 2, 3, 5]
    assert rows[0]["_position"] == "0/0" and rows[0]["_tx"] == "0"
    assert len({row["_event_id"] for row in rows}) == len(rows)


def test_soft_deletes_stay_marked(lake: MakeLake) -> None:
    table = lake(soft_delete=True)
    for number in (1, 2, 3):
        table.feed.add(V1, "c", {"id": number, "n": number, "note": "a"})
    table.feed.add(V1, "d", {"id": 1})
    table.keep()
    table.feed.add(V1, "d", {"id": 2}).add(V1, "d", {"id": 3}).add(V1, "c", {"id": 3, "n": 4, "note": "b"})
    table.keep()
    rows = table.rows()
    assert [(row["id"], row["n"], row["_is_deleted"]) for row in rows] == [(2, 2, True), (3, 4, False)]
    assert rows[0]["_deleted_at"] is not None and rows[1]["_deleted_at"] is None


def test_tables_without_a_key(lake: MakeLake) -> None:
    keyless = schema_of(5, "clicks", {"at": "bigint"}, ())
    table = lake()
    table.feed.add(keyless, "c", {"at": 1}).add(keyless, "c", {"at": 1})
    table.keep()
    assert [row["at"] for row in table.rows("public__clicks", "at")] == [1, 1]
    table.feed.add(keyless, "d", {"at": 1})
    table.keep()
    assert "has no key" in table.keeper.warnings()[0]
