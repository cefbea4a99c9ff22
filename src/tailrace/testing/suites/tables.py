"""What every sink that keeps tables promises. Subclass, give the fixtures, and the promises become tests.

    class TestMyTables(TableSuite):
        @pytest.fixture
        def sink(self, tmp_path: Path) -> MySink: ...

        @pytest.fixture
        def rows(self, sink: MySink) -> ReadTable: ...

Changes come from a real log (`testing.feed`) and go through the sink's own keeper, as the query hands them to it. A
kill is an exception at a failpoint that nothing hears; the start after it knows only what is on the disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from tailrace.changelog import Limits
from tailrace.contracts import Delivery, Place, Processor
from tailrace.schema import TableSchema
from tailrace.sinks.tables import Keeper, TableSink
from tailrace.spark.carrier import canonical
from tailrace.spark.chain import SinkChain
from tailrace.spark.tables import SparkLog
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import Feed, schema_of

DELIVERY = Delivery("shop-feed", "acme", "shop")
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})
ITEMS = schema_of(2, "items", {"id": "bigint", "n": "integer", "note": "text"}, relation=200)
WIDER = schema_of(3, "orders", {"id": "bigint", "n": "bigint", "note": "text", "paid": "boolean"})

ReadTable = Callable[[TableSchema], list[dict[str, Any]]]
"""The fixture that reads back what the sink keeps of a table, by `id`."""
EVENTS_PER_READ = 3
"""Few, so that a table that catches up does it in several steps."""


class FedSink:
    """A table sink with a log of its own: deliver, break, start again."""

    def __init__(
        self, spark: SparkSession, sink: TableSink, folder: Path, processors: Sequence[Processor] = ()
    ) -> None:
        """`processors` stand before the sink's own."""
        self.spark, self.sink, self.feed = spark, sink, Feed(folder / "log")
        self._processors = tuple(processors)
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self.at = 0
        self.keeper = self._open()

    def keep(self, start: int | None = None) -> None:
        """Deliver what the feed has since the last time, or from `start` on."""
        span = self.feed.flush(self.at if start is None else start)
        self.keeper.keep(span)
        self.at = span.end

    def again(self, sink: TableSink | None = None) -> None:
        """Start anew, as after a crash, perhaps with another configuration."""
        self.sink = sink or self.sink
        self.keeper = self._open()
        self.keeper.settle()

    def _open(self) -> Keeper:
        place = Place(DELIVERY.pipeline, DELIVERY.tenant, "postgresql", {}, mirror=self.sink.mirrors())
        self.chain = SinkChain((*self._processors, *self.sink.chain()), place, self.state)
        self.chain.drops.begin()
        columns = list(canonical(self.sink.columns(), processed=bool(self.chain)).values())
        limits, name = Limits(max_events=EVENTS_PER_READ), f"{DELIVERY.pipeline}/{self.sink.id}"
        log = SparkLog(self.spark, self.feed.path, columns, limits, name, 2, self.chain)
        return self.sink.keeper(self.spark, DELIVERY, log, self.state)


