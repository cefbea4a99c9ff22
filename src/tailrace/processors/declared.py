"""Columns of rows that user code made: what it declared, what it did not, and what it left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailrace.processors.outcome import Made, Outcome, image_of, members
from tailrace.schema import TableSchema

UNDECLARED = "_undeclared"
"""The JSON column of a table with declared columns that has what the code added beyond them."""


@dataclass(frozen=True)
class Declared:
    """`columns` of a processor, None where it declared none; `tables` as they come in, by `schema_id`."""

    columns: tuple[str, ...] | None
    tables: Mapping[int, TableSchema]

    def settle(self, batch: pa.RecordBatch, outcome: Outcome, seen: Iterable[int]) -> None:
        """Gather members that nobody declared in one. What a change did not send, and code set, is sent now; what it
        declared and left out of such a change is unsent."""
        unsent = {place for place in seen if batch.column("unchanged")[place].as_py()}
        touched = {*outcome.changed["before"], *outcome.changed["after"]}
        for place in sorted(touched | (unsent if self.columns else unsent & touched)):
            edits = {name: values[place] for name, values in outcome.changed.items() if place in values}
            for name, value in self._settled(_row(batch, place), edits).items():
                outcome.changed[name][place] = value
        outcome.made = [Made(one.place, self._settled(_row(batch, one.place), one.columns)) for one in outcome.made]

    def _settled(self, row: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
        """`edits` of a change that was `row`."""
        edits = dict(edits)
        for name in ("before", "after"):
            if edits.get(name) and self.columns is not None:
                edits[name] = self._gathered(edits[name], row["schema_id"])
        after = {**row, **edits}["after"]
        if row["unchanged"] and after:
            names = members(after)
            left_out = (*row["unchanged"], *(self.columns or ()))
            edits["unchanged"] = [name for name in dict.fromkeys(left_out) if name not in names]
        return edits

    def _gathered(self, image: str, schema_id: int) -> str:
        table = self.tables.get(schema_id)
        if table is None or self.columns is None:
            return image
        known = {*(column.name for column in table.columns), *self.columns}
        texts = members(image)
        more = {name: text for name, text in texts.items() if name not in known}
        if not more:
            return image
        kept = {name: text for name, text in texts.items() if name in known}
        return image_of({**kept, UNDECLARED: image_of(more)})


def _row(batch: pa.RecordBatch, place: int) -> dict[str, Any]:
    return {name: batch.column(name)[place].as_py() for name in ("schema_id", "after", "unchanged")}
