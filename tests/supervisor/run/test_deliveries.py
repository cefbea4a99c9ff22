"""A sink's life: it says so when the batch bound is its bottleneck, waits where a disk is full, and tells nothing
that is not known."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.changelog import Bounds, LogReader, Retention
from tailrace.contracts import SinkRetry
from tailrace.errors import RETRYABLE, SinkError
from tailrace.sinks.file import FileSink
from tailrace.spark.query import DeliveryProgress
from tailrace.spark.task import Count
from tailrace.spec import Platform, load_pipelines
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.deliveries import BOUND_WARNING_BATCHES, LONGEST_WISH_S, SinkRunner, _Pressure, pause_s
from tailrace.testing.waiting import eventually
from tests.spark.logs import Shop

DOCUMENT = """
metadata: {{name: feed}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@nowhere/x", tables: [public.t]}}}}
  sinks: [{{type: file, config: {{id: files, path: {folder}/files, roll: {{every: 100ms}}}}}}]
"""


def test_a_sink_that_never_started_has_no_lag(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(DOCUMENT.format(folder=tmp_path))
    [pipeline] = load_pipelines([file])
    [entry] = pipeline.spec.sinks
    no_spark: Any = None
    config: Any = entry.config
    runner = SinkRunner(no_spark, pipeline, entry.type, config, Platform(data_dir=tmp_path), PROVENANCE)
    status = runner.status(head=7730)
    assert (status.state, status.offset, status.lag_rows, status.lag_s) == ("starting", None, None, None)


def test_bytes_that_were_not_counted_are_not_zero() -> None:
    count = Count(3, None, 5)
    count.add(Count(2, 10, 7))
    assert count == Count(5, None, 7)
    counted = Count()
    counted.add(Count(2, 10, 7))
    assert counted == Count(2, 10, 7)


def test_a_run_of_batches_that_only_the_bound_ended_is_a_warning() -> None:
    pressure = _Pressure()
    for batches in range(1, BOUND_WARNING_BATCHES):
        assert pressure.warnings(DeliveryProgress(0, batches, bound_limited=batches)) == ()
    [warning] = pressure.warnings(DeliveryProgress(0, BOUND_WARNING_BATCHES, bound_limited=BOUND_WARNING_BATCHES))
    assert "max_events" in warning


def test_one_batch_that_took_all_there_was_ends_the_warning() -> None:
    pressure = _Pressure()
    assert pressure.warnings(DeliveryProgress(0, 20, bound_limited=20))
    assert pressure.warnings(DeliveryProgress(0, 21, bound_limited=20)) == ()
    assert pressure.warnings(DeliveryProgress(0, 30, bound_limited=29)) == ()


@pytest.mark.parametrize(("asked", "waited"), [(None, 2.0), (0, 2.0), (1.5, 2.0), (30, 30), (1e9, LONGEST_WISH_S)])
def test_a_server_that_asks_to_be_left_alone_is(asked: float | None, waited: float) -> None:
    assert pause_s(2.0, SinkError("sink.unavailable", "busy", retry_after=asked)) == waited


def test_attempts_may_be_numbered(tmp_path: Path) -> None:
    (tmp_path / "feed.yaml").write_text(DOCUMENT.format(folder=tmp_path))
    [pipeline] = load_pipelines([tmp_path / "feed.yaml"])
    [sink] = pipeline.sinks
    sink = sink.model_copy(update={"retry": SinkRetry(max_attempts=3, initial_wait_seconds=0.01, jitter=0)})
    no_spark: Any = None
    runner = SinkRunner(no_spark, pipeline, "file", sink, Platform(data_dir=tmp_path / "data"), PROVENANCE)
    away = SinkError("sink.unavailable", "nobody answers")
    for _ in range(2):
        runner._handle(away)
        assert (runner.status(0).state, runner.failure) == ("waiting", None)
    runner._handle(away)
    assert (runner.status(0).state, runner.failure) == ("failed", away)


class Waits(threading.Event):
    """Waits at once, and remembers for how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0)
        return False


