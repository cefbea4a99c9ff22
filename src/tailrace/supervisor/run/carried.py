"""One pipeline's sinks, carried by the Spark of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.contracts import Sink
from tailrace.spec import Pipeline, Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run.deliveries import SinkRunner
from tailrace.supervisor.run.letters import LetterWatch, keeping_of
from tailrace.supervisor.status import LetterStatus, SinkStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CarriedPipeline:
    """Its sinks deliver from `start` on. `drain` lets them finish their batches; it is over when `ended`."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, platform: Platform) -> None:
        letters = keeping_of(pipeline, Layout.of(platform))
        self.pipeline = pipeline
        self.letters = None if letters is None else LetterWatch(letters.journal)
        self.runners = [
            SinkRunner(spark, pipeline, entry.type, _sink(entry.config), platform, pipeline.provenance, letters)
            for entry in pipeline.entries
        ]

    def start(self) -> None:
        for runner in self.runners:
            runner.start()

    def drain(self) -> None:
        for runner in self.runners:
            runner.drain()

    @property
    def ended(self) -> bool:
        """Whether nothing of it delivers any more."""
        return not any(runner.is_alive() for runner in self.runners)

    def sinks(self, head: Callable[[str], int | None]) -> tuple[SinkStatus, ...]:
        """`head` tells where a source's log ends, if that is known."""
        end = head(self.pipeline.source_id)
        return tuple(runner.status(end) for runner in self.runners)

    def letter_status(self) -> tuple[LetterStatus, ...]:
        return () if self.letters is None else (self.letters.status(),)


def _sink(config: object) -> Sink:
    assert isinstance(config, Sink)
    return config
