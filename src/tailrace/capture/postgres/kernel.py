"""pgoutput messages to rows: compiled, pure, and bounded by the buffers it is given.

`decode` walks CopyData messages and writes each change's JSON texts one after another into an arena, with their
places in row arrays. It stops where Python must look (relations, truncates, messages …), when a buffer is
full, or at the end of the input; it never keeps anything outside its arguments.
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from tailrace.capture.postgres.buffers import (
    ARENA,
    COMMIT_LSN,
    CREATE,
    DELETE,
    DONE_ARENA,
    DONE_ROWS,
    DONE_TXS,
    END,
    END_LSN,
    FULL,
    IN_TX,
    LOOK,
    NEED,
    ORDINAL,
    ORIGIN,
    ROWS,
    SAME,
    TEXT,
    TS_US,
    TXS,
    UNKNOWN,
    UPDATE,
    XID,
)
from tailrace.capture.postgres.json_text import room
from tailrace.capture.postgres.row_text import IDENTITY, IS_KEY, WHOLE, borrow, put_row
from tailrace.words import borrowed

INLINED = {
    "buffers": "b258ed74e22fdbfe",
    "json_text": "19bc98d42140c675",
    "row_text": "51c05e32c7f41a86",
    "words": "7040ed545e90861d",
}
"""As in json_text.py."""

WAL_HEADER = 25
"""`w`, start, end and clock of a CopyData message stand before the pgoutput message."""
EPOCH_US = 946_684_800_000_000
"""2000-01-01, PostgreSQL's epoch."""


@njit(cache=True, nogil=True)
def decode(buf, ends, first, tables, before, after, out):
    """Decode messages `first…`, each up to its place in `ends`; returns (stop, next message). `before`, `after`: room
    for the fields of a message's tuples."""
    buf = borrowed(buf)
    tables, before, after, out = borrow(tables, before, after, out)
    place = ends[first - 1] if first else 0
    relation = 0
    rel, state = tables.rel, out.state
    for i in range(first, len(ends)):
        p = place + WAL_HEADER
        kind = buf[p]
        if kind == 66:  # Begin
            if state[TXS] + 1 >= len(out.txs):
                return FULL, i
            _begin(buf, p + 1, state, out.txs)
        elif kind == 67:  # Commit
            _commit(buf, p + 1, state, out.txs)
        elif kind in (73, 85, 68):  # Insert, Update, Delete
            oid = _u32(buf, p + 1)
            if rel[relation, 0] != oid:
                relation = np.searchsorted(rel[:, 0], oid)
                if relation >= len(rel) or rel[relation, 0] != oid:
                    return UNKNOWN, i
            if rel[relation, 5] == 0:
                if state[ROWS] + 2 > len(out.rows):
                    return FULL, i
                need = _room(buf, p, ends[i], tables, relation, out.origin)
                if state[ARENA] + need > len(out.arena):
                    state[NEED] = need
                    return FULL, i
                _change(buf, p, tables, relation, before, after, out)
        else:
            return LOOK, i
        place = ends[i]
    return END, len(ends)


@njit(cache=True, nogil=True)
def _u16(buf, p):
    return (np.int64(buf[p]) << 8) | np.int64(buf[p + 1])


@njit(cache=True, nogil=True)
def _u32(buf, p):
    return (_u16(buf, p) << 16) | _u16(buf, p + 2)


@njit(cache=True, nogil=True)
def _u64(buf, p):
    return (_u32(buf, p) << 32) | _u32(buf, p + 4)


@njit(cache=True, nogil=True)
def _begin(buf, p, state, txs):
    state[COMMIT_LSN] = _u64(buf, p)
    state[TS_US] = _u64(buf, p + 8) + EPOCH_US
    state[XID] = _u32(buf, p + 16)
    state[ORDINAL] = 0
    state[IN_TX] = 1
    state[ORIGIN] = 0
    open_transaction(state, txs)


