"""A stage for queries: a log, a sink that writes lines, and what runs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.sinks import LinesSink
from tests.spark.stage import Stage


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    """A log, a sink that writes lines, and the query between them; whatever was started is stopped."""
    with Stage(spark, tmp_path) as opened:
        yield opened


@pytest.fixture
def sink(tmp_path: Path) -> Callable[..., LinesSink]:
    return lambda **settings: LinesSink(id="lines", directory=str(tmp_path / "out"), **settings)
