"""Changes as batches, from the few fields that a test cares about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.contracts import BatchProcessor, Place
from tailrace.kinds import Kind
from tailrace.processors.chain import Chain, OpenChain
from tailrace.schema import Column, TableSchema
from tailrace.testing.suites.processors import batch

__all__ = ["MIRROR", "ORDERS", "PLACE", "batch", "opened", "processor", "table"]

KINDS = {
    "id": "int64",
    "total": "decimal(12,2)",
    "status": "text",
    "big": "int64",
    "ratio": "float64",
    "paid": "bool",
    "details": "json",
    "tags": "array<text>",
}


def table(number: int = 1, name: str = "orders", key: Sequence[str] = ("id",), **kinds: str) -> TableSchema:
    """A version of a table; without kinds it has the columns of `KINDS`."""
    columns = [
        Column(column, kind, number=n, kind=Kind.parse(kind))
        for n, (column, kind) in enumerate((kinds or KINDS).items(), 1)
    ]
    return TableSchema(number, "shop", "public", name, tuple(columns), tuple(key))


ORDERS = table()
PLACE = Place("shop", "acme", "postgresql", {ORDERS.id: ORDERS})
MIRROR = Place("shop", "acme", "postgresql", {ORDERS.id: ORDERS}, mirror=True)


def opened(*processors: BatchProcessor, place: Place = PLACE, keep_dropped: bool = False) -> OpenChain:
    return Chain(processors).open(place, keep_dropped=keep_dropped)


def processor(kind: type[BatchProcessor], **settings: Any) -> Any:
    """As a document has it."""
    return kind.from_document({"id": kind.__name__.removesuffix("Processor").lower(), **settings})
