"""The log as table sinks read it: few changes on the driver, many in tasks, and the same rows either way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.change import CHANGES
from tailrace.changelog import Limits
from tailrace.spark import tables
from tailrace.spark.carrier import canonical
from tailrace.spark.tables import SparkLog
from tests.spark.logs import ORDERS, Shop


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
