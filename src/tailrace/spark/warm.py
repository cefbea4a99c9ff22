"""Keep Spark's classes as its JVM has them in memory, as `make test` does: Spark then starts with half the work. And
compile what tasks run.

python -m tailrace.spark.warm
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tailrace.machine.java import QUICK
from tailrace.sinks.typed_rows import TypedRows
from tailrace.spark.session import JAVA_OPTIONS, class_archive, open_session


def make(archive: Path, folder: Path) -> bool:
    """Let Spark do a little of everything and end its JVM, which then writes the archive. False: this Java cannot."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_suffix(f".{os.getpid()}")
    session = open_session(
        folder / "spark.log",
        master="local[2]",
        conf={JAVA_OPTIONS: f'{QUICK} "-XX:ArchiveClassesAtExit={draft}"'},
    )
    _work(session, folder)
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if draft.exists():
        draft.replace(archive)
    return archive.exists()


def compile_rows() -> None:
    """What makes the typed rows of a first load: else its first tasks compile it."""
    image = '{"n":1,"flag":true,"ratio":0.5,"price":"1.00","day":"2024-02-29","text":"a","doc":{}}'
    kinds = ("long", "boolean", "double", "decimal(9,2)", "date", "string", "string")
    schema = StructType()
    for name, kind in zip(json.loads(image), kinds, strict=True):
        schema.add(name, kind)
    list(TypedRows(schema, ("doc",)).of([pa.record_batch({"after": pa.array([image])})]))


def _work(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(100).selectExpr("id % 7 AS key", "'{\"a\": 1}' AS text", "map('a', 'b') AS headers")
    typed = rows.withColumn("row", F.from_json("text", "a bigint, b string")).select("key", "row.*", "headers")
    typed.groupBy("key").count().join(typed, "key").write.parquet(str(folder / "rows"))
    stream = spark.readStream.schema(typed.schema).parquet(str(folder / "rows"))

    def carry(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(_same, batch.schema).collect()

    query = stream.writeStream.foreachBatch(carry).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches


if __name__ == "__main__":
    started = time.monotonic()
    print("tailrace: keeping Spark's classes (once, up to a minute) …", flush=True)
    compile_rows()
    with tempfile.TemporaryDirectory() as temporary:
        kept = make(class_archive(), Path(temporary))
    told = f"Spark is ready ({time.monotonic() - started:.0f} s)" if kept else "this Java cannot keep them"
    print(f"tailrace: {told}")