class TableSuite:
    """The promises of every table sink whose tables mirror the source's."""

    dies_at: ClassVar[tuple[str, ...]] = ()
    """The failpoints that a new table's first batches pass, of the sink's own."""

    @pytest.fixture
    def sink(self) -> TableSink:
        """A sink with a place of its own, empty, whose tables mirror the source's."""
        raise NotImplementedError

    @pytest.fixture
    def rows(self, sink: TableSink) -> ReadTable:
        raise NotImplementedError

    @pytest.fixture
    def fed(self, spark: SparkSession, sink: TableSink, tmp_path: Path) -> FedSink:
        return FedSink(spark, sink, tmp_path)

    def test_its_docstring_says_how_it_absorbs_a_repeat(self, sink: TableSink) -> None:
        assert "repeat" in (type(sink).__doc__ or "")

    def test_insert_update_delete_within_and_across_batches(self, fed: FedSink, rows: ReadTable) -> None:
        feed = fed.feed
        for number in range(1, 6):
            feed.add(ORDERS, "c", {"id": number, "n": number, "note": "a"})
        fed.keep()
        assert [row["id"] for row in rows(ORDERS)] == [1, 2, 3, 4, 5]
        feed.add(ORDERS, "u", {"id": 1, "n": 10, "note": None}).add(ORDERS, "d", {"id": 2})
        feed.add(ORDERS, "c", {"id": 6, "n": 6, "note": "b"}).add(ORDERS, "u", {"id": 6, "n": 66, "note": "c"})
        feed.add(ORDERS, "c", {"id": 7, "n": 7, "note": "b"}).add(ORDERS, "d", {"id": 7})
        feed.add(ORDERS, "d", {"id": 3}).add(ORDERS, "c", {"id": 3, "n": 33, "note": "again"})
        feed.add(ORDERS, "d", {"id": 99}).add(ORDERS, "u", {"id": 8, "n": 8, "note": "not there before"})
        fed.keep()
        assert rows(ORDERS) == [
            {"id": 1, "n": 10, "note": None},
            {"id": 3, "n": 33, "note": "again"},
            {"id": 4, "n": 4, "note": "a"},
            {"id": 5, "n": 5, "note": "a"},
            {"id": 6, "n": 66, "note": "c"},
            {"id": 8, "n": 8, "note": "not there before"},
        ]

    def test_columns_the_source_did_not_send_keep_their_value(self, fed: FedSink, rows: ReadTable) -> None:
        """Across batches, within one, and through rows that get another key, twice in a row."""
        feed = fed.feed
        for number in range(1, 7):
            feed.add(ORDERS, "c", {"id": number, "n": 0, "note": f"long {number}"})
        fed.keep()
        unsent = ["note"]
        feed.add(ORDERS, "u", {"id": 1, "n": 1}, unchanged=unsent)
        feed.add(ORDERS, "u", {"id": 2, "n": 1, "note": "newer"}).add(ORDERS, "u", {"id": 2, "n": 2}, unchanged=unsent)
        feed.move(ORDERS, {"id": 3}, {"id": 30, "n": 3}, unchanged=unsent)
        feed.add(ORDERS, "u", {"id": 30, "n": 4}, unchanged=unsent)
        feed.add(ORDERS, "u", {"id": 4, "n": 5, "note": "newest"})
        feed.move(ORDERS, {"id": 4}, {"id": 40, "n": 6}, unchanged=unsent)
        feed.move(ORDERS, {"id": 40}, {"id": 41, "n": 7}, unchanged=unsent)
        feed.move(ORDERS, {"id": 6}, {"id": 60, "n": 6}, unchanged=unsent)
        feed.move(ORDERS, {"id": 60}, {"id": 61, "n": 7}, unchanged=unsent)
        feed.add(ORDERS, "u", {"id": 61, "n": 8}, unchanged=unsent)
        feed.add(ORDERS, "u", {"id": 5, "n": 8}, unchanged=unsent).add(ORDERS, "d", {"id": 5})
        feed.add(ORDERS, "c", {"id": 5, "n": 9, "note": None})
        fed.keep()
        assert rows(ORDERS) == [
            {"id": 1, "n": 1, "note": "long 1"},
            {"id": 2, "n": 2, "note": "newer"},
            {"id": 5, "n": 9, "note": None},
            {"id": 30, "n": 4, "note": "long 3"},
            {"id": 41, "n": 7, "note": "newest"},
            {"id": 61, "n": 8, "note": "long 6"},
        ]

    def test_a_truncate_and_what_follows_it(self, fed: FedSink, rows: ReadTable) -> None:
        """In one batch, and alone. Another table in between is left as it is."""
        fed.feed.add(ORDERS, "r", {"id": 1, "n": 1, "note": "a"}).add(ORDERS, "r", {"id": 2, "n": 1, "note": "a"})
        fed.feed.add(ITEMS, "c", {"id": 1, "n": 1, "note": "stays"})
        fed.feed.add(ORDERS, "t").add(ORDERS, "c", {"id": 2, "n": 2, "note": "b"})
        fed.feed.add(ORDERS, "u", {"id": 2, "n": 3, "note": "c"})
        fed.keep()
        assert rows(ORDERS) == [{"id": 2, "n": 3, "note": "c"}]
        fed.feed.add(ORDERS, "t")
        fed.keep()
        assert rows(ORDERS) == []
        assert rows(ITEMS) == [{"id": 1, "n": 1, "note": "stays"}]

    def test_a_repeat_changes_nothing(self, fed: FedSink, rows: ReadTable) -> None:
        """The same batch again, a batch that overlaps, and everything again by a sink that lost its files."""
        fed.feed.add(ORDERS, "c", {"id": 1, "n": 1, "note": "a"}).add(ORDERS, "c", {"id": 2, "n": 2, "note": "b"})
        fed.feed.add(ORDERS, "d", {"id": 2})
        assert fed.keeper.mark() == 0
        fed.keep()
        fed.keep(0)
        assert rows(ORDERS) == [{"id": 1, "n": 1, "note": "a"}]
        fed.feed.add(ORDERS, "u", {"id": 1, "n": 3, "note": "c"}).add(ORDERS, "c", {"id": 3, "n": 3, "note": "d"})
        fed.keep(0)
        expected = [{"id": 1, "n": 3, "note": "c"}, {"id": 3, "n": 3, "note": "d"}]
        assert rows(ORDERS) == expected
        shutil.rmtree(fed.state)
        fed.state.mkdir()
        fed.again()
        assert fed.keeper.mark() in (0, fed.at)
        fed.keep(0)
        assert rows(ORDERS) == expected
        assert fed.keeper.mark() == fed.at

    def test_a_table_follows_its_source(self, fed: FedSink, rows: ReadTable) -> None:
        """A column comes with its default, another gets a wider type, in the middle of a batch."""
        fed.feed.add(ORDERS, "c", {"id": 1, "n": 1, "note": "a"}).evolve(WIDER, {"paid": False})
        fed.feed.add(WIDER, "c", {"id": 2, "n": 1 << 40, "note": "b", "paid": True})
        fed.keep()
        assert rows(WIDER) == [
            {"id": 1, "n": 1, "note": "a", "paid": False},
            {"id": 2, "n": 1 << 40, "note": "b", "paid": True},
        ]

    def test_what_is_of_no_table_is_nothing_special(self, fed: FedSink) -> None:
        fed.feed.say()
        fed.keep()
        assert fed.keeper.mark() == fed.at and fed.keeper.warnings() == ()

    def test_killed_at_every_step(self, fed: FedSink, rows: ReadTable) -> None:
        """A batch of two tables with a truncate in it, killed at each failpoint in turn. Each start delivers again."""
        for place, name in enumerate(self.dies_at):
            orders, items = (
                schema_of(number, f"{table}{place}", {"id": "bigint", "n": "integer"}, relation=number)
                for number, table in ((10 + place, "orders"), (50 + place, "items"))
            )
            fed.feed.add(orders, "c", {"id": 1, "n": 1}).add(items, "c", {"id": 1, "n": 1})
            fed.feed.add(orders, "t").add(orders, "c", {"id": 2, "n": 2}).add(items, "u", {"id": 1, "n": 2})
            with dies_at(name):
                fed.keep()
            fed.again()
            fed.keep()
            fed.feed.add(orders, "c", {"id": 3, "n": 3}).add(items, "d", {"id": 1}).add(items, "c", {"id": 4, "n": 4})
            fed.keep()
            assert rows(orders) == [{"id": 2, "n": 2}, {"id": 3, "n": 3}], name
            assert rows(items) == [{"id": 4, "n": 4}], name
        assert fed.keeper.warnings() == ()
