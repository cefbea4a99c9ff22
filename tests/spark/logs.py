"""Small change logs for the Spark tests, written by the real writer: transactions of rows of
`shop.orders`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.change import LANES, OPS
from tailrace.changelog import LogWriter
from tailrace.contracts import ROWS, TXS, Capture, Frame
from tailrace.schema import Column, TableSchema

ORDERS = TableSchema(0, "shop", "public", "orders", (Column("id", "int8"), Column("n", "int8")), ("id",))

Row = tuple[str, int, int]
"""(op, id, n)"""


class Shop:
    """Appends transactions; `n` counts up over the log's life, so order can be checked by content."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.writer = LogWriter(path, "shop", **settings)
        self._tx = 0
        self._n = 0

    def commit(self, *sizes: int, keys: int = 50, ops: Sequence[str] = ("u",), pad: str = "") -> int:
        """One capture with a transaction of each size; returns the log's end."""
        transactions = [[self._row(ops, keys) for _ in range(size)] for size in sizes]
        return self.append(transactions, pad)

    def append(self, transactions: Sequence[Sequence[Row]], pad: str = "") -> int:
        rows, ends = [], []
        for index, transaction in enumerate(transactions):
            rows += [(index, ordinal, row) for ordinal, row in enumerate(transaction)]
            ends.append(len(rows))
        first = self._tx
        self._tx += len(transactions)
        frame = _frame(rows, ends, first, pad)
        return self.writer.append(Capture(frame, {"lsn": str(self._tx)}, (ORDERS,)))

    def _row(self, ops: Sequence[str], keys: int) -> Row:
        self._n += 1
        return ops[self._n % len(ops)], self._n % keys, self._n


def _frame(rows: Sequence[tuple[int, int, Row]], ends: Sequence[int], first_tx: int, pad: str) -> Frame:
    lanes = [zlib.crc32(b"%d" % row[1]) % LANES for _, _, row in rows]
    order = sorted(range(len(rows)), key=lambda i: (lanes[i], i))
    texts = [json.dumps({"id": row[1]}) for _, _, row in rows]
    images = [json.dumps({"id": row[1], "n": row[2], "pad": pad}) for _, _, row in rows]
    columns: dict[str, list[Any]] = {
        "row": order,
        "op": [OPS.index(rows[i][2][0]) for i in order],
        "schema_id": [ORDERS.id] * len(rows),
        "tx": [rows[i][0] for i in order],
        "ordinal": [rows[i][1] for i in order],
        "key": [texts[i] for i in order],
        "before": [None] * len(rows),
        "after": [images[i] for i in order],
        "unchanged": [None] * len(rows),
        "headers": [None] * len(rows),
    }
    txs: dict[str, list[Any]] = {
        "tx_id": [str(first_tx + i) for i in range(len(ends))],
        "position": [f"0/{first_tx + i:X}" for i in range(len(ends))],
        "ts_us": [1_700_000_000_000_000 + first_tx + i for i in range(len(ends))],
        "end_row": list(ends),
        "end_bytes": [end * 40 for end in ends],
    }
    counts = [0] * LANES
    for lane in lanes:
        counts[lane] += 1
    offsets = tuple(sum(counts[:lane]) for lane in range(LANES + 1))
    return Frame(pa.RecordBatch.from_pydict(columns, ROWS), pa.RecordBatch.from_pydict(txs, TXS), offsets)
