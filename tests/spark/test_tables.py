"""The log as table sinks read it: few changes on the driver, many in tasks, and the same rows either way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tailrace.change import CHANGES
from tailrace.changelog import Limits, Subscriber, Subscribers
from tailrace.contracts import Delivery
from tailrace.sinks.tables import Keeper, Log, TableSink
from tailrace.spark import tables
from tailrace.spark.carrier import canonical
from tailrace.spark.tables import SparkLog, TableCarrier
from tests.spark.logs import ORDERS, Shop


class HaltedKeeper:
    """Keeps nothing: its one table waits from the beginning."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def settle(self) -> None:
        self._log.retain("public.orders", 0)

    def warnings(self) -> tuple[str, ...]:
        return ()


class HaltedSink(TableSink):
    def columns(self) -> tuple[str, ...]:
        return ()

    def keeper(self, spark: SparkSession, delivery: Delivery, log: Log, state_dir: Path) -> Keeper:
        return cast(Keeper, HaltedKeeper(log))


@pytest.mark.parametrize("required", [True, False])
def test_a_table_that_waits_is_held_as_its_sink_is(required: bool, spark: SparkSession, tmp_path: Path) -> None:
    Shop(tmp_path / "log").commit(1)
    Subscribers(tmp_path / "log").report("shop/lake/public.gone", 0, required=True)
    sink, delivery = HaltedSink(id="lake", required=required), Delivery("shop", "acme", "db")
    carrier = TableCarrier(spark, sink, delivery, Limits(), log_path=tmp_path / "log", state_dir=tmp_path, tasks=1)
    assert Subscribers(tmp_path / "log").all() == [Subscriber("shop/lake/public.orders", 0, required)]
    [warning] = carrier.warnings()
    assert "shop/lake/public.gone" in warning


@pytest.mark.parametrize("last", [False, True])
def test_the_same_rows_wherever_they_are_read(
    last: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path / "log")
    end = shop.commit(40, 60, keys=30, ops=("c", "u", "d"))
    columns = list(canonical((*CHANGES.names, "event_id")).values())
    log = SparkLog(spark, tmp_path / "log", columns, Limits(), "test", tasks=2)

    def read() -> tuple[bool, list[Any]]:
        frame = log.read(7, end, ORDERS.id, last=last)
        plan = frame._jdf.queryExecution().optimizedPlan().toString()
        return "LocalRelation" in plan, sorted(frame.collect(), key=lambda row: row.seq)

    here, few = read()
    monkeypatch.setattr(tables, "SMALL_BYTES", 0)
    elsewhere, many = read()
    assert (here, elsewhere) == (True, False)
    assert few == many
    assert len(few) == (30 if last else 93)
