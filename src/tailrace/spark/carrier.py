"""What brings a batch into a sink: `records` through tasks that deliver, `tables` on the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.change import EVENT_ID_SQL, PROCESSED_EVENT_ID_SQL
from tailrace.changelog import Limits
from tailrace.contracts import Span
from tailrace.sinks.tables import Care
from tailrace.spark.task import COUNTED, Count
from tailrace.spec import Batch, Sharding


@dataclass(frozen=True)
class Flow:
    """How changes are cut into batches, and batches into tasks."""

    batch: Batch
    sharding: Sharding

    @property
    def limits(self) -> Limits:
        return Limits(self.batch.max_events, self.batch.max_bytes, self.batch.respect_source_tx)


class Carrier(ABC):
    """One sink's, for one log."""

    @abstractmethod
    def plan(self, changes: DataFrame) -> DataFrame:
        """What the stream hands over with a batch: a part of its plan, which is analysed once."""

    @abstractmethod
    def mark(self, log_id: str) -> int:
        """The offset below which the sink holds every change; 0: it does not say."""

    @abstractmethod
    def carry(self, frame: DataFrame, span: Span) -> dict[int, Count]:
        """Deliver a batch, whose `frame` is what `plan` made of its changes. Returns what was delivered, by the id of
        the table version."""

    def skipped(self) -> Mapping[tuple[int, str], int]:
        """How many records the target refused that are gone, by table version and the error's code, since this was last
        asked."""
        return {}

    def warnings(self) -> tuple[str, ...]:
        """What the sink wants somebody to know."""
        return ()

    def care(self) -> Care | None:
        """What tends the sink's tables meanwhile."""
        return None


def unread(changes: DataFrame) -> DataFrame:
    """For carriers that read the log by themselves: Spark then plans a batch of nothing, which is quick."""
    return changes.filter(F.lit(False))


def canonical(wanted: Iterable[str], *, processed: bool = False) -> dict[str, Column]:
    """Columns of a change by name, with those that deliveries are counted by. `processed`: behind processors."""
    named = dict.fromkeys((*wanted, *COUNTED))
    event_id = PROCESSED_EVENT_ID_SQL if processed else EVENT_ID_SQL
    columns = {name: F.expr(event_id) if name == "event_id" else F.col(name) for name in named}
    return {name: column.alias(name) for name, column in columns.items()}
