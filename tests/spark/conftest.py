"""One Spark session per test process; sinks of these tests must be importable in its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

from tailrace.spark.session import open_session  # noqa: E402
from tests.spark.sinks import LinesSink  # noqa: E402
from tests.spark.stage import Stage  # noqa: E402


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = open_session(tmp_path_factory.mktemp("spark") / "spark.log", master="local[2]")
    yield session
    session.stop()


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    """A log, a sink that writes lines, and the query between them; whatever was started is stopped."""
    with Stage(spark, tmp_path) as opened:
        yield opened


@pytest.fixture
def sink(tmp_path: Path) -> Callable[..., LinesSink]:
    return lambda **settings: LinesSink(id="lines", directory=str(tmp_path / "out"), **settings)
