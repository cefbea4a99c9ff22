"""Chunks of snapshots are read in Spark tasks, so that a large table is read by the whole cluster.

A task opens its own connection and stages files on storage that the tap sees too. A task that dies, or delivers late,
leaves a file nobody knows of, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.contracts import ChunkId, Extent, Staged
from tailrace.errors import SourceError, SparkError, TailraceError
from tailrace.machine.space import full_disk

Task = list[tuple[ChunkId, Extent]]
Outcome = Staged | TailraceError
Read = Callable[[Task], list[Outcome]]
"""Reads chunks one after another; each ends as a staged chunk, the last perhaps as an error."""


class ChunkSource(Protocol):
    """A source's configuration that can read chunks."""

    def read_chunk(self, chunk: ChunkId, extent: Extent, folder: Path) -> Staged: ...


@dataclass(frozen=True)
class ReadHere:
    """Reads in the process that calls it."""

    source: ChunkSource
    folder: Path

    def __call__(self, task: Task) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for chunk, extent in task:
            try:
                outcomes.append(self.source.read_chunk(chunk, extent, self.folder))
            except TailraceError as error:
                return [*outcomes, error]
            except Exception as error:  # a defect must not pass for a task that was lost, which is retried
                return [*outcomes, full_disk(error) or crashed(error)]
        return outcomes


@dataclass(frozen=True)
class ReadInSpark:
    """Reads in one Spark task. May be called from several threads at once."""

    spark: SparkSession
    here: ReadHere

    def __call__(self, task: Task) -> list[Outcome]:
        try:
            outcomes: list[Outcome] = self.spark.sparkContext.parallelize([task], 1).flatMap(self.here).collect()
        except (Py4JError, PySparkException, OSError) as error:
            text = str(error).strip().splitlines()
            lost = SparkError("spark.worker_lost", text[0] if text else "a task was lost", hint="It is retried")
            return [full_disk(error) or lost]
        return outcomes


def crashed(error: Exception) -> SourceError:
    """A defect of ours, met while a table was planned or read."""
    text = f"{type(error).__name__}: {error}"
    return SourceError("snapshot.crashed", text, hint="start again; if it comes back, please report it")
