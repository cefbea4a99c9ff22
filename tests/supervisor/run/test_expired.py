"""A sink that falls behind the log's bound while its target is away says so, and how to mend it; all others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.changelog import Bounds, Retention, earliest
from tailrace.contracts import Sink
from tailrace.spec import Pipeline, Platform, load_pipelines
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.deliveries import SinkRunner
from tailrace.testing.servers import NatsServer
from tailrace.testing.waiting import eventually
from tests.spark.logs import Shop

OPTIONAL = ("false", "{mode: required}")
QUORUM = ("true", "{mode: quorum, quorum: 1}")
DOCUMENT = """
metadata: {{name: feed}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@nowhere/x", tables: [public.t]}}}}
  commit_policy: {policy}
  sinks:
    - {{type: file, config: {{id: files, path: {folder}/files, roll: {{every: 100ms}}}}}}
    - type: nats
      config: {{id: late, url: "{url}", subject: s, stream: S, create_stream: {{}}, required: {required}}}
"""


class Feed:
    """A pipeline's runners over a log that a test appends to."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, required: str, policy: str) -> None:
        self.file = folder / "the feed.yaml"
        self.file.write_text(DOCUMENT.format(folder=folder, url=url, required=required, policy=policy))
        retry = {"initial": "50ms", "max": "50ms"}
        self.platform = Platform.from_document({"data_dir": str(folder / "data"), "retry": retry})
        self.path = Layout(self.platform.data_dir).log("shop")
        self.shop = Shop(self.path, segment_bytes=1500, manifest_bytes=900)
        [pipeline] = load_pipelines([self.file])
        self.files, self.late = (self._runner(spark, pipeline, sink) for sink in pipeline.sinks)

    def _runner(self, spark: SparkSession, pipeline: Pipeline, sink: Sink) -> SinkRunner:
        runner = SinkRunner(spark, pipeline, sink.id, sink, self.platform, pipeline.provenance)
        runner.start()
        return runner

    def delivered(self, runner: SinkRunner, offset: int) -> None:
        eventually(lambda: runner.offset() >= offset, 120, what=lambda: str(runner.status(0)))

    def trimmed(self) -> bool:
        """Whether the log has dropped what the laggard lacks: it may once the others have reported their place."""
        Retention(self.path).enforce(Bounds(max_bytes=0))
        return earliest(self.path) > self.late.offset()

    def end(self) -> None:
        for runner in (self.files, self.late):
            runner.drain()
            runner.join()
        self.shop.writer.close()


@pytest.fixture(params=[OPTIONAL, QUORUM], ids=["optional", "quorum"])
def feed(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, server: NatsServer) -> Iterator[Feed]:
    made = Feed(spark, tmp_path, server.url, *request.param)
    yield made
    made.end()


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.mark.timeout(300)
def test_a_laggard_is_expired_though_its_target_is_away_and_the_others_go_on(feed: Feed, server: NatsServer) -> None:
    end = feed.shop.commit(2)
    feed.delivered(feed.files, end)
    feed.delivered(feed.late, end)

    server.stop()
    for _ in range(20):
        end = feed.shop.commit(2)
    feed.delivered(feed.files, end)
    eventually(lambda: feed.late.status(end).state == "waiting", 60, what=lambda: str(feed.late.status(end)))
    assert feed.late.status(end).lag_rows == 40, "it waits, and the log has it all"

    eventually(feed.trimmed, 60, what=lambda: str(feed.late.status(end)))
    eventually(lambda: feed.late.status(end).state == "expired", 60, what=lambda: str(feed.late.status(end)))
    told = feed.late.status(end)
    assert told.offset == 2
    assert told.error is not None and told.error["code"] == "log.expired"
    assert told.error["hint"].endswith(f"tailrace snapshot '{feed.file}'")

    end = feed.shop.commit(3)
    feed.delivered(feed.files, end)
    assert (feed.files.status(end).state, feed.files.failure) == ("running", None)
    server.start()
    eventually(lambda: feed.late.failure, 60, what=lambda: str(feed.late.status(end)))
    assert feed.late.failure is not None and feed.late.failure.code == "log.expired"
    assert feed.late.status(end).state == "expired"
