from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tailrace.spark.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process, whoever opened it first."""
    active = SparkSession.getActiveSession()
    session = active or open_session(tmp_path_factory.mktemp("spark") / "spark.log", master="local[2]")
    yield session
    if active is None:
        session.stop()
