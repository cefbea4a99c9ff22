"""A table of a lake as `verify` looks into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from tailrace.contracts import Extent
from tailrace.schema import TableSchema
from tailrace.sinks.lake.evolve import SOFT, wanted_types
from tailrace.sinks.lake.ledger import Entry, TableLedger
from tailrace.sinks.lake.target import PLAN, Target
from tailrace.sinks.tables import Mirror, Pin

if TYPE_CHECKING:
    from tailrace.sinks.lake import LakeSink


class LakeMirror(Mirror):
    def __init__(self, sink: LakeSink, target: Target, table: str, ledger: Path, log_id: str) -> None:
        """`table` is the source's; `ledger` the keeper's file."""
        self._sink, self.target, self._table = sink, target, table
        self._file, self._log_id = ledger, log_id

    @property
    def session(self) -> SparkSession:
        return self.target.session

    @property
    def keeps_deleted(self) -> bool:
        """Whether rows that were deleted stay, and are marked."""
        return self._sink.soft_delete

    def halted(self) -> str:
        return self._ledger.state.tables.get(self._table, Entry()).reason

    def state(self) -> object:
        return self._ledger.state.mark, self.target.state()

    def types_of(self, schema: TableSchema) -> Mapping[str, DataType]:
        return wanted_types(schema, self._sink)

    def pinned(self) -> Pin | None:
        settled = self._ledger.state.mark
        state = self.target.state()
        if state is None:
            return Pin(settled, None)
        mark, shape, rows = self.target.mark(), self.target.shape(), self.target.at(state)
        still = self.target.state() == state and self.target.shape() == shape
        if not still or shape is None or shape.properties.get(PLAN):
            return None
        types = {each.name: each.dataType for each in rows.schema.fields}
        return Pin(max(mark, settled), shape.version, types, lambda extents: self._alive(rows, extents))

    def _alive(self, rows: DataFrame, extents: Sequence[Extent]) -> DataFrame:
        """Without rows that are only marked as deleted."""
        gone = next(iter(SOFT))
        return rows.filter(f"not coalesce({gone}, false)") if gone in rows.columns and self._sink.soft_delete else rows

    @property
    def _ledger(self) -> TableLedger:
        return TableLedger(self._file, self._log_id)