@njit(cache=True, nogil=True)
def open_transaction(state, txs):
    """Enter the current transaction into `txs`, open."""
    tx = state[TXS]
    txs[tx, 0] = state[XID]
    txs[tx, 1] = state[COMMIT_LSN]
    txs[tx, 2] = state[TS_US]
    txs[tx, 3] = -1
    txs[tx, 4] = state[ARENA]
    state[TXS] = tx + 1


@njit(cache=True, nogil=True)
def _commit(buf, p, state, txs):
    state[END_LSN] = _u64(buf, p + 9)
    close_transaction(state, txs)


@njit(cache=True, nogil=True)
def close_transaction(state, txs):
    """The last transaction of `txs` is finished: everything up to here may be appended."""
    tx = state[TXS] - 1
    txs[tx, 3] = state[ROWS]
    txs[tx, 4] = state[ARENA]
    state[IN_TX] = 0
    state[DONE_ROWS] = state[ROWS]
    state[DONE_ARENA] = state[ARENA]
    state[DONE_TXS] = state[TXS]


@njit(cache=True, nogil=True)
def _room(buf, p, end, tables, relation, origin):
    """Arena bytes a change can take. A value stands in the key and in an image; with an old tuple, where the key
    may move, in the keys, images and headers of two rows, and a header escapes it once more."""
    first, count = tables.rel[relation, 1], tables.rel[relation, 2]
    names = 0
    for c in range(first, first + count):
        names += tables.cols[c, 6] + 48
    copies = 8 if buf[p] == 85 and buf[p + 5] in (75, WHOLE) else 2
    return 6 * names + copies * room(buf, p, end - p) + 2 * len(origin) + 256


@njit(cache=True, nogil=True)
def _change(buf, p, tables, relation, before, after, out):
    kind = buf[p]
    q = p + 5
    old = np.uint8(0)
    if kind != 73 and buf[q] in (75, WHOLE):
        old = buf[q]
        q = _tuple(buf, q + 1, before)
    if kind != 68:
        _tuple(buf, q + 1, after)
    if kind == 85 and old:
        _fill_from_old(old, tables, relation, before, after)
        if _key_changed(buf, tables, relation, before, after):
            put_row(buf, DELETE, old, True, tables, relation, before, after, out)
            put_row(buf, CREATE, old, True, tables, relation, before, after, out)
            return
    op = CREATE if kind == 73 else (UPDATE if kind == 85 else DELETE)
    put_row(buf, op, old, False, tables, relation, before, after, out)


@njit(cache=True, nogil=True)
def _tuple(buf, p, fields):
    count = _u16(buf, p)
    p += 2
    for c in range(count):
        tag = buf[p]
        fields.tags[c] = tag
        p += 1
        if tag == TEXT:
            size = _u32(buf, p)
            fields.sizes[c] = size
            fields.at[c] = p + 4
            p += 4 + size
    return p


@njit(cache=True, nogil=True)
def _fill_from_old(old, tables, relation, before, after):
    """A value the new tuple leaves out as unchanged is taken from the old one where that has it."""
    first = tables.rel[relation, 1]
    for c in range(tables.rel[relation, 2]):
        known = old == WHOLE or tables.cols[first + c, IDENTITY] == 1
        if after.tags[c] == SAME and known and before.tags[c] != SAME:
            after.tags[c] = before.tags[c]
            after.at[c] = before.at[c]
            after.sizes[c] = before.sizes[c]


@njit(cache=True, nogil=True)
def _key_changed(buf, tables, relation, before, after):
    first = tables.rel[relation, 1]
    for c in range(tables.rel[relation, 2]):
        if tables.cols[first + c, IS_KEY] == 0:
            continue
        if before.tags[c] != after.tags[c]:
            return True
        if before.tags[c] != TEXT:
            continue
        if before.sizes[c] != after.sizes[c]:
            return True
        for k in range(before.sizes[c]):
            if buf[before.at[c] + k] != buf[after.at[c] + k]:
                return True
    return False
