"""Filter: keeps the changes that are wanted, by operation, by table and by value."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model
from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.processors.chain import with_columns
from tailrace.processors.conditions import (
    NO,
    YES,
    Condition,
    Judge,
    Operation,
    Questions,
    Rows,
    breaks_mirror,
    fields_judge,
    judge_of,
    operations_judge,
    tables_judge,
)
from tailrace.processors.predicates import Predicate
from tailrace.processors.tables import TablePattern, TablePatterns


class TableGate(Model):
    """Tables by patterns: `orders`, `public.*`, `shop.public.orders`."""

    include: Annotated[
        tuple[TablePattern, ...], Field(description="Only these. Absent: all.", examples=[["public.*"]])
    ] = ()
    exclude: Annotated[
        tuple[TablePattern, ...], Field(description="Not these, even if they are included.", examples=[["*.audit_log"]])
    ] = ()

    def fits(self, database: str, schema: str, table: str) -> bool:
        name = (database, schema, table)
        wanted = not self.include or TablePatterns(self.include).fit(*name)
        return wanted and not TablePatterns(self.exclude).fit(*name)


class FilterProcessor(BatchProcessor):
    """Keeps a change that passes every gate: `ops`, `tables`, `fields`, and `include` and `exclude`.

    Values are asked of `after`; of a delete they are asked of `before` or, where that lacks the column, of the key.
    What the source did not send has the value of `before`, if that has it. What cannot be told passes: a filter never
    loses a change it cannot judge; before a table that mirrors its source such a change halts the table. Truncates,
    messages and schema changes have no values, and pass `fields`. Before such a table deletes always pass, and a row
    that is not wanted becomes a delete of its key.
    """

    ops: Annotated[
        tuple[Operation, ...],
        Field(description="Only these operations. Absent: all.", examples=[["create", "update", "delete"]]),
    ] = ()
    tables: Annotated[TableGate, Field(description="Only these tables.")] = TableGate()
    fields: Annotated[
        tuple[Predicate, ...],
        Field(description="Questions about values.", examples=[[{"path": "total", "op": "gt", "value": 100}]]),
    ] = ()
    match: Annotated[Literal["all", "any"], Field(description="How many of `fields` must be answered with yes.")] = (
        "all"
    )
    include: Annotated[
        tuple[Condition, ...], Field(description="Only changes that fulfil one of these conditions. Absent: all.")
    ] = ()
    exclude: Annotated[
        tuple[Condition, ...],
        Field(description="No change that fulfils one of these conditions, even if it is included."),
    ] = ()

    @model_validator(mode="after")
    def _asks_something(self) -> FilterProcessor:
        gates = (self.ops, self.tables.include, self.tables.exclude, self.fields, self.include, self.exclude)
        if not any(gates):
            hint = "add `ops`, `tables`, `fields`, `include` or `exclude`"
            raise PydanticCustomError("config.invalid_value", "the filter keeps everything", {"hint": hint})
        return self

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"key", "schema"})

    def breaks_mirror(self) -> str | None:
        own = Condition(operations=self.ops, fields=self.fields) if self.ops or self.fields else None
        return breaks_mirror([*([own] if own else []), *self.include, *self.exclude])

    def open(self, place: Place) -> Step:
        return _Filter(self, place)


class _Filter:
    """Asks one gate after the other; each about the changes that passed those before it."""

    def __init__(self, config: FilterProcessor, place: Place) -> None:
        self._questions = Questions(place, halts=place.mirror)
        self._gates = list(self._judges(config))

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        reasons = changes.column("dropped")
        wanted = np.asarray(pc.is_null(reasons)).copy()
        rows = Rows(changes, self._questions, wanted)  # looks at values when it is first asked about one
        for reason, judge in self._gates:
            refused = wanted & (judge(rows) == NO)
            if refused.any():
                reasons = pc.if_else(pa.array(refused), pa.scalar(reason), reasons)
                wanted &= ~refused
        return with_columns(changes, dropped=reasons)

    def _judges(self, config: FilterProcessor) -> list[tuple[str, Judge]]:
        gates: list[tuple[str, Judge]] = []
        if config.ops:
            gates.append(("ops", operations_judge(config.ops)))
        if config.tables.include or config.tables.exclude:
            gates.append(("tables", tables_judge(config.tables.fits)))
        if config.include:
            included = [judge_of(each, self._questions) for each in config.include]
            gates.append(("rules", lambda rows: np.maximum.reduce([judge(rows) for judge in included])))
        if config.exclude:
            excluded = [judge_of(each, self._questions) for each in config.exclude]
            gates.append(("rules", lambda rows: YES - np.maximum.reduce([judge(rows) for judge in excluded])))
        if config.fields:
            gates.append(("fields", fields_judge(config.fields, config.match, self._questions)))
        return gates
