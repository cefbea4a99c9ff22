"""A carrier that delivers nothing: it runs a sink's chain over changes that only the log has, for a replay without a
query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.changelog import LogReader, Owner
from tailrace.contracts import Delivery, Place, Processor, Provenance, RecordSink
from tailrace.machine.durable import make_directory
from tailrace.spark.chain import SinkChain
from tailrace.spark.letters import LetterDesk, LetterKeeping
from tailrace.spark.records import RecordCarrier
from tailrace.spark.source import own_source


def open_rerun(
    spark: SparkSession,
    log_path: Path,
    sink: RecordSink,
    delivery: Delivery,
    *,
    provenance: Provenance,
    state_dir: Path,
    processors: Sequence[Processor],
    letters: LetterKeeping,
) -> RecordCarrier:
    """For `RecordCarrier.rows_of`. No query of the sink may run."""
    make_directory(state_dir)
    desk = LetterDesk(
        letters, sink, delivery, log_path, state_dir / "replay", required=sink.required
    )  # a batch has its own
    place = Place(delivery.pipeline, delivery.tenant, provenance.connector, {})
    chain = SinkChain(tuple(processors), place, state_dir, desk.chain_letters(LogReader(log_path).log_id, processors))
    if chain:
        chain.drops.begin()
    own = own_source(Owner(delivery.pipeline, sink.id).name, chain.task)
    spark.dataSource.register(own)
    return RecordCarrier(
        sink,
        delivery,
        provenance,
        source=own.name(),
        log_path=log_path,
        state_dir=state_dir,
        tasks=1,
        key=None,
        chain=chain,
        desk=desk,
    )
