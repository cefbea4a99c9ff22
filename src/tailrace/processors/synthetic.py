"""Synthetic: keeps or drops changes by who made them, the source or a processor."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.processors.chain import with_columns

REASON = "synthetic"


class SyntheticProcessor(BatchProcessor):
    """Drops what the source did, or what processors made. A sink's `filter` is this step at the end of its chain."""

    exclude_synthetic: Annotated[bool, Field(description="Keep only what the source did.")] = False
    synthetic_only: Annotated[bool, Field(description="Keep only what a processor made.")] = False
    producers: Annotated[
        tuple[str, ...],
        Field(description="Of what processors made, keep only what these made. Absent: of all."),
    ] = ()

    @model_validator(mode="after")
    def _keeps_something(self) -> SyntheticProcessor:
        if self.exclude_synthetic and (self.synthetic_only or self.producers):
            hint = "leave exclude_synthetic out, or the others"
            message = "exclude_synthetic leaves nothing for synthetic_only or producers"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"key", "schema"})

    def breaks_mirror(self) -> str | None:
        return "it drops rows that the source has" if self.synthetic_only else None

    def open(self, place: Place) -> Step:
        return self._step

    def _step(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        reason = pc.if_else(self._wanted(changes.column("synthetic")), pa.scalar(None, pa.string()), pa.scalar(REASON))
        return with_columns(changes, dropped=reason)

    def _wanted(self, makers: Any) -> Any:
        real = pc.is_null(makers)
        if self.exclude_synthetic:
            return real
        made = pc.is_in(makers, pa.array(self.producers)) if self.producers else pc.invert(real)
        return made if self.synthetic_only else pc.or_(real, made)
