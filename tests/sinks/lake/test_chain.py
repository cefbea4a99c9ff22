"""Tables behind processors: a mirror stays one, whatever the chain drops or renames, and history has what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.processors.chain import Drop
from tailrace.processors.flatten import FlattenProcessor
from tailrace.processors.outbox import OutboxProcessor
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import MESSAGES, schema_of
from tests.processors.steps import Broken, Echo, Even, Renaming
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})
ITEMS = schema_of(2, "items", {"id": "bigint", "n": "integer", "note": "text"}, relation=200)
WIDER = schema_of(3, "orders", {"id": "bigint", "n": "integer", "note": "text", "paid": "boolean"})
DOCUMENTS = schema_of(5, "documents", {"id": "bigint", "details": "jsonb"})
BARE = schema_of(4, "documents", {"id": "bigint"})
CHAIN = (Even(id="even"), Renaming(id="renaming"))


def row(number: int, n: int, note: str = "a") -> dict[str, Any]:
    return {"id": number, "n": n, "note": note}


def seen(lake: Lake) -> list[tuple[int, int, str]]:
    return [(each["id"], each["number"], each["note"]) for each in lake.rows()]


def test_a_mirror_equals_its_source_under_the_chain(lake: MakeLake) -> None:
    """Rows leave it and come back as their values go in and out of what is wanted."""
    table = lake(*CHAIN)
    table.feed.read(ORDERS, [row(1, 0), row(2, 1), row(3, 2), row(4, 3)])
    table.keep()
    assert seen(table) == [(1, 0, "a"), (3, 2, "a")]
    assert table.chain.drops.take() == {Drop(1, "even", "odd"): 2}
    table.feed.add(ORDERS, "u", row(1, 5)).add(ORDERS, "u", row(2, 4, "b")).add(ORDERS, "d", {"id": 3})
    table.feed.add(ORDERS, "c", row(5, 6)).add(ORDERS, "c", row(6, 7))
    table.keep()
    assert seen(table) == [(2, 4, "b"), (5, 6, "a")]
    table.feed.add(ORDERS, "u", {"id": 5, "n": 8}, unchanged=["note"]).move(ORDERS, {"id": 2}, row(20, 10))
    table.keep()
    assert seen(table) == [(5, 8, "a"), (20, 10, "a")]
    table.feed.evolve(WIDER, {"paid": True}).add(WIDER, "c", {**row(7, 12), "paid": False})
    table.keep()
    assert [(each["id"], each["number"], each["paid"]) for each in table.rows()] == [
        (5, 8, True),
        (7, 12, False),
        (20, 10, True),
    ]


def test_a_row_that_comes_back_without_all_its_columns_halts_its_table_alone(lake: MakeLake) -> None:
    """What the table once had of it is gone: null would be a lie."""
    table = lake(*CHAIN)
    table.feed.add(ORDERS, "c", row(1, 1, "long")).add(ITEMS, "c", row(1, 2))
    table.keep()
    table.feed.add(ORDERS, "u", {"id": 1, "n": 2}, unchanged=["note"]).add(ITEMS, "c", row(2, 2))
    table.keep()
    [warning] = table.keeper.warnings()
    assert warning.startswith("public.orders halted: ") and "REPLICA IDENTITY FULL" in warning
    assert [each["id"] for each in table.rows("public__items")] == [1, 2]


def test_a_step_that_fails_halts_its_table_alone(lake: MakeLake) -> None:
    table = lake(Broken(id="broken"))
    table.feed.add(ORDERS, "c", row(1, 13)).add(ITEMS, "c", row(1, 2))
    table.keep()
    assert [warning.partition(":")[0] for warning in table.keeper.warnings()] == ["public.orders halted"]
    assert "thirteen" in table.keeper.warnings()[0]
    assert [each["id"] for each in table.rows("public__items")] == [1]


def test_killed_inside_a_first_load_behind_a_chain(lake: MakeLake) -> None:
    table = lake(*CHAIN)
    table.feed.read(ORDERS, [row(1, 0)])
    table.keep()
    table.feed.add(ORDERS, "u", row(1, 2)).read(ORDERS, [row(2, 1), row(3, 4)])
    with dies_at("lake.load.before_merge"):
        table.keep()
    table.again()
    table.keep(table.keeper.mark())
    assert seen(table) == [(1, 2, "a"), (3, 4, "a")]


def test_history_has_every_change_that_comes_out(lake: MakeLake) -> None:
    table = lake(Even(id="even"), Echo(id="echo"), write_mode="append")
    table.feed.add(ORDERS, "c", row(1, 1)).add(ORDERS, "c", row(2, 2)).add(ORDERS, "d", {"id": 1})
    table.keep()
    found = table.rows(order="_seq, _event_id")
    assert sorted((each["_op"], each["id"], each["_seq"]) for each in found) == [
        ("c", 2, 1),
        ("c", 2, 1),
        ("d", 1, 2),
        ("d", 1, 2),
    ]
    assert len({each["_event_id"] for each in found}) == 4


@pytest.mark.parametrize("many", [False, True])
def test_the_same_rows_wherever_the_chain_runs(many: bool, lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver, for few changes, or in tasks."""
    if many:
        monkeypatch.setattr("tailrace.spark.tables.SMALL_BYTES", 0)
    table = lake(*CHAIN)
    for number in range(20):
        table.feed.add(ORDERS, "c", row(number, number % 3))
    table.keep()
    assert seen(table) == [(number, number % 3, "a") for number in range(20) if number % 3 != 1]
    assert table.chain.drops.take() == {Drop(1, "even", "odd"): 7}


