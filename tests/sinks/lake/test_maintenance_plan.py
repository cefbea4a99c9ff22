"""What a compaction pass rewrites, and when upkeep is due. No Spark."""

from __future__ import annotations

from typing import cast

import pytest
from pydantic import ValidationError

from tailrace.errors import SinkError
from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.lake.maintenance import SMALL_BYTES, LakeCare, Maintenance, Turns, compaction, small_files
from tailrace.sinks.lake.target import Compaction, DataFile, Target, superseded
from tailrace.sinks.tables import Debt

KEYS = {"compaction_file_threshold": 3, "compaction_max_rows_per_batch": 100}


def files(*sizes: tuple[int, int], deleted: int = 0) -> list[DataFile]:
    return [DataFile(size, rows, deleted, "") for size, rows in sizes]


def planned(found: list[DataFile]) -> Compaction | None:
    return compaction(found, Maintenance.model_validate(KEYS))


def test_defaults_are_those_of_the_names() -> None:
    assert Maintenance().model_dump() == {
        "enabled": False,
        "expire_snapshots_interval_seconds": 3600,
        "expire_snapshots_older_than_seconds": 86400,
        "compaction_interval_seconds": 7200,
        "compaction_file_threshold": 10,
        "compaction_max_rows_per_batch": 500_000,
    }


def test_delta_never_removes_what_a_commit_under_way_has_written() -> None:
    young = {"expire_snapshots_older_than_seconds": 60}
    with pytest.raises(ValidationError, match="a commit under way"):
        DeltaSink.from_document({"id": "lake", "path": "/lake", "maintenance": young})


def test_too_few_small_files_are_left_alone() -> None:
    assert planned(files((10, 1), (20, 1))) is None
    assert planned(files((10, 1), (20, 1), (SMALL_BYTES, 1))) is None


def test_the_smallest_files_that_fit_a_pass() -> None:
    """Only files below 31 bytes can be taken, and those have no more than 100 rows together."""
    assert planned(files((40, 50), (10, 30), (30, 40), (20, 30), (50, 10))) == Compaction(files=3, below=31)


def test_files_too_large_for_two_in_a_pass_are_not_small() -> None:
    assert planned(files((10, 51), (20, 51), (30, 51), (40, 10))) is None


def test_files_of_one_size_are_bounded_by_their_number() -> None:
    assert planned(files(*[(10, 40)] * 5)) == Compaction(files=2, below=11)


def test_a_tie_at_the_bound_waits_where_something_else_is_merged() -> None:
    assert planned(files((10, 20), (15, 20), (20, 40), (20, 40))) == Compaction(files=2, below=16)


def test_files_alone_in_their_partition_do_not_count() -> None:
    found = [DataFile(10, 1, 0, f"p{number}") for number in range(5)]
    assert small_files(found, 100) == [] and planned(found) is None


def test_files_full_of_deleted_rows() -> None:
    """The fullest first, within the bound; a file beyond it is left as it is."""
    large = SMALL_BYTES * 2
    worn = [DataFile(large, 60, 30, ""), DataFile(large, 90, 80, ""), DataFile(large, 50, 5, "")]
    assert planned(worn) == Compaction(files=1, deleted_share=80 / 90)
    assert planned([DataFile(large, 101, 90, "")]) is None


def test_marks_of_another_log_of_the_same_sink_are_superseded() -> None:
    assert superseded("shop/lake/log-1", "shop/lake/log-2")
    assert not superseded("shop/lake/log-2", "shop/lake/log-2")
    assert not superseded("other/lake/log-1", "shop/lake/log-2")


class Table:
    """A target that counts, and fails as told."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures: list[Exception] = []

    def files(self) -> list[DataFile]:
        return files(*[(10, 1)] * 3)

    def delete_files(self) -> int:
        return 1

    def version_count(self) -> int:
        return 2

    def compact(self, compaction: Compaction) -> None:
        if self.failures:
            raise self.failures.pop()
        self.done.append("compact")

    def expire(self, before: object) -> None:
        self.done.append("expire")

    def is_conflict(self, error: BaseException) -> bool:
        return "conflict" in str(error)


class Caring:
    def __init__(self) -> None:
        self.now, self.table = 0.0, Table()
        keys = {**KEYS, "compaction_interval_seconds": 20, "expire_snapshots_interval_seconds": 10}
        self.turns = Turns()
        tables = {"public.orders": cast(Target, self.table)}
        self.care = LakeCare(Maintenance.model_validate(keys), lambda: tables, self.turns, lambda: self.now)

    def at(self, now: float) -> float:
        self.now = now
        return self.care.tend()


@pytest.fixture
def caring() -> Caring:
    return Caring()


def test_each_job_has_its_interval(caring: Caring) -> None:
    assert caring.at(0) == 10 and caring.table.done == []
    assert caring.care.debts() == {"public.orders": Debt(files=3, small_files=3, delete_files=1, snapshots=2)}
    assert caring.at(10) == 10 and caring.table.done == ["expire"]
    assert caring.at(20) == 10 and caring.table.done == ["expire", "compact", "expire"]


def test_a_pass_that_loses_to_a_batch_has_the_table_alone(caring: Caring) -> None:
    caring.table.failures = [SinkError("x", "conflict")]
    caring.at(20)
    assert "compact" in caring.table.done and caring.care.warnings() == ()


def test_what_fails_is_a_warning_until_the_next_time(caring: Caring) -> None:
    caring.table.failures = [SinkError("x", "conflict"), SinkError("x", "conflict")]
    caring.at(20)
    [warning] = caring.care.warnings()
    assert "compaction of public.orders failed, next try within 20 s: conflict" in warning
    assert caring.table.done == ["expire"]
    caring.at(40)
    assert caring.care.warnings() == () and "compact" in caring.table.done
