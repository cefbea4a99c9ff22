"""A lake of each format, fed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.delta import DeltaSink
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake import LakeSink
from tests.sinks.lake.lake import Lake

HERE = Path(__file__).parent
DELTA_TOO = (
    "test_a_mirror_equals_its_source_under_the_chain",
    "test_a_column_cannot_take_the_name_of_another",
    "test_a_key_names_its_row",
    "test_a_kill_between_two_steps_is_taken_up_by_the_next_start[delta-a_column_is_dropped_and_made_anew]",
    "test_a_kill_between_two_steps_is_taken_up_by_the_next_start[delta-a_type_becomes_text]",
    "test_a_kill_between_two_steps_is_taken_up_by_the_next_start[delta-columns_move]",
    "test_a_layout_that_a_table_cannot_have_halts_it_alone",
    "test_a_crash_inside_upkeep",
    "test_a_table_rolled_back_into_its_load_catches_up",
    "test_a_table_that_was_rolled_back_catches_up",
    "test_killed_between_the_rows_and_the_merge[delta-a shorter one]",
    "test_random_loads_with_a_stream_beside_them[delta-1]",
    "test_a_table_made_anew_holds_nothing_of_the_old_one",
    "test_names_are_what_the_source_has",
    "test_no_table_is_written_outside_the_lake",
    "test_names_and_values_stay_what_they_are_through_every_statement",
    "test_values_beyond_a_parsers_limits_and_types_that_come_later",
    "test_what_fails_in_one_table_halts_that_table_alone",
    "test_tables_in_a_bucket",
)
MakeSink = Callable[..., LakeSink]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Delta's commits take seconds on small machines: what depends less on the format is tried with Iceberg alone, and
    with Delta in the soak."""
    for item in items:
        names = {item.name, item.name.partition("[")[0]}
        if item.path.parent == HERE and "[delta" in item.name and names.isdisjoint(DELTA_TOO):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=["delta", pytest.param("iceberg2", marks=pytest.mark.soak), "iceberg3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSink:
    """`make(**options)`: a sink of the format."""
    return lambda **options: sink_of(request.param, tmp_path, **options)


def sink_of(kind: str, folder: Path, **options: Any) -> LakeSink:
    options = {"write_mode": "upsert", "id": "lake", **options}
    if kind == "delta":
        return DeltaSink.from_document({**options, "path": str(folder / "lake")})
    catalog = f"sqlite:///{folder}/catalog.db"
    where = {"warehouse": str(folder / "lake"), "catalog_uri": catalog, "format_version": int(kind[-1])}
    return IcebergSink.from_document({**options, **where})


@pytest.fixture
def lake(spark: SparkSession, make: MakeSink, tmp_path: Path) -> Callable[..., Lake]:
    """`lake(*processors, **options)`: a sink with a feed of its own."""
    return lambda *processors, **options: Lake(spark, make(**options), tmp_path, processors)