def test_flattened_documents_are_columns_and_those_that_were_not_sent_stay(lake: MakeLake) -> None:
    flatten = FlattenProcessor(id="flatten", columns={"details__a": "int64", "details__b__c": "text"})
    table = lake(flatten)
    table.feed.read(DOCUMENTS, [{"id": 1, "details": {"a": 1, "b": {"c": "x"}, "more": [1]}}])
    table.feed.add(DOCUMENTS, "c", {"id": 2, "details": {"a": 2}}).add(DOCUMENTS, "c", {"id": 3, "details": 5})
    table.keep()
    assert opened(table) == [
        (1, None, 1, "x", '{"details__more":[1]}'),
        (2, None, 2, None, None),
        (3, "5", None, None, None),
    ]
    table.feed.add(DOCUMENTS, "u", {"id": 1}, unchanged=["details"]).add(DOCUMENTS, "u", {"id": 2, "details": {}})
    table.feed.add(DOCUMENTS, "u", {"id": 3, "details": {"b": {"c": "y"}}})
    table.keep()
    assert opened(table) == [
        (1, None, 1, "x", '{"details__more":[1]}'),
        (2, "{}", None, None, None),
        (3, None, None, "y", None),
    ]


def test_documents_that_come_and_go_bring_their_columns_and_leave_them(lake: MakeLake) -> None:
    """A default of rows from before is flattened too; a column that the source dropped stays."""
    table = lake(FlattenProcessor(id="flatten", columns={"details__a": "int64"}))
    table.feed.add(BARE, "c", {"id": 1})
    table.keep()
    assert [column for column in table.rows("public__documents")[0] if not column.startswith("_")] == ["id"]
    table.feed.evolve(DOCUMENTS, {"details": {"a": 7, "b": 8}}).add(DOCUMENTS, "c", {"id": 2, "details": {"a": 9}})
    table.keep()
    found = table.rows("public__documents")
    assert [(each["details__a"], each["_undeclared"]) for each in found] == [(7, '{"details__b": 8}'), (9, None)]
    table.feed.evolve(replace(BARE, id=6)).add(replace(BARE, id=6), "c", {"id": 3})
    table.keep()
    found = table.rows("public__documents")
    assert [(each["id"], each["details__a"]) for each in found] == [(1, 7), (2, 9), (3, None)]


def test_flattened_documents_whose_columns_nobody_declared_halt_their_table_alone(lake: MakeLake) -> None:
    table = lake(FlattenProcessor(id="flatten"))
    table.feed.add(DOCUMENTS, "c", {"id": 1, "details": {"a": 1}}).add(ITEMS, "c", row(1, 2))
    table.keep()
    [warning] = table.keeper.warnings()
    assert warning.startswith("public.documents halted: ") and "columns: {name: kind}" in warning
    assert [each["id"] for each in table.rows("public__items")] == [1]


def test_messages_of_an_outbox_are_in_no_table_and_its_own_tables_halt_alone(lake: MakeLake) -> None:
    table = lake(OutboxProcessor(id="outbox", tables=("items",), prefixes=("mail",)), write_mode="append")
    table.feed.add(ORDERS, "c", row(1, 2)).add(replace(MESSAGES, schema="", table="mail"), "m", {"to": "x"})
    table.feed.add(ITEMS, "c", row(1, 2)).add(ORDERS, "c", row(2, 2))
    table.keep()
    assert [each["id"] for each in table.rows()] == [1, 2]
    [warning] = table.keeper.warnings()
    assert warning.startswith("public.items halted: ") and "leave the table to other sinks" in warning


def opened(lake: Lake) -> list[tuple[Any, ...]]:
    names = ("id", "details", "details__a", "details__b__c", "_undeclared")
    return [tuple(each[name] for name in names) for each in lake.rows("public__documents")]
