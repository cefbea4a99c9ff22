"""Changes as batches, from the few fields that a test cares about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailrace.change import PROCESSED
from tailrace.contracts import BatchProcessor, Place
from tailrace.kinds import Kind
from tailrace.processors.chain import Chain, OpenChain
from tailrace.schema import Column, TableSchema

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

DEFAULTS: dict[str, Any] = {
    "lane": 7,
    "source": "shop-db",
    "op": "c",
    "database": "shop",
    "schema": "public",
    "table": "orders",
    "key": '{"id":1}',
    "before": None,
    "after": None,
    "unchanged": None,
    "ts_us": 1_767_225_600_123_456,
    "captured_us": 1_767_225_600_200_000,
    "tx_id": "771",
    "tx_ordinal": 0,
    "tx_last": False,
    "position": "16/B374D848",
    "schema_id": 1,
    "headers": None,
}


def batch(*changes: Mapping[str, Any]) -> pa.RecordBatch:
    """Fields not given have a plain value; `seq` counts."""
    for change in changes:
        assert set(change) <= set(PROCESSED.names), change
    rows = [{"seq": n, **DEFAULTS, **change} for n, change in enumerate(changes)]
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in PROCESSED]
    return pa.RecordBatch.from_arrays(columns, schema=PROCESSED)


def opened(*processors: BatchProcessor, place: Place = PLACE, keep_dropped: bool = False) -> OpenChain:
    return Chain(processors).open(place, keep_dropped=keep_dropped)


def processor(kind: type[BatchProcessor], **settings: Any) -> Any:
    """As a document has it."""
    return kind.from_document({"id": kind.__name__.removesuffix("Processor").lower(), **settings})
