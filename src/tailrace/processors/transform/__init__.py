"""Transform: columns hidden, hashed, renamed, dropped or kept, and metadata added."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.processors.transform.columns import Edits
from tailrace.processors.transform.plan import plan_of
from tailrace.processors.transform.step import TransformStep
from tailrace.schema import TableSchema


class TransformProcessor(BatchProcessor, Edits):
    """Changes the columns of rows, in the key, in `before` and `after` and in the headers of a key change alike.

    Columns are called what they are called before it, and it works in this order: `mask` and `hash`; `drop` and
    `keep`; `rename` and `field_mapping`; `add_metadata`. What is not touched stays byte for byte. A column that the
    source did not send stays unsent, under its new name. A column cannot be both masked and hashed, and a new name
    cannot be that of another column: the table's changes stop there. Before a table that mirrors its source a
    column of the key cannot be masked, because rows would fall into one; it can be hashed.
    """

    @model_validator(mode="after")
    def _does_something(self) -> TransformProcessor:
        if not self.model_fields_set - {"id"}:
            hint = "add `mask`, `hash`, `drop`, `keep`, `rename`, `field_mapping` or `add_metadata`"
            raise PydanticCustomError("config.invalid_value", "the transform does nothing", {"hint": hint})
        return self

    def preserves(self) -> frozenset[Trait]:
        if self.mask or self.hash or self.rename or self.field_mapping:
            return frozenset({"rows"})
        if self.drop or self.keep or any(each.as_ == "column" for each in self.add_metadata):
            return frozenset({"rows", "key"})
        return frozenset({"rows", "key", "schema"})

    def shape(self, table: TableSchema) -> TableSchema:
        return plan_of(self, table).shape(table)

    def keeps_keys(self, table: TableSchema) -> bool:
        return not plan_of(self, table).touches(table.key)

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        plan = plan_of(self, table)
        return tuple(name for each in columns if (name := plan.name(each)) is not None)

    def hides(self) -> bool:
        return bool(self.mask or self.hash)

    def open(self, place: Place) -> Step:
        return TransformStep(self, place)
