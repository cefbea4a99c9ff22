"""Captures made by hand, for tests of the log and of everything downstream that need no database."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.change import LANES, OPS
from tailrace.contracts import ROWS, TXS, Capture, Frame
from tailrace.kinds import Kind
from tailrace.schema import Column, TableSchema

_COLUMNS = (Column("id", "bigint", kind=Kind("int64")), Column("v", "text", kind=Kind("text")))
ITEMS = TableSchema(0, "shop", "public", "items", _COLUMNS, ("id",))


@dataclass(frozen=True)
class Row:
    """One change of a hand-made transaction. Images that are text are taken as they are."""

    op: str
    key: dict[str, Any] | str | None
    before: dict[str, Any] | str | None = None
    after: dict[str, Any] | str | None = None
    unchanged: list[str] | None = None
    headers: dict[str, str] | None = None
    table: TableSchema = field(default=ITEMS)


def insert(number: int, value: str = "x", table: TableSchema = ITEMS) -> Row:
    return Row("c", {"id": number}, after={"id": number, "v": value}, table=table)


def capture(*transactions: Sequence[Row], first_xid: int = 1, ordinal: int = 0, open_end: bool = False) -> Capture:
    """Whole transactions, numbered from `first_xid` (also their position); `open_end` leaves the last one open,
    `ordinal` is where the first one continues."""
    rows = [(tx, row) for tx, each in enumerate(transactions) for row in each]
    lanes = np.array([_lane(row) for _, row in rows], dtype=np.int64)
    order = np.argsort(lanes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(lanes, minlength=LANES))])
    frame = Frame(_rows(rows, order, ordinal), _txs(transactions, first_xid, open_end), tuple(offsets.tolist()))
    last = first_xid + len(transactions) - 1
    resume = None if open_end else {"lsn": f"0/{last:X}"}
    schemas = tuple({row.table.id: row.table for _, row in rows}.values())
    return Capture(frame if rows else None, resume, schemas, (first_xid, last))


def _lane(row: Row) -> int:
    return zlib.crc32(f"{row.table.table}{_text(row.key)}".encode()) % LANES


def _rows(rows: list[tuple[int, Row]], order: np.ndarray, ordinal: int) -> pa.RecordBatch:
    txs = [tx for tx, _ in rows]
    ordinals = [place - txs.index(tx) + (ordinal if tx == 0 else 0) for place, tx in enumerate(txs)]
    data = [
        {
            "row": int(place),
            "op": OPS.index(rows[place][1].op),
            "schema_id": rows[place][1].table.id,
            "tx": rows[place][0],
            "ordinal": ordinals[place],
            **{name: _text(getattr(rows[place][1], name)) for name in ROWS.names[5:]},
        }
        for place in order
    ]
    return pa.RecordBatch.from_pylist(data, schema=ROWS)


def _txs(transactions: Sequence[Sequence[Row]], first_xid: int, open_end: bool) -> pa.RecordBatch:
    data, rows, size = [], 0, 0
    for number, each in enumerate(transactions):
        rows += len(each)
        size += sum(len(_text(row.after) or "") for row in each)
        still_open = open_end and number == len(transactions) - 1
        data.append(
            {
                "tx_id": str(first_xid + number),
                "position": f"0/{first_xid + number:X}",
                "ts_us": 1_700_000_000_000_000 + first_xid + number,
                "end_row": -1 if still_open else rows,
                "end_bytes": size,
            }
        )
    return pa.RecordBatch.from_pylist(data, schema=TXS)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))
