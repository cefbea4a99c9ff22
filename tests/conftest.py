"""Real servers for every test: each is started once, when a test first asks for it, and shared from then on.

Tests share servers, so each makes its own database, topic, slot and publication names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.machine import java
from tailrace.testing.servers import (
    HttpEndpoint,
    KafkaBroker,
    KinesisServer,
    NatsServer,
    OpenSearchServer,
    PostgresServer,
    RedisServer,
    SeaweedServer,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.whole import System

ROOT = str(Path(__file__).parents[1])
sys.path.insert(0, ROOT)  # Spark's workers import sinks of the tests
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
# Started with `nohup` or in the background of a script, the tests and all they start would be deaf to these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


FIRST = (
    "test_crash.py",
    "capture",
    "test_lake_system.py",
    "test_mirror_system.py",
    "test_snapshot_system.py",
    "test_verify.py",
    "test_demo.py",
)
"""What begins first, so that no process is left alone with a long file at the end. Two pipelines at once take far
longer than one after another: the crash test goes beside `capture`, which has none."""


HEAVY = frozenset({"spark", "kafka", "opensearch", "system", "tap", "driver"})
"""Fixtures that start a JVM, or processes of Tailrace itself."""
NEWEST = 18
"""The version of PostgreSQL that `make quick` is content with."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files stay together, and in order within. What `make quick` runs is marked `quick`."""
    items.sort(key=lambda item: next((n for n, name in enumerate(FIRST) if name in item.path.parts), len(FIRST)))
    for item in items:
        if isinstance(item, pytest.Function) and _is_quick(item):
            item.add_marker("quick")


def _is_quick(item: pytest.Function) -> bool:
    """A test that is not marked as a long one, needs nothing heavy and has no time limit of its own, which only long
    tests do. Of a test that is run on several versions of PostgreSQL, the newest."""
    long = any(item.get_closest_marker(name) for name in ("slow", "soak", "timeout"))
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return not long and HEAVY.isdisjoint(item.fixturenames) and parameters.get("major", NEWEST) == NEWEST


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of this process. Compiling less makes it quick to start, which is what tests need."""
    from tailrace.sinks.delta import DeltaSink
    from tailrace.sinks.iceberg import IcebergSink
    from tailrace.spark.libraries import settings_for
    from tailrace.spark.session import open_session

    lake = [
        DeltaSink.from_document({"id": "delta", "path": "s3://x"}),
        IcebergSink.from_document({"id": "iceberg", "warehouse": "s3://x", "catalog_uri": "sqlite:///x"}),
    ]
    quick = {"spark.driver.extraJavaOptions": java.QUICK, **settings_for(lake)}
    # Twice the usual heap: hundreds of tests leave their tables in it, and some carry values of 25 MB.
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = open_session(log, master="local[2]", conf=quick, driver_memory="2g")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[int], PostgresServer]]:
    """`postgres_server(major)`: the running PostgreSQL of that major version."""
    running: dict[int, PostgresServer] = {}
    with ExitStack() as servers:

        def of_major(major: int) -> PostgresServer:
            if major not in running:
                running[major] = servers.enter_context(PostgresServer(major))
            return running[major]

        yield of_major


@pytest.fixture(scope="session")
def postgres(postgres_server: Callable[[int], PostgresServer]) -> PostgresServer:
    return postgres_server(18)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """It takes texts of 16 MiB."""
    with RedisServer(proto_max_bulk_len="16mb") as server:
        yield server


@pytest.fixture(scope="session")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer() as server:
        yield server


@pytest.fixture(scope="session")
def endpoint() -> Iterator[HttpEndpoint]:
    with HttpEndpoint() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearchServer]:
    """It takes requests of 30 MiB."""
    with OpenSearchServer(http__max_content_length="30mb") as server:
        yield server


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedServer]:
    with SeaweedServer() as server:
        yield server


@pytest.fixture
def system(postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[..., System]]:
    """`system(**snapshot)`: a pipeline over a database of its own; it is killed after the test if it still runs."""
    from tests.capture.running import Database
    from tests.whole import System

    made: list[System] = []
    with Database(postgres) as db:

        def make(**snapshot: Any) -> System:
            made.append(System(db, tmp_path, **snapshot))
            return made[-1]

        yield make
        for each in made:
            if each.victim.process is not None and each.victim.process.poll() is None:
                each.victim.kill("both")
