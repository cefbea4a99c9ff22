"""What the compiled decoders read and write: arrays, bundled by what they are about, and the places in them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tailrace.change import OPS

Array = np.ndarray

MAX_COLUMNS = 1664


class Stop(IntEnum):
    """Why a decoder returned."""

    END = 0  # everything was read
    LOOK = 1  # the message at `next` is for Python
    FULL = 2  # a buffer has no room for what is at `next`
    UNKNOWN = 3  # a row of a relation that was never announced


class S(IntEnum):
    """Places in `Out.state`."""

    XID = 0
    COMMIT_LSN = 1
    TS_US = 2
    ORDINAL = 3
    IN_TX = 4
    ROWS = 5
    ARENA = 6
    TXS = 7
    DONE_ROWS = 8  # rows of finished transactions
    DONE_ARENA = 9
    DONE_TXS = 10
    END_LSN = 11  # where the last finished transaction ends
    ORIGIN = 12  # length of the origin header text
    NEED = 13  # arena bytes the refused message wants
    SIZE = 14


XID, COMMIT_LSN, TS_US, ORDINAL, IN_TX = (int(S(i)) for i in range(5))
ROWS, ARENA, TXS, DONE_ROWS, DONE_ARENA, DONE_TXS = (int(S(i)) for i in range(5, 11))
END_LSN, ORIGIN, NEED = (int(S(i)) for i in range(11, 14))
END, LOOK, FULL, UNKNOWN = (int(stop) for stop in Stop)
CREATE, UPDATE, DELETE, READ = (OPS.index(op) for op in "cudr")

KEY, BEFORE, AFTER, UNCHANGED, HEADERS, SPANS = range(6)
"""Columns of `spans`: where each text of a row begins; one ends where the next begins."""

NULL, SAME, TEXT = 110, 117, 116
"""Tags of a column in a tuple: null, unchanged (TOAST), text."""


class Tables(NamedTuple):
    """The relations. `rel`: one row each (oid, first column, columns, schema id, lane seed, skip), sorted by oid.
    `cols`: one row per column (kind, element, delimiter, identity, key, name start, name length)."""

    rel: Array
    cols: Array
    names: Array


class Fields(NamedTuple):
    """A tuple's columns: tag, and where a text begins and how long it is."""

    tags: Array
    at: Array
    sizes: Array

    @classmethod
    def new(cls) -> Fields:
        """For as many columns as a table can have."""
        sizes = np.empty(MAX_COLUMNS, dtype=np.int64)
        return cls(np.empty(MAX_COLUMNS, dtype=np.uint8), np.empty(MAX_COLUMNS, dtype=np.int64), sizes)


class Out(NamedTuple):
    """What is written. `arena`: all texts, one after another; `rows`: (op, schema id, tx, ordinal) per row; `txs`:
    (xid, lsn, ts, end row, end bytes) per transaction; `origin`: the origin header of the open one."""

    state: Array
    arena: Array
    rows: Array
    lanes: Array
    spans: Array
    txs: Array
    origin: Array
