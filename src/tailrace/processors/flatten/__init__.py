"""Flatten: the members of JSON columns as columns of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.kinds import Kind
from tailrace.processors.declared import UNDECLARED, DeclaresColumns
from tailrace.processors.flatten.step import FlattenStep
from tailrace.processors.tables import TablePatterns, Tables
from tailrace.schema import TableSchema

Empty = Literal["preserve", "drop", "null"]
ENDLESS = 1 << 62


class FlattenProcessor(DeclaresColumns, BatchProcessor):
    """Opens the objects in JSON columns of `before` and `after`: `{"size": {"w": 1}}` in `details` becomes the column
    `details__size__w`.

    Keys stay as they are, and so do their columns in the images. What is not an object, or a list with `lists: index`,
    keeps every byte; so does binary data, which is a text. A column that the source did not send stays unsent, and so
    does every declared column that may have been made of it. Before tables it declares `columns`; a member that nobody
    declared is gathered in the JSON column `_undeclared`. Messages, truncates and schema changes pass.
    """

    separator: Annotated[str, Field(min_length=1, description="Stands between the names of a way.")] = "__"
    max_depth: Annotated[
        int | None,
        Field(ge=0, description="Values so deep stay whole; that of a column has depth 0. Absent: no limit."),
    ] = None
    on_collision: Annotated[
        Literal["last", "first", "error"],
        Field(
            description="Which of two columns of a row with one name stays, in the order of the row; `error` stops "
            "the sink."
        ),
    ] = "last"
    empty_object: Annotated[Empty, Field(description="`{}` stays, goes or becomes null, at any depth.")] = "preserve"
    lists: Annotated[
        Literal["preserve", "index"],
        Field(description="Lists stay whole, or their elements become `NAME__0`, `NAME__1` …"),
    ] = "preserve"
    empty_list: Annotated[Empty, Field(description="`[]` stays, goes or becomes null, at any depth.")] = "preserve"
    tables: Tables = ()

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"rows", "key"})

    def concerns(self, table: TableSchema) -> bool:
        """Whether rows of a table go through it."""
        return not self.tables or TablePatterns(self.tables).fit(table.database, table.schema, table.table)

    def opens(self, table: TableSchema) -> tuple[str, ...]:
        """The columns that may be opened."""
        found = (column.name for column in table.columns if self._may_open(column.kind))
        return tuple(name for name in found if name not in (*table.key, UNDECLARED)) if self.concerns(table) else ()

    def made(self, column: str) -> tuple[str, ...]:
        """The declared columns that may be made of this one, with the one that has the rest of it."""
        if self.columns is None:
            return ()
        return (*(name for name in self.columns if name.startswith(column + self.separator)), UNDECLARED)

    def shape(self, table: TableSchema) -> TableSchema | None:
        return self.gathering(table) if self.opens(table) else table

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        names, opens = tuple(columns), self.opens(table)
        return tuple(dict.fromkeys((*names, *(made for name in names if name in opens for made in self.made(name)))))

    def open(self, place: Place) -> Step:
        return FlattenStep(self, place)

    def _may_open(self, kind: Kind) -> bool:
        """A domain over who knows what may be one over JSON."""
        lists = self.lists == "index" or self.empty_list != "preserve"
        return kind.name == "json" or (kind.name == "other" and kind.domain) or (kind.name == "array" and lists)
