"""The tap's memory: fixed buffers the kernel fills, and the frames made of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.capture.postgres import kernel, lanes
from tailrace.capture.postgres.buffers import SPANS, Fields, Out, S, Stop
from tailrace.capture.postgres.copy_text import decode_copy
from tailrace.capture.postgres.messages import lsn_text
from tailrace.capture.postgres.relations import Relations, table_seed
from tailrace.change import OPS
from tailrace.contracts import ROWS, TXS, Frame
from tailrace.schema import TableSchema

MAX_ROWS = 1 << 17


class DecodedRows:
    """Rows decoded and not yet appended. Its size never depends on a transaction's size, only on one row's."""

    def __init__(self, arena_bytes: int) -> None:
        self.state = np.zeros(S.SIZE, dtype=np.int64)
        self.arena = np.empty(arena_bytes, dtype=np.uint8)
        self.rows = np.empty((MAX_ROWS, 4), dtype=np.int32)
        self.lanes = np.empty(MAX_ROWS, dtype=np.uint8)
        self.spans = np.empty((MAX_ROWS, SPANS + 1), dtype=np.int64)
        self.txs = np.empty((MAX_ROWS, 5), dtype=np.int64)
        self._origin = np.zeros(1, dtype=np.uint8)
        self._origin_name = ""
        self._fields = Fields.new(), Fields.new()
        self._arena_bytes = arena_bytes

    @property
    def in_transaction(self) -> bool:
        return bool(self.state[S.IN_TX])

    @property
    def done(self) -> int:
        """Rows of finished transactions."""
        return int(self.state[S.DONE_ROWS])

    @property
    def done_bytes(self) -> int:
        return int(self.state[S.DONE_ARENA])

    @property
    def finished(self) -> int:
        """Finished transactions, empty ones included."""
        return int(self.state[S.DONE_TXS])

    @property
    def count(self) -> int:
        return int(self.state[S.ROWS])

    @property
    def empty(self) -> bool:
        """Whether everything received is handed over: no transaction is open, none waits."""
        return not (self.in_transaction or self.finished or self.count)

    @property
    def last_commit_us(self) -> int:
        """When the newest finished transaction was committed."""
        return int(self.txs[self.finished - 1, 2]) if self.finished else 0

    @property
    def xid(self) -> int:
        """The number of the open transaction; 0: a message outside of any."""
        return int(self.state[S.XID])

    @property
    def has_news(self) -> bool:
        """Whether one of the finished transactions came from the server. Those we make ourselves, of what the catalog
        tells, have odd positions."""
        return bool((self.txs[: self.finished, 1] % 2 == 0).any())

    @property
    def last_commit(self) -> tuple[int, int] | None:
        """Position and time of the newest finished transaction of the database: no message outside of one, and nothing
        that we make ourselves."""
        xids = self.txs[: self.finished, 0]
        places = np.flatnonzero(xids > 0)
        return (int(self.txs[places[-1], 1]), int(self.txs[places[-1], 2])) if len(places) else None

    @property
    def commit_lsn(self) -> int:
        """The position of the open transaction."""
        return int(self.state[S.COMMIT_LSN])

    @property
    def end_lsn(self) -> int:
        """Where the newest finished transaction ends."""
        return int(self.state[S.END_LSN])

    def decode(self, data: np.ndarray, ends: np.ndarray, first: int, relations: Relations) -> tuple[Stop, int]:
        """Run the kernel from message `first` on."""
        stop, following = kernel.decode(data, ends, first, relations.arrays, *self._fields, self._out())
        return Stop(stop), int(following)

    def decode_copy(self, lines: bytearray, first: int, relations: Relations) -> tuple[Stop, int]:
        """Rows of the only relation from whole lines of COPY's text format, from byte `first` on; overwrites them."""
        data = np.frombuffer(lines, dtype=np.uint8)
        stop, following = decode_copy(data, first, len(lines), relations.arrays, self._fields[1], self._out())
        return Stop(stop), int(following)

    def _out(self) -> Out:
        return Out(self.state, self.arena, self.rows, self.lanes, self.spans, self.txs, self._origin)

    def load_decoder(self, relations: Relations) -> None:
        """Compile the decoder, or take it from the cache, now and not while a server waits for an answer."""
        self.decode(np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64), 0, relations)
        self.begin(0, 0)
        self.add("m", relations.message_schema(""), "{}", None)
        self.commit(0)
        self.take_finished()
        self.reset()

    def set_origin(self, name: str) -> None:
        """The open transaction was replicated from elsewhere: its rows say so in their headers."""
        text = f'"origin":{json.dumps(name)}'.encode()
        self._origin = np.frombuffer(bytearray(text), dtype=np.uint8)  # writable: as the decoder was compiled for
        self._origin_name = name
        self.state[S.ORIGIN] = len(text)

    def add(
        self, op: str, schema: TableSchema, after: str | None, headers: dict[str, str] | None, before: str | None = None
    ) -> None:
        """A change that is not a row: a truncate, a message, a schema's. There must be room (`fits`)."""
        if self.state[S.ORIGIN]:
            headers = {**(headers or {}), "origin": self._origin_name}
        row, at = self.count, int(self.state[S.ARENA])
        spans = [at, at]
        for text in (before, after, None, json.dumps(headers, separators=(",", ":")) if headers else None):
            data = (text or "").encode()
            self.arena[at : at + len(data)] = np.frombuffer(data, dtype=np.uint8)
            at += len(data)
            spans.append(at)
        self.spans[row] = spans
        self.lanes[row] = lanes.lane_of(table_seed(schema), self.arena, 0, 0)
        self.rows[row] = (OPS.index(op), schema.id, self.state[S.TXS] - 1, self.state[S.ORDINAL])
        self.state[S.ORDINAL] += 1
        self.state[S.ROWS] += 1
        self.state[S.ARENA] = at

    def fits(self, size: int) -> bool:
        rows_free = self.count + 2 <= len(self.rows) and self.state[S.TXS] < len(self.txs)
        return rows_free and self.state[S.ARENA] + size <= len(self.arena)

    def begin(self, lsn: int, ts_us: int) -> None:
        """Open a transaction of one message outside any other (a non-transactional logical message)."""
        for place, value in ((S.XID, 0), (S.COMMIT_LSN, lsn), (S.TS_US, ts_us), (S.ORDINAL, 0), (S.IN_TX, 1)):
            self.state[place] = value
        self.state[S.ORIGIN] = 0
        kernel.open_transaction(self.state, self.txs)

    def commit(self, end_lsn: int) -> None:
        self.state[S.END_LSN] = end_lsn
        kernel.close_transaction(self.state, self.txs)

    def take_finished(self) -> tuple[Frame | None, tuple[int, int] | None]:
        """The rows of finished transactions as a frame, removed from the buffers; the open one's stay."""
        rows, txs = self.done, self.finished
        frame, xids = self._frame(rows, txs), self._xids(txs)
        self._shift(rows, txs)
        return frame, xids

    def take_open(self) -> tuple[Frame | None, tuple[int, int] | None]:
        """A part of the open transaction, when it has outgrown the buffers."""
        rows, txs = self.count, int(self.state[S.TXS])
        frame, xids = self._frame(rows, txs), self._xids(txs)
        self.state[[S.ROWS, S.ARENA, S.TXS]] = 0
        kernel.open_transaction(self.state, self.txs)
        self._shrink()
        return frame, xids

    def grow(self, size: int | None = None) -> None:
        """Make room for one row larger than all the buffers; by default what the kernel asked for."""
        need = int(self.state[S.NEED]) if size is None else size
        grown = np.empty(int(self.state[S.ARENA]) + need + 1024, dtype=np.uint8)
        used = self.state[S.ARENA]
        grown[:used] = self.arena[:used]
        self.arena = grown

    def reset(self) -> None:
        """Forget everything: the stream begins anew at a transaction boundary."""
        self.state[:] = 0

    def _shrink(self) -> None:
        if len(self.arena) > self._arena_bytes:
            self.arena = np.empty(self._arena_bytes, dtype=np.uint8)

    def _shift(self, rows: int, txs: int) -> None:
        """Move what belongs to the open transaction to the front."""
        left, behind = self.count - rows, self.done_bytes
        size = int(self.state[S.ARENA]) - behind
        if left:
            self.arena[:size] = self.arena[behind : behind + size].copy()
            self.rows[:left] = self.rows[rows : rows + left].copy()
            self.rows[:left, 2] -= txs
            self.lanes[:left] = self.lanes[rows : rows + left].copy()
            self.spans[:left] = self.spans[rows : rows + left] - behind
        else:
            self._shrink()
        open_txs = int(self.state[S.TXS]) - txs
        self.txs[:open_txs] = self.txs[txs : txs + open_txs].copy()
        for place, value in ((S.ROWS, left), (S.ARENA, size), (S.TXS, open_txs)):
            self.state[place] = value
        self.state[[S.DONE_ROWS, S.DONE_ARENA, S.DONE_TXS]] = 0

    def _xids(self, txs: int) -> tuple[int, int] | None:
        xids = self.txs[:txs, 0]
        xids = xids[xids > 0]
        return (int(xids.min()), int(xids.max())) if len(xids) else None

    def _frame(self, rows: int, txs: int) -> Frame | None:
        if not rows:
            return None
        order, offsets = lanes.lane_order(self.lanes, rows)
        fixed = self.rows[:rows][order]
        columns = [
            pa.array(order),
            pa.array(fixed[:, 0].astype(np.uint8)),
            *(pa.array(np.ascontiguousarray(fixed[:, column])) for column in (1, 2, 3)),
            *(self._text(column, order) for column in range(SPANS)),
        ]
        return Frame(
            pa.RecordBatch.from_arrays(columns, schema=ROWS),
            self._tx_table(txs),
            tuple(int(n) for n in offsets),
        )

    def _text(self, column: int, order: np.ndarray) -> pa.Array[Any]:
        rows = len(order)
        size = int(lanes.text_size(self.spans, column, rows))
        if size == 0:
            return pa.nulls(rows, pa.string())
        offsets = np.empty(rows + 1, dtype=np.int32)
        data = np.empty(size, dtype=np.uint8)
        valid = np.zeros((rows + 7) // 8, dtype=np.uint8)
        nulls = lanes.gather_text(self.arena, self.spans, column, order, offsets, data, valid)
        buffers = [pa.py_buffer(part.data) for part in (valid, offsets, data)]
        return pa.Array.from_buffers(pa.string(), rows, [buffers[0] if nulls else None, *buffers[1:]], null_count=nulls)

    def _tx_table(self, txs: int) -> pa.RecordBatch:
        part = self.txs[:txs]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([str(xid) for xid in part[:, 0].tolist()], pa.string()),
                pa.array([lsn_text(lsn) for lsn in part[:, 1].tolist()], pa.string()),
                pa.array(part[:, 2].copy()),
                pa.array(part[:, 3].astype(np.int32)),
                pa.array(part[:, 4].copy()),
            ],
            schema=TXS,
        )
