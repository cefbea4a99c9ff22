"""A table's first load: rows that are new are appended, what the stream touched meanwhile is merged, nothing twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tailrace.contracts import Span
from tailrace.sinks.lake.table import SinkTable
from tailrace.sinks.lake.target import Target
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import Feed, schema_of
from tests.sinks.lake.lake import Lake

pytestmark = pytest.mark.timeout(420)  # the first of them compiles, and Delta rolls back many times

MakeLake = Callable[..., Lake]
Row = dict[str, Any]
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})
UNSENT = ["note"]


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Few rows are appended as many are. Whether each such append was possible."""
    found: list[bool] = []
    append = SinkTable._append_typed

    def noted(self: SinkTable, *given: Any) -> bool:
        found.append(append(self, *given))
        return found[-1]

    monkeypatch.setattr("tailrace.sinks.lake.table.MANY", 0)
    monkeypatch.setattr(SinkTable, "_append_typed", noted)
    return found


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first word of each statement that wrote rows."""
    found: list[str] = []
    execute = Target.execute_under

    def noted(self: Target, settings: Any, statement: str) -> None:
        word = statement.split(" ", 1)[0]
        found.extend([word] if word in ("INSERT", "MERGE") else [])
        execute(self, settings, statement)

    monkeypatch.setattr(Target, "execute_under", noted)
    return found


def row(number: int, n: int = 0, note: str = "read") -> Row:
    return {"id": number, "n": n, "note": note}


def numbers(lake: Lake) -> list[tuple[int, int, str]]:
    return [(each["id"], each["n"], each["note"]) for each in lake.rows()]


def test_new_rows_are_appended_and_only_what_was_touched_is_merged(
    lake: MakeLake, statements: list[str], typed: list[bool]
) -> None:
    table = lake()
    table.feed.read(ORDERS, [row(1), row(2), row(3)])
    table.keep()
    assert statements == ["INSERT"]
    table.feed.add(ORDERS, "u", {"id": 2, "n": 1}, unchanged=UNSENT).add(ORDERS, "c", row(5, 1, "made"))
    table.feed.read(ORDERS, [row(4), row(5, 1, "made"), row(6), row(7), row(8)])
    table.feed.add(ORDERS, "u", {"id": 6, "n": 2}, unchanged=UNSENT).add(ORDERS, "d", {"id": 4})
    table.feed.move(ORDERS, {"id": 7}, {"id": 70, "n": 3}, unchanged=UNSENT)
    table.keep()
    assert statements == ["INSERT", "INSERT", "MERGE"]
    table.feed.read(ORDERS, [row(9), row(10)])
    table.keep()
    assert statements == ["INSERT", "INSERT", "MERGE", "INSERT"]
    assert typed == [True, True, True]
    assert numbers(table) == [
        (1, 0, "read"),
        (2, 1, "read"),
        (3, 0, "read"),
        (5, 1, "made"),
        (6, 2, "read"),
        (8, 0, "read"),
        (9, 0, "read"),
        (10, 0, "read"),
        (70, 3, "read"),
    ]


def test_a_second_snapshot_is_merged_in_parts(lake: MakeLake, statements: list[str]) -> None:
    """In batches of the usual size, for a batch of a snapshot may be larger."""
    table = lake()
    table.feed.read(ORDERS, [row(1), row(2)])
    table.keep()
    table.feed.read(ORDERS, [row(1), row(2, 5), row(3)], "second").read(ORDERS, [row(4), row(5)], "second")
    table.keep()
    assert statements == ["INSERT", "MERGE", "MERGE"]
    assert numbers(table) == [
        (1, 0, "read"),
        (2, 5, "read"),
        (3, 0, "read"),
        (4, 0, "read"),
        (5, 0, "read"),
    ]


def test_rows_that_were_deleted_stay_marked(lake: MakeLake, statements: list[str]) -> None:
    table = lake(soft_delete=True)
    table.feed.add(ORDERS, "c", row(1)).add(ORDERS, "d", {"id": 1}).read(ORDERS, [row(2), row(3)])
    table.keep()
    table.feed.add(ORDERS, "d", {"id": 3}).read(ORDERS, [row(4)])
    table.keep()
    assert "INSERT" in statements
    found = [(each["id"], each["_is_deleted"], each["_deleted_at"] is None) for each in table.rows()]
    assert found == [(2, False, True), (3, True, False), (4, False, True)]


def test_a_value_that_does_not_fit_follows_the_policy_in_both_parts(lake: MakeLake) -> None:
    """The column becomes text between the rows that are appended and those that are merged."""
    table = lake()
    table.feed.read(ORDERS, [row(1)])
    table.keep()
    table.feed.add(ORDERS, "u", {"id": 1, "n": "many", "note": "a"}).read(ORDERS, [row(2), row(3)])
    table.keep()
    assert [(each["id"], each["n"]) for each in table.rows()] == [(1, "many"), (2, "0"), (3, "0")]
    table.feed.read(ORDERS, [{"id": 4, "n": "few", "note": "b"}])
    table.keep()
    assert [each["n"] for each in table.rows()] == ["many", "0", "0", "few"]


def test_rows_that_only_spark_can_read(lake: MakeLake, statements: list[str], typed: list[bool]) -> None:
    """One value is enough; nothing of what was tried before is left."""
    late, table = schema_of(1, "orders", {"id": "bigint", "at": "timestamp with time zone"}), lake()
    table.feed.read(
        late, [{"id": 1, "at": "2024-02-29T12:00:00.000001Z"}, {"id": 2, "at": "10000-01-01T00:00:00.000000Z"}]
    )
    table.keep()
    table.feed.read(late, [{"id": 3, "at": "2024-02-29T12:00:00.000002Z"}, {"id": 4, "at": None}])
    table.keep()
    assert (typed, statements) == ([False, True], ["INSERT", "INSERT", "INSERT"])
    found = table.sql("SELECT id, unix_micros(at) - unix_micros(timestamp'2024-02-29T12:00:00Z') n FROM {} ORDER BY id")
    assert [each["n"] for each in found] == [1, 251_693_092_800_000_000, 2, None]


def test_a_value_that_does_not_fit_halfway_through_a_load(lake: MakeLake, typed: list[bool]) -> None:
    table = lake()
    table.feed.read(ORDERS, [row(1), {"id": 2, "n": "many", "note": "a"}])
    table.keep()
    table.feed.read(ORDERS, [row(3)])
    table.keep()
    assert typed == [False, False, False]  # the last two with a column that became text
    assert [(each["id"], each["n"]) for each in table.rows()] == [(1, "0"), (2, "many"), (3, "0")]


@pytest.mark.parametrize("then", ["the same batch", "a longer one", "a shorter one"])
def test_killed_between_the_rows_and_the_merge(lake: MakeLake, statements: list[str], then: str) -> None:
    """What was appended is not appended again, wherever the next batch ends."""
    table = lake()
    table.feed.read(ORDERS, [row(1), row(2)])
    table.keep()
    table.feed.add(ORDERS, "u", {"id": 2, "n": 1}, unchanged=UNSENT).read(ORDERS, [row(3), row(4), row(5)])
    table.feed.add(ORDERS, "u", {"id": 4, "n": 7}, unchanged=UNSENT)
    with dies_at("lake.load.before_merge"):
        table.keep()
    assert statements == ["INSERT", "INSERT"]
    expected = [(1, 0, "read"), (2, 1, "read"), (3, 0, "read"), (4, 7, "read"), (5, 0, "read")]
    if then == "a longer one":
        table.feed.read(ORDERS, [row(6)])
        expected.append((6, 0, "read"))
    table.again()
    if then == "a shorter one":
        table.keeper.keep(Span(table.feed.log_id, 2, 6))
    table.keep()
    assert numbers(table) == expected
    assert statements.count("INSERT") == (3 if then == "a longer one" else 2)


def test_a_table_rolled_back_into_its_load_catches_up(lake: MakeLake) -> None:
    """To before the load, into the middle of a batch of it, and to its end."""
    table = lake()
    table.feed.read(ORDERS, [row(1), row(2)])
    table.keep()
    table.feed.add(ORDERS, "u", {"id": 2, "n": 1}, unchanged=UNSENT).read(ORDERS, [row(3), row(4)])
    table.feed.add(ORDERS, "d", {"id": 3})
    table.keep()
    expected = [(1, 0, "read"), (2, 1, "read"), (4, 0, "read")]
    assert numbers(table) == expected
    versions = [each.id for each in table.target().versions()]
    for version in versions[-3:]:
        table.target().roll_back(version)
        table.again()
        assert numbers(table) == expected, version
        table.feed.add(ORDERS, "u", {"id": 1, "n": version % 1000}, unchanged=UNSENT)
        table.keep()
        expected[0] = (1, version % 1000, "read")
        assert numbers(table) == expected, version


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_random_loads_with_a_stream_beside_them(lake: MakeLake, seed: int) -> None:
    """Chunks, changes, truncates, cuts anywhere, kills and repeats: the table equals the source."""
    print(f"seed {seed}")
    chance, table = random.Random(seed), lake()
    source = {number: row(number) for number in range(0, 60, 2)}
    for low in range(0, 60, 10):
        for _ in range(chance.randint(0, 5)):
            _change(chance, table.feed, source, low)
        table.feed.read(ORDERS, [dict(source[key]) for key in sorted(source) if low <= key < low + 10])
        if chance.random() < 0.4:
            place = chance.choice(["lake.load.before_merge", "lake.step.after_commit"])
            with suppress(AssertionError), dies_at(place):  # a batch need not pass it
                table.keep()
            table.again()
        if chance.random() < 0.5:
            table.keep()
    table.keep()
    assert table.rows() == [source[key] for key in sorted(source)]


def _change(chance: random.Random, feed: Feed, source: dict[int, Row], unread: int) -> None:
    """A change of any row. Rows from `unread` on are sent whole, for nobody has read them yet."""
    number, other = chance.randrange(60), chance.randrange(60)
    lacks = UNSENT if number < unread else None
    if number not in source:
        source[number] = row(number, chance.randrange(100), "made")
        feed.add(ORDERS, "c", source[number])
    elif chance.random() < 0.3:
        del source[number]
        feed.add(ORDERS, "d", {"id": number})
    elif other not in source and chance.random() < 0.4:
        source[other] = {**source.pop(number), "id": other, "n": 1}
        feed.move(ORDERS, {"id": number}, _sent(source[other], lacks), unchanged=lacks)
    else:
        source[number] = {**source[number], "n": chance.randrange(100)}
        feed.add(ORDERS, "u", _sent(source[number], lacks), unchanged=lacks)


def _sent(image: Row, lacks: list[str] | None) -> Row:
    return {name: each for name, each in image.items() if name not in (lacks or ())}
