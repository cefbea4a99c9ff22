"""SQL: a select list or a query of yours over the changes of a table, with look-ups into tables that Spark reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Script, Secret
from tailrace.contracts import Place, Trait
from tailrace.processors.frames import FrameProcessor
from tailrace.processors.sql.statement import ROW_FACTS, BadQueryError, Output, Statement, parsed, query_of
from tailrace.processors.user_code import ForTables
from tailrace.schema import Column, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableRead(Model):
    """A table that a query looks into, as Spark's reader takes it."""

    format: Annotated[Literal["delta", "iceberg", "parquet", "jdbc"], Field(description="Who reads it.")]
    path: Annotated[str | None, Field(description="Where it is, or its name in a catalog. Absent: options say.")] = None
    options: Annotated[
        dict[str, Secret],
        Field(description="Options of Spark's reader, such as `url` and `dbtable` of jdbc. Never shown."),
    ] = Field(default_factory=dict)
    version: Annotated[
        int | None,
        Field(
            description="The version of a Delta table, the snapshot of an Iceberg table. Absent: the newest, which is "
            "refused before tables that equal their source."
        ),
    ] = None

    @model_validator(mode="after")
    def _has_versions(self) -> TableRead:
        if self.version is not None and self.format not in ("delta", "iceberg"):
            context = {"format": self.format, "hint": "leave it out, or copy the table into Delta or Iceberg"}
            raise PydanticCustomError("config.invalid_value", "{format} has no versions", context)
        return self


class SqlProcessor(ForTables, FrameProcessor):
    """Selects from the changes of a table, in Spark SQL: `after`, `before` and `key` have typed columns. What a query
    does not compute keeps the text that it has."""

    select: Annotated[
        Script | None, Field(description="What to select.", examples=["after.*, after.total * 0.19 AS tax"])
    ] = None
    query: Annotated[
        Script | None,
        Field(
            description="Instead of `select`, a query. A change that WHERE does not want is dropped.",
            examples=["SELECT after.*, c.name FROM changes LEFT JOIN customers c ON c.id = after.customer WHERE c.vip"],
        ),
    ] = None
    tables_read: Annotated[
        dict[str, TableRead], Field(description="Tables that the query may LEFT JOIN, by the name it uses.")
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_understood(self) -> SqlProcessor:
        if (self.select is None) == (self.query is None):
            context = {"hint": "`select` is a list of columns, `query` all of SELECT … FROM changes"}
            raise PydanticCustomError("config.invalid_value", "needs one of `select` and `query`", context)
        try:
            parsed(self._text, frozenset(self.tables_read))
        except BadQueryError as error:
            context = {"message": str(error), "hint": "lines count from the query's first"}
            raise PydanticCustomError("config.bad_query", "{message}", context) from None
        return self

    @property
    def _text(self) -> str:
        return self.query if self.query is not None else query_of(self.select or "")

    @cached_property
    def statement(self) -> Statement:
        return parsed(self._text, frozenset(self.tables_read))

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"key"} if self.statement.where else {"key", "rows"})

    def breaks_mirror(self) -> str | None:
        fickle = sorted(self.statement.names - ROW_FACTS - {"key", "after"})
        if fickle:
            return f"its query looks at `{fickle[0]}`, not at table, key and `after` alone"
        for lookup in self.statement.lookups:
            if self.tables_read[lookup.table].version is None:
                return f"`{lookup.table}` may change: give it a `version`"
        return None

    def shape(self, table: TableSchema) -> TableSchema | None:
        if not self.concerns(table.schema, table.table) or not table.columns:
            return table
        known = {column.name: column for column in table.columns}
        declared = self.declared()
        known |= {each.name: replace(known[each.source], name=each.name) for each in self._renamed(known)}
        known |= declared
        names = self.statement.names_after(tuple(column.name for column in table.columns))
        if any(each.name not in declared for each in self.statement.computed):
            return None
        return replace(table, columns=tuple(known[name] for name in names if name in known))

    def _renamed(self, known: Mapping[str, Column]) -> list[Output]:
        return [each for each in self.statement.outputs if each.form == "column" and each.source in known]

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        names = tuple(columns)
        if not self.concerns(table.schema, table.table):
            return names
        found = [name for name in self.statement.names_after(names) if name in names]
        outputs = self.statement.outputs
        found += [each.name for each in outputs if each.source in names or each.reads & set(names)]
        return tuple(dict.fromkeys(found))

    def transform(self, changes: DataFrame, place: Place) -> DataFrame:
        from tailrace.processors.sql.frame import transformed

        return transformed(self, changes, place)
