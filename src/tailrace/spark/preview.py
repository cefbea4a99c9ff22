"""Records as a sink's tasks are given them, for somebody who looks: nothing is delivered, and the sink is not asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tailrace.changelog import LogReader, Owner
from tailrace.contracts import Delivery, Letter, Place, Processor, Provenance, RecordSink
from tailrace.render.envelopes import value_column
from tailrace.render.rendering import Rendering
from tailrace.spark.chain import SinkChain
from tailrace.spark.letters import ChainLetters, LetterFiles
from tailrace.spark.records import collected, rendered
from tailrace.spark.source import ReadOptions, own_source
from tailrace.spark.task import restored

SHOWN = ("seq", "op", "schema", "table")


class Preview:
    """Of one sink. `folder` is for what its chain says while it runs, and nobody else's."""

    def __init__(
        self,
        spark: SparkSession,
        log_path: Path,
        sink: RecordSink,
        delivery: Delivery,
        *,
        provenance: Provenance,
        processors: Sequence[Processor],
        folder: Path,
    ) -> None:
        self._spark, self._log_path = spark, log_path
        self._letters = LetterFiles(folder / "letters")
        hides = any(each.hides() for each in processors)
        letters = ChainLetters(self._letters, sink.id, LogReader(log_path).log_id, hides)
        place = Place(delivery.pipeline, delivery.tenant, provenance.connector, {})
        self._chain = SinkChain(tuple(processors), place, folder, letters)
        source = own_source(f"preview:{Owner(delivery.pipeline, sink.id).name}", self._chain.task)
        spark.dataSource.register(source)
        self._source = source.name()
        wanted = tuple(dict.fromkeys((*SHOWN, *sink.columns())))
        rendering = Rendering(delivery, provenance, processed=bool(self._chain))
        value = value_column(sink.envelope, rendering).alias("value")
        self._columns = {"value": value, **rendered(sink, wanted, rendering)}

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Of the changes `[start, end)`, in the log's order: `SHOWN`, and what the sink's writer is given, with
        the record, `value`, in any case."""
        self._letters.begin()
        self._chain.drops.begin()
        options = ReadOptions(str(self._log_path), tasks=1, start=start, end=end)
        changes = self._spark.read.format(self._source).options(**options.as_text()).load()
        if self._chain.has_frames:
            changes = self._chain.behind(changes, LogReader(self._log_path, start).schemas)
            changes = changes.repartition(1).sortWithinPartitions("seq", "part")
        for batch in collected(changes.select(*self._columns.values())):
            yield restored(batch)

    def set_aside(self) -> list[Letter]:
        """What would have become a dead letter of the changes that were read last."""
        return self._letters.found()
