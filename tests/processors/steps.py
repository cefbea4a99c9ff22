"""Processors for tests: each does one thing, slowly and plainly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tailrace.change import PROCESSED
from tailrace.contracts import BatchProcessor, Place, Step, Trait
from tailrace.errors import ProcessorError
from tailrace.schema import TableSchema

Row = dict[str, Any]


class RowProcessor(BatchProcessor):
    """Works on changes as dicts."""

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"key", "schema"})

    def open(self, place: Place) -> Step:
        return lambda batch: pa.RecordBatch.from_pylist(
            [made for row in batch.to_pylist() for made in self.answer(row)], PROCESSED
        )

    def answer(self, row: Row) -> list[Row]:
        raise NotImplementedError


class Even(RowProcessor):
    """Drops rows whose `n` is odd."""

    def answer(self, row: Row) -> list[Row]:
        odd = row["after"] is not None and row["op"] in "cur" and json.loads(row["after"]).get("n", 0) % 2
        return [{**row, "dropped": "odd"} if odd else row]


class Renaming(RowProcessor):
    """`n` is `number` behind it."""

    def preserves(self) -> frozenset[Trait]:
        return frozenset({"rows", "key"})

    def shape(self, table: TableSchema) -> TableSchema:
        named = (replace(each, name=_renamed(each.name)) for each in table.columns)
        return replace(table, columns=tuple(named))

    def unsent(self, columns: Iterable[str], table: TableSchema) -> tuple[str, ...]:
        return tuple(map(_renamed, columns))

    def answer(self, row: Row) -> list[Row]:
        if row["after"] is None or row["op"] == "s":
            return [row]
        unchanged = None if row["unchanged"] is None else list(map(_renamed, row["unchanged"]))
        image = {_renamed(name): value for name, value in json.loads(row["after"]).items()}
        return [{**row, "after": json.dumps(image), "unchanged": unchanged}]


class Echo(RowProcessor):
    """Says everything twice, the second time under its own name and to another topic."""

    def breaks_mirror(self) -> str:
        return "it makes rows of its own"

    def answer(self, row: Row) -> list[Row]:
        return [
            row,
            {**row, "synthetic": self.id, "part": f"{self.id}:1", "tags": ["echo"], "route": [("topic", "echo")]},
        ]


class Broken(RowProcessor):
    """Fails on a row whose `n` is 13."""

    def answer(self, row: Row) -> list[Row]:
        if row["after"] is not None and json.loads(row["after"]).get("n") == 13:
            raise ProcessorError("processor.failed", "thirteen", hint="avoid it", where="public.orders")
        return [row]


def _renamed(name: str) -> str:
    return "number" if name == "n" else name
