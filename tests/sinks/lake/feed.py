"""A log in memory for lake sinks: changes are written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace.change import CHANGES_DDL
from tailrace.contracts import Span
from tailrace.schema import Column, TableSchema

LOG_ID = "log-1"
Image = dict[str, Any]


def schema_of(number: int, table: str, columns: Mapping[str, str], key: tuple[str, ...] = ("id",)) -> TableSchema:
    named = tuple(Column(name, kind, number=place + 1) for place, (name, kind) in enumerate(columns.items()))
    return TableSchema(number, "shop", "public", table, named, key, relation=100)


class Feed:
    """Changes of one or more tables. Implements the `Log` of `sinks.tables`."""

    def __init__(self, spark: SparkSession, *schemas: TableSchema) -> None:
        self._spark = spark
        self._versions = {schema.id: schema for schema in schemas}
        self.changes: list[dict[str, Any]] = []
        self.retained: dict[str, int] = {}
        self.log_id = LOG_ID
        self.earliest = 0

    @property
    def end(self) -> int:
        return len(self.changes)

    def add(self, schema: TableSchema, op: str, image: Image | None = None, **more: Any) -> Feed:
        """One change, a transaction of its own. `image`: the row, or the key's columns of a delete."""
        self._versions[schema.id] = schema
        seq = self.end
        key = {name: image[name] for name in schema.key} if image and schema.key else None
        texts = {"after": _text(image)} if op in "cur" else {"before": _text(image)}
        self.changes.append(
            {
                "seq": seq, "lane": 0, "source": "shop", "op": op, "database": "shop", "schema": schema.schema,
                "table": schema.table, "key": _text(key), "before": None, "after": None, "unchanged": None,
                "ts_us": 1_700_000_000_000_000 + seq, "captured_us": 0, "tx_id": str(seq), "tx_ordinal": 0,
                "tx_last": True, "position": f"0/{seq:X}", "schema_id": schema.id, "headers": None,
                **texts, **more,
            }
        )  # fmt: skip
        return self

    def move(self, schema: TableSchema, old: Image, new: Image, unchanged: list[str] | None = None) -> Feed:
        """A row gets another key."""
        keys = [{name: image[name] for name in schema.key} for image in (old, new)]
        self.add(schema, "d", keys[0], headers={"new_key": json.dumps(keys[1])})
        return self.add(schema, "c", new, headers={"old_key": json.dumps(keys[0])}, unchanged=unchanged)

    def evolve(self, schema: TableSchema, defaults: Mapping[str, Any] | None = None) -> Feed:
        """The table has another version from here on."""
        image = json.dumps({"version": schema.id, "defaults": dict(defaults or {})})
        return self.add(schema, "s", None, after=image)

    # -- the log ---------------------------------------------------------------------------------------------

    def versions(self) -> Mapping[int, TableSchema]:
        return self._versions

    def ends(self, start: int, end: int) -> list[int]:
        return [*range(start + 3, end, 3), end]

    def read(self, start: int, end: int) -> DataFrame:
        columns = CHANGES_DDL.replace(" not null", "")
        frame = self._spark.createDataFrame([], columns)
        rows = [tuple(change[name] for name in frame.columns) for change in self.changes[start:end]]
        return self._spark.createDataFrame(rows, frame.schema).selectExpr("*", "concat('e', seq) as event_id")

    def retain(self, table: str, offset: int | None) -> None:
        if offset is None:
            self.retained.pop(table, None)
        else:
            self.retained[table] = offset

    def span(self, start: int, end: int | None = None) -> Span:
        return Span(self.log_id, start, self.end if end is None else end)


def _text(image: Image | None) -> str | None:
    return None if image is None else json.dumps(image)
