"""Batches of changes as steps get them, made by hand."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tailrace.change import PROCESSED
from tailrace.contracts import Place
from tailrace.kinds import Kind
from tailrace.schema import Column, TableSchema

ORDERS = TableSchema(
    1,
    "shop",
    "public",
    "orders",
    (
        Column("id", "bigint", number=1, kind=Kind("int64")),
        Column("total", "numeric", number=2, kind=Kind("decimal", 12, 2)),
        Column("note", "text", number=3, kind=Kind("text")),
    ),
    ("id",),
)
PLACE = Place("shop-out", "acme", "postgresql", {1: ORDERS})


def change(seq: int, after: Any = None, **more: Any) -> dict[str, Any]:
    """One change of `orders`, in a transaction of its own. Images that are text are taken as they are."""
    op = more.pop("op", "c")
    made = {
        **dict.fromkeys(PROCESSED.names),
        **{"seq": seq, "lane": 1, "source": "shop", "op": op, "schema_id": 1},
        **{"database": "shop", "schema": "public", "table": "orders"},
        **{"key": {"id": seq}, "after": after, "ts_us": 1_700_000_000_000_000 + seq, "captured_us": 1},
        **{"tx_id": str(seq), "tx_ordinal": 0, "tx_last": True, "position": f"0/{seq:X}", **more},
    }
    return {**made, **{name: _text(made[name]) for name in ("key", "before", "after")}}


def batch(*changes: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(changes), schema=PROCESSED)


def orders(count: int, **more: Any) -> pa.RecordBatch:
    """Inserted orders, whose totals are 0, 10, 20 …"""
    rows = ({"id": number, "total": f"{number * 10}.00"} for number in range(count))
    return batch(*(change(number, row, **more) for number, row in enumerate(rows)))


def column(found: pa.RecordBatch, name: str) -> list[Any]:
    values: list[Any] = found.column(name).to_pylist()
    return values


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
