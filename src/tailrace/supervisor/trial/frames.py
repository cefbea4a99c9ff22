"""Processors over DataFrames, tried out: the only ones that need Spark."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.change import PROCESSED, PROCESSED_DDL
from tailrace.contracts import Place, Step
from tailrace.errors import ProcessorError
from tailrace.jvm import reason
from tailrace.processors.frames import FrameProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def framed(processor: FrameProcessor, place: Place) -> Step:
    """The processor as a step over batches, which keeps their order."""
    from pyspark.errors import PySparkException

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = pa.Table.from_batches([batch])
        try:
            frame = local_spark().createDataFrame(rows, PROCESSED_DDL)
            found = processor.transform(frame, place).toArrow().select(PROCESSED.names).cast(PROCESSED)
        except PySparkException as error:
            message = f"'{processor.id}' failed: {reason(error)}"
            raise ProcessorError("processor.failed", message, hint="try fewer samples to find which one") from None
        return _ordered(found, batch)

    return step


def _ordered(found: pa.Table, like: pa.RecordBatch) -> pa.RecordBatch:
    places = {each: place for place, each in enumerate(_ids(like))}
    order = sorted(range(found.num_rows), key=[places[each] for each in _ids(found)].__getitem__)
    table = found.take(pa.array(order, pa.int64())).combine_chunks()
    return table.to_batches()[0] if table.num_rows else like.slice(0, 0)


def _ids(rows: pa.Table | pa.RecordBatch) -> list[tuple[int, str | None]]:
    columns: list[list[Any]] = [rows.column(name).to_pylist() for name in ("seq", "part")]
    return list(zip(*columns, strict=True))


@lru_cache(maxsize=1)
def local_spark() -> SparkSession:
    """The session of this process: one that is there, or a small one of its own."""
    from pyspark.sql import SparkSession

    from tailrace.spark.session import open_session

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    folder = Path(tempfile.mkdtemp(prefix="tailrace-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    session = open_session(folder / "spark.log", master="local[1]")
    atexit.register(session.stop)
    return session
