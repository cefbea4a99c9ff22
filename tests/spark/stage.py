"""What the query tests act on: a log, queries over it, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from pyspark.sql import SparkSession

from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.contracts import Delivery, Processor, Sink
from tailrace.spark.letters import LetterKeeping
from tailrace.spark.query import Query, start_query
from tailrace.spec import Batch, Sharding
from tests.spark.logs import Shop

PATIENCE_S = 120.0
DELIVERY = Delivery("shop-feed", "acme", "shop")


class Stage:
    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.out = directory / "out"
        self.state = directory / "state"
        self.shop = Shop(directory / "log")
        self._queries: list[Query] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self._queries:
            query.drain(PATIENCE_S)
        self.shop.writer.close()

    def start(
        self,
        sink: Sink,
        batch: Batch | None = None,
        sharding: Sharding | None = None,
        processors: Sequence[Processor] = (),
        deadline_s: float | None = None,
        letters: LetterKeeping | None = None,
    ) -> Query:
        query = start_query(
            self.spark,
            self.shop.path,
            sink,
            DELIVERY,
            provenance=PROVENANCE,
            state_dir=self.state,
            batch=batch,
            sharding=sharding,
            processors=processors,
            deadline_s=deadline_s,
            letters=letters,
        )
        self._queries.append(query)
        return query

    def delivered(self, query: Query, offset: int) -> None:
        """Wait until the query has delivered everything below `offset`."""
        wait_until(lambda: query.progress().offset >= offset, query)


def wait_until(condition: Callable[[], bool], query: Query | None = None) -> None:
    """Wait for `condition`; raise the query's error at once, or say what was delivered when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if query is not None and (error := query.error()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S} s: {query and query.progress()}")
        time.sleep(0.01)
