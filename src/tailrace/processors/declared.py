"""Columns that a processor makes: what it declared, what it did not, and what user code left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field, field_validator

from tailrace.contracts import Processor
from tailrace.kinds import Kind
from tailrace.processors.outcome import Made, Outcome, image_of, members
from tailrace.schema import Column, TableSchema

UNDECLARED = "_undeclared"
"""The JSON column of a table with declared columns that has what the code added beyond them."""


class DeclaresColumns(Processor):
    """A processor that may make columns, which it then declares for tables."""

    columns: Annotated[
        dict[str, str] | None,
        Field(
            description="The columns it adds or whose kind it changes, by name: needed before tables of a lake, `{}` "
            "for none. Absent: nobody knows before it ran.",
            examples=[{"priority": "text", "tax": "decimal(12,2)"}],
        ),
    ] = None

    @field_validator("columns")
    @classmethod
    def _of_known_kinds(cls, columns: dict[str, str] | None) -> dict[str, str] | None:
        for text in (columns or {}).values():
            Kind.parse(text)
        return columns

    def declared(self) -> dict[str, Column]:
        """The columns that it declares."""
        kinds = (self.columns or {}).items()
        return {name: Column(name, kind, kind=Kind.parse(kind)) for name, kind in kinds}

    def gathering(self, table: TableSchema) -> TableSchema | None:
        """A version of a table with these columns, and with `_undeclared`; None: it declares none."""
        if self.columns is None:
            return None
        own = self.declared()
        own[UNDECLARED] = Column(UNDECLARED, "json", kind=Kind("json"))
        kept = tuple(_retyped(column, own.pop(column.name, None)) for column in table.columns)
        return replace(table, columns=(*kept, *own.values()))


def _retyped(column: Column, declared: Column | None) -> Column:
    return column if declared is None else replace(column, type=declared.type, kind=declared.kind)


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
