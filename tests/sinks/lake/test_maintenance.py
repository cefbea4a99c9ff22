"""Upkeep of real tables: rows and marks stay, files and snapshots go, and the writer survives it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.sinks.lake.maintenance import Maintenance, compaction
from tailrace.sinks.lake.target import Target
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import schema_of
from tailrace.testing.waiting import eventually
from tests.sinks.lake.conftest import MakeSink, sink_of
from tests.sinks.lake.lake import Lake

MakeLake = Callable[..., Lake]
ORDERS = schema_of(1, "orders", {"id": "bigint", "n": "integer", "note": "text"})
PASS = Maintenance(compaction_file_threshold=2, compaction_max_rows_per_batch=100)
NOW = {**PASS.model_dump(), "enabled": True, "compaction_interval_seconds": 1e-6}


@pytest.fixture(params=["delta", "iceberg2"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSink:
    return lambda **options: sink_of(request.param, tmp_path, **options)


def insert(table: Lake, *numbers: int) -> None:
    for number in numbers:
        table.feed.add(ORDERS, "c", {"id": number, "n": number, "note": "a"})
    table.keep()


def compact(target: Target) -> None:
    found = compaction(target.files(), PASS)
    assert found is not None
    target.compact(found)


def tend(target: Target) -> None:
    found = compaction(target.files(), PASS)
    if found is not None:
        target.compact(found)
    target.expire(datetime.now(UTC))


def grow_old(table: Lake) -> None:
    """Delta knows by its files how old versions are, to the minute."""
    for place, file in enumerate(sorted(table.state.parent.glob("lake/*/_delta_log/[0-9]*"))):
        os.utime(file, (time.time() - 7200 + place,) * 2)


def test_marks_survive_compaction_and_expiry(lake: MakeLake) -> None:
    """Those of others too. Then a repeat changes nothing, and the next batch is applied."""
    table = lake(maintenance=NOW)
    insert(table, 1, 2)
    other = table.sink.target(table.spark, "public__orders", "other/lake/log-9")
    other.execute(f"INSERT INTO {other.sql_name} VALUES (100, 0, 'theirs')", 7)
    insert(table, 3)
    table.feed.add(ORDERS, "u", {"id": 1, "n": 10, "note": "b"})
    table.keep()
    target, rows = table.target(), table.rows()
    care = table.keeper.care()
    assert care is not None
    care.tend()
    debt = care.debts()["public.orders"]
    assert (debt.files, debt.small_files, debt.delete_files) == (1, 0, 0) and care.warnings() == ()
    grow_old(table)
    target.expire(datetime.now(UTC))
    assert target.version_count() < debt.snapshots
    assert table.rows() == rows and target.mark() == 4 and other.mark() == 7
    assert [each.mark for each in target.versions()][-1] == 4
    state = target.state()
    (table.state / "tables.json").unlink()
    table.again()
    table.keep(0)
    assert target.state() == state and table.rows() == rows
    table.feed.add(ORDERS, "d", {"id": 2})
    table.keep()
    assert [row["id"] for row in table.rows()] == [1, 3, 100] and target.mark() == 5


def test_a_batch_that_loses_to_compaction_is_repeated(lake: MakeLake, tmp_path: Path) -> None:
    """The files are rewritten after the merge has read them and before it commits."""
    table = lake()
    insert(table, 1)
    insert(table, 2)
    reading, go = tmp_path / "reading", tmp_path / "go"
    merges = gate_merges(table, reading, go)
    table.feed.add(ORDERS, "u", {"id": 1, "n": 9, "note": "b"})
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(table.keep)
        eventually(lambda: reading.exists() or kept.done(), 120)
        compact(table.target())
        go.touch()
        kept.result()
    assert len(merges) == 2, "there was no conflict"
    assert [(row["id"], row["n"]) for row in table.rows()] == [(1, 9), (2, 2)]


def gate_merges(table: Lake, reading: Path, go: Path) -> list[int]:
    """A merge waits for `go` in the middle of its reading. Returns their marks, one for each attempt."""
    target = table.keeper._table("public.orders").target
    merge, marks = target.merge, []

    @F.udf(returnType="boolean", useArrow=False)
    def passed(_: Any) -> bool:
        try:
            reading.touch(exist_ok=False)
        except FileExistsError:  # only one task waits: the compaction needs room too
            return True
        return eventually(go.exists, 120)

    def gated(rows: DataFrame, statement: Callable[[str, str], str], mark: int) -> None:
        marks.append(mark)
        merge(rows.coalesce(1).filter(passed(F.col("id"))), statement, mark)

    target.merge = gated  # type: ignore[method-assign]
    return marks


@pytest.mark.parametrize(
    ("make", "places"),
    [
        ("delta", ("delta.expire.before_log", "delta.expire.after_checkpoint")),
        ("iceberg2", ("iceberg.compact.before_deletes",)),
    ],
    indirect=["make"],
)
def test_a_crash_inside_upkeep(lake: MakeLake, places: tuple[str, ...]) -> None:
    """Rows and mark are as before, the stream goes on, and the next pass does the rest."""
    table = lake()
    insert(table, 1, 2)
    table.feed.add(ORDERS, "u", {"id": 1, "n": 0, "note": "b"})
    insert(table, 3)
    target, rows, mark = table.target(), table.rows(), table.target().mark()
    grow_old(table)
    for place in places:
        with dies_at(place):
            tend(target)
        table.again()
        table.keep(0)
        assert (table.rows(), table.target().mark()) == (rows, mark)
    insert(table, 4)
    grow_old(table)
    tend(target)
    assert (len(target.files()), target.delete_files()) == (1, 0)
    assert table.rows() == [*rows, {"id": 4, "n": 4, "note": "a"}]


@pytest.mark.parametrize("make", ["delta"], indirect=True)
def test_expiry_keeps_what_a_restored_delta_table_needs(lake: MakeLake) -> None:
    """Until it has a mark of its own, its mark is that of the version it was restored to."""
    table = lake()
    insert(table, 1)
    first = table.target().state()
    insert(table, 2)
    assert first is not None
    target = table.target()
    target.roll_back(first)
    grow_old(table)
    target.expire(datetime.now(UTC))
    assert target.mark() == 1
    table.again()
    assert target.mark() == 2 and len(table.rows()) == 2
    grow_old(table)
    target.expire(datetime.now(UTC))
    assert not [each for each in target.versions() if each.operation == "RESTORE"]
    assert table.target().mark() == 2