def test_an_outage_of_a_day_is_a_wait_and_not_an_end(tmp_path: Path) -> None:
    (tmp_path / "feed.yaml").write_text(DOCUMENT.format(folder=tmp_path))
    [pipeline] = load_pipelines([tmp_path / "feed.yaml"])
    [sink] = pipeline.sinks
    no_spark: Any = None
    platform = Platform(data_dir=tmp_path / "data")
    runner = SinkRunner(no_spark, pipeline, "file", sink, platform, PROVENANCE)
    runner._halt = waits = Waits()
    away = SinkError("sink.unavailable", "nobody answers", hint="start the server")
    while sum(waits.seconds) < 24 * 3600:
        runner._handle(away)
        status = runner.status(7)
        assert (status.state, status.error, runner.failure) == ("waiting", away.as_dict(), None)
    longest = platform.retry.max.total_seconds() * (1 + platform.retry.jitter)
    assert max(waits.seconds) <= longest, "it is there again soon after its server"
    assert waits.seconds[0] < max(waits.seconds)


@pytest.fixture
def trimmed(tmp_path: Path) -> SinkRunner:
    """A sink without Spark or a target. It has had two changes, and the log no longer has what came next."""
    document = tmp_path / "the feed.yaml"
    document.write_text(DOCUMENT.format(folder=tmp_path))
    [pipeline] = load_pipelines([document])
    [sink] = pipeline.sinks
    layout = Layout(tmp_path / "data")
    shop = Shop(layout.log("shop"), segment_bytes=1500, manifest_bytes=900)
    for _ in range(20):
        shop.commit(2)
    plan(layout.sink(pipeline.name, sink.id), LogReader(shop.path).log_id, 2)
    Retention(shop.path).enforce(Bounds(max_bytes=0))
    no_spark: Any = None
    return SinkRunner(no_spark, pipeline, "file", sink, Platform(data_dir=layout.root), PROVENANCE)


def plan(state: Path, log: str, *ends: int) -> None:
    """A checkpoint with batches up to these offsets, of which the first was committed."""
    files = {"initial.json": '{"offset": 0}', "checkpoint/commits/0": "v1\n{}"}
    for number, end in enumerate(ends):
        files[f"checkpoint/offsets/{number}"] = f"v1\n{json.dumps({'log': log, 'offset': end})}"
    for name, text in files.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(text)


def test_a_place_that_the_log_no_longer_has_is_known_before_anybody_is_asked(
    trimmed: SinkRunner, tmp_path: Path
) -> None:
    trimmed.run()
    status = trimmed.status(40)
    assert (status.state, status.error and status.error["code"]) == ("expired", "log.expired")
    assert trimmed.failure is not None and trimmed.failure.code == "log.expired"
    assert trimmed.failure.hint.endswith(f"read the tables anew: tailrace snapshot '{tmp_path}/the feed.yaml'")


def test_a_sink_that_waits_inside_a_batch_is_expired_too(trimmed: SinkRunner) -> None:
    """Only its target knows whether it has that batch; until that says so there is no end to it."""
    path = trimmed._layout.log("shop")
    plan(trimmed._layout.sink("feed", "files"), LogReader(path).log_id, 2, 40)
    trimmed._halt = Waits()
    trimmed._handle(SinkError("sink.unavailable", "nobody answers"))
    status = trimmed.status(40)
    assert (status.state, status.error and status.error["code"]) == ("expired", "log.expired")
    assert trimmed.failure is None


def test_a_full_disk_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's JVM, which writes the checkpoint, may write nothing for a while."""
    (tmp_path / "feed.yaml").write_text(DOCUMENT.format(folder=tmp_path))
    [pipeline] = load_pipelines([tmp_path / "feed.yaml"])
    [sink] = pipeline.sinks
    assert isinstance(sink, FileSink)
    platform = Platform.from_document({"data_dir": str(tmp_path / "data"), "retry": {"initial": "50ms", "max": "50ms"}})
    shop = Shop(Layout(platform.data_dir).log("shop"))
    runner = SinkRunner(spark, pipeline, "file", sink, platform, PROVENANCE)
    with no_space_for(spark):
        runner.start()
        shop.commit(2)
        eventually(lambda: runner.status(0).error, 60)
        error = runner.status(0).error
        assert error is not None
        assert (error["code"], runner.failure) == ("disk.full", None), error
        assert error["code"] in RETRYABLE
        assert "free space" in error["hint"]
    eventually(lambda: runner.status(0).tables, 60, what=lambda: str(runner.status(0)))
    runner.drain()
    runner.join()
    assert [table.rows for table in runner.status(0).tables.values()] == [2]


@contextmanager
def no_space_for(spark: SparkSession) -> Iterator[None]:
    """Whatever the JVM writes to files, the system refuses."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm: int = gateway.proc.pid
    before = resource.prlimit(jvm, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, before)
