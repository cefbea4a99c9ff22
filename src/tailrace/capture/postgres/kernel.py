"""pgoutput messages to rows: compiled, pure, and bounded by the buffers it is given.

`decode` walks CopyData messages and writes each change's JSON texts one after another into an arena, with their
places in row arrays. It stops where Python must look (relations, truncates, messages …), when a buffer is
full, or at the end of the input; it never keeps anything outside its arguments.
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import njit

from tailrace.capture.postgres.json_text import put_null, put_raw, put_string, put_value, room
from tailrace.change import LANES, OPS

Array = np.ndarray

MAPPER = "8cfc138bf93cdc48"
"""The beginning of json_text.py's SHA-256. Its functions are compiled into this file's, and numba's cache looks at this
file alone: without a change here it would go on with the old ones. A test compares it."""

WAL_HEADER = 25
"""`w`, start, end and clock of a CopyData message stand before the pgoutput message."""
EPOCH_US = 946_684_800_000_000
"""2000-01-01, PostgreSQL's epoch."""


class Stop(IntEnum):
    """Why `decode` returned."""

    END = 0  # every message was read
    LOOK = 1  # the message at `next` is for Python
    FULL = 2  # a buffer has no room for the message at `next`
    UNKNOWN = 3  # a row of a relation that was never announced


class S(IntEnum):
    """Places in the state array."""

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

NEW_KEY = np.frombuffer(b'{"new_key":', dtype=np.uint8)
OLD_KEY = np.frombuffer(b'{"old_key":', dtype=np.uint8)


@njit(cache=True, nogil=True)
def decode(buf, ends, first, state, rel, cols, names, arena, origin, rows, lanes, spans, txs):
    """Decode messages `first…`; returns (stop, next message).

    rel: one row per relation (oid, first column, columns, schema id, lane seed, skip), sorted by oid.
    cols: one row per column (kind, element, delimiter, identity, key, name start, name length).
    rows: (op, schema id, tx, ordinal) per row; txs: (xid, lsn, ts, end row, end bytes) per transaction.
    """
    place = ends[first - 1] if first else 0
    relation = 0
    tags = np.empty((2, 1664), dtype=np.uint8)
    at = np.empty((2, 1664), dtype=np.int64)
    sizes = np.empty((2, 1664), dtype=np.int64)
    for i in range(first, len(ends)):
        p = place + WAL_HEADER
        kind = buf[p]
        if kind == 66:  # Begin
            if state[TXS] + 1 >= len(txs):
                return FULL, i
            _begin(buf, p + 1, state, txs)
        elif kind == 67:  # Commit
            _commit(buf, p + 1, state, txs)
        elif kind in (73, 85, 68):  # Insert, Update, Delete
            oid = _u32(buf, p + 1)
            if rel[relation, 0] != oid:
                relation = np.searchsorted(rel[:, 0], oid)
                if relation >= len(rel) or rel[relation, 0] != oid:
                    return UNKNOWN, i
            if rel[relation, 5] == 0:
                if state[ROWS] + 2 > len(rows):
                    return FULL, i
                need = _room(buf, p, ends[i], rel, relation, cols, origin)
                if state[ARENA] + need > len(arena):
                    state[NEED] = need
                    return FULL, i
                _change(
                    buf,
                    p,
                    state,
                    rel,
                    relation,
                    cols,
                    names,
                    arena,
                    origin,
                    rows,
                    lanes,
                    spans,
                    tags,
                    at,
                    sizes,
                )
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
def _room(buf, p, end, rel, relation, cols, origin):
    """Arena bytes a change can take. A value stands in the key and in an image; with an old tuple, where the key
    may move, in the keys, images and headers of two rows, and a header escapes it once more."""
    count = rel[relation, 2]
    names = 0
    for c in range(rel[relation, 1], rel[relation, 1] + count):
        names += cols[c, 6] + 48
    copies = 8 if buf[p] == 85 and buf[p + 5] in (75, 79) else 2
    return 6 * names + copies * room(buf, p, end - p) + 2 * len(origin) + 256


@njit(cache=True, nogil=True)
def _change(buf, p, state, rel, relation, cols, names, arena, origin, rows, lanes, spans, tags, at, sizes):
    kind = buf[p]
    q = p + 5
    old = np.uint8(0)
    if kind != 73 and buf[q] in (75, 79):
        old = buf[q]
        q = _tuple(buf, q + 1, tags[0], at[0], sizes[0])
    if kind != 68:
        _tuple(buf, q + 1, tags[1], at[1], sizes[1])
    first, count = rel[relation, 1], rel[relation, 2]
    if kind == 85 and old:
        _fill_from_old(count, old, cols, first, tags, at, sizes)
        if _key_changed(buf, count, cols, first, tags, at, sizes):
            _row(
                buf,
                DELETE,
                old,
                first,
                count,
                state,
                rel,
                relation,
                cols,
                names,
                arena,
                origin,
                rows,
                lanes,
                spans,
                tags,
                at,
                sizes,
                True,
            )
            _row(
                buf,
                CREATE,
                old,
                first,
                count,
                state,
                rel,
                relation,
                cols,
                names,
                arena,
                origin,
                rows,
                lanes,
                spans,
                tags,
                at,
                sizes,
                True,
            )
            return
    op = CREATE if kind == 73 else (UPDATE if kind == 85 else DELETE)
    _row(
        buf,
        op,
        old,
        first,
        count,
        state,
        rel,
        relation,
        cols,
        names,
        arena,
        origin,
        rows,
        lanes,
        spans,
        tags,
        at,
        sizes,
        False,
    )


@njit(cache=True, nogil=True)
def _tuple(buf, p, tags, at, sizes):
    count = _u16(buf, p)
    p += 2
    for c in range(count):
        tag = buf[p]
        tags[c] = tag
        p += 1
        if tag == TEXT:
            sizes[c] = _u32(buf, p)
            at[c] = p + 4
            p += 4 + sizes[c]
    return p


@njit(cache=True, nogil=True)
def _fill_from_old(count, old, cols, first, tags, at, sizes):
    """A value the new tuple leaves out as unchanged is taken from the old one where that has it."""
    for c in range(count):
        known = old == 79 or cols[first + c, 3] == 1
        if tags[1, c] == SAME and known and tags[0, c] != SAME:
            tags[1, c] = tags[0, c]
            at[1, c] = at[0, c]
            sizes[1, c] = sizes[0, c]


@njit(cache=True, nogil=True)
def _key_changed(buf, count, cols, first, tags, at, sizes):
    for c in range(count):
        if cols[first + c, 4] == 0:
            continue
        if tags[0, c] != tags[1, c]:
            return True
        if tags[0, c] != TEXT:
            continue
        if sizes[0, c] != sizes[1, c]:
            return True
        for k in range(sizes[0, c]):
            if buf[at[0, c] + k] != buf[at[1, c] + k]:
                return True
    return False


@njit(cache=True, nogil=True)
def _row(
    buf,
    op,
    old,
    first,
    count,
    state,
    rel,
    relation,
    cols,
    names,
    arena,
    origin,
    rows,
    lanes,
    spans,
    tags,
    at,
    sizes,
    moved,
):
    """Write one change. `moved`: a delete and a create that together are one key change."""
    r = state[ROWS]
    w = state[ARENA]
    mine = 0 if op == DELETE else 1
    spans[r, KEY] = w
    w = _object(buf, 4, False, first, count, cols, names, arena, w, tags[mine], at[mine], sizes[mine])
    lanes[r] = lane_of(rel[relation, 4], arena, spans[r, KEY], w)
    spans[r, BEFORE] = w
    if op == DELETE or (op == UPDATE and old == 79):
        w = _object(buf, 3, old == 79, first, count, cols, names, arena, w, tags[0], at[0], sizes[0])
    spans[r, AFTER] = w
    if op != DELETE:
        w = _object(buf, 3, True, first, count, cols, names, arena, w, tags[1], at[1], sizes[1])
    spans[r, UNCHANGED] = w
    if op != DELETE:
        w = _unchanged(first, count, cols, names, arena, w, tags[1])
    spans[r, HEADERS] = w
    if moved:
        w = _moved(buf, op, first, count, cols, names, arena, w, tags, at, sizes)
    w = _origin(origin, state[ORIGIN], arena, w, spans[r, HEADERS])
    spans[r, SPANS] = w
    rows[r, 0] = op
    rows[r, 1] = rel[relation, 3]
    rows[r, 2] = state[TXS] - 1
    rows[r, 3] = state[ORDINAL]
    state[ORDINAL] += 1
    state[ROWS] = r + 1
    state[ARENA] = w


@njit(cache=True, nogil=True)
def _object(buf, flag, whole, first, count, cols, names, arena, w, tags, at, sizes):
    """A JSON object of the columns flagged in `cols[:, flag]`, or of all; nothing at all where none applies."""
    begin = w
    for c in range(count):
        col = first + c
        if tags[c] == SAME or not (whole or cols[col, flag] == 1):
            continue
        arena[w] = 123 if w == begin else 44
        w = put_raw(names, cols[col, 5], cols[col, 6], arena, w + 1)
        arena[w] = 58
        w += 1
        if tags[c] == TEXT:
            w = put_value(buf, at[c], sizes[c], cols[col, 0], cols[col, 1], cols[col, 2], arena, w)
        else:
            w = put_null(arena, w)
    if w > begin:
        arena[w] = 125
        w += 1
    return w


@njit(cache=True, nogil=True)
def _unchanged(first, count, cols, names, arena, w, tags):
    begin = w
    for c in range(count):
        if tags[c] == SAME:
            arena[w] = 91 if w == begin else 44
            w = put_raw(names, cols[first + c, 5], cols[first + c, 6], arena, w + 1)
    if w > begin:
        arena[w] = 93
        w += 1
    return w


@njit(cache=True, nogil=True)
def _moved(buf, op, first, count, cols, names, arena, w, tags, at, sizes):
    """`{"new_key": "…"` on the delete, `{"old_key": "…"` on the create; closed by `_origin`."""
    other = 1 if op == DELETE else 0
    text = np.empty(_key_room(count, first, cols, sizes[other], tags[other]), dtype=np.uint8)
    size = _object(buf, 4, False, first, count, cols, names, text, 0, tags[other], at[other], sizes[other])
    label = NEW_KEY if op == DELETE else OLD_KEY
    w = put_raw(label, 0, len(label), arena, w)
    return put_string(text, 0, size, arena, w)


@njit(cache=True, nogil=True)
def _key_room(count, first, cols, sizes, tags):
    total = 16
    for c in range(count):
        if cols[first + c, 4] == 1:
            total += cols[first + c, 6] + 48 + (6 * sizes[c] if tags[c] == TEXT else 0)
    return total


@njit(cache=True, nogil=True)
def _origin(origin, length, arena, w, begin):
    """Add the transaction's origin to the headers and close them."""
    if length:
        arena[w] = 123 if w == begin else 44
        w = put_raw(origin, 0, length, arena, w + 1)
    if w > begin:
        arena[w] = 125
        w += 1
    return w


@njit(cache=True, nogil=True)
def lane_of(seed, text, start, end):
    """FNV-1a of the key text on the table's seed, folded to a lane. Part of the log's format: never changes."""
    h = np.uint64(seed)
    for i in range(start, end):
        h = (h ^ np.uint64(text[i])) * np.uint64(1099511628211)
    h ^= h >> np.uint64(32)
    h ^= h >> np.uint64(16)
    h ^= h >> np.uint64(8)
    return np.uint8(h & np.uint64(LANES - 1))


@njit(cache=True, nogil=True)
def lane_order(lanes, count):
    """(stable order of the first `count` rows by lane, offsets of the lanes in it)."""
    offsets = np.zeros(LANES + 1, dtype=np.int64)
    for i in range(count):
        offsets[lanes[i] + 1] += 1
    for lane in range(LANES):
        offsets[lane + 1] += offsets[lane]
    order = np.empty(count, dtype=np.int32)
    place = offsets[:-1].copy()
    for i in range(count):
        order[place[lanes[i]]] = i
        place[lanes[i]] += 1
    return order, offsets


@njit(cache=True, nogil=True)
def gather_text(arena, spans, column, order, out_offsets, out, valid):
    """Copy one text column in `order` into an Arrow string column; returns the number of nulls."""
    w = 0
    nulls = 0
    for i in range(len(order)):
        r = order[i]
        start = spans[r, column]
        size = spans[r, column + 1] - start
        out_offsets[i] = w
        if size == 0:
            nulls += 1
        else:
            valid[i >> 3] |= np.uint8(1 << (i & 7))
            for k in range(size):
                out[w + k] = arena[start + k]
            w += size
    out_offsets[len(order)] = w
    return nulls


@njit(cache=True, nogil=True)
def text_size(spans, column, count):
    total = 0
    for r in range(count):
        total += spans[r, column + 1] - spans[r, column]
    return total


@njit(cache=True, nogil=True)
def decode_copy(buf, first, end, state, rel, cols, names, arena, origin, rows, lanes, spans):
    """Whole lines of COPY's text format as rows of the only relation; returns (stop, next byte).

    Escapes are resolved in place: what was read is overwritten.
    """
    tags = np.empty((2, 1664), dtype=np.uint8)
    at = np.empty((2, 1664), dtype=np.int64)
    sizes = np.empty((2, 1664), dtype=np.int64)
    named = 256
    for c in range(rel[0, 2]):
        named += 2 * (cols[c, 6] + 48)
    p = first
    while p < end:
        line = p
        while buf[line] != 10:
            line += 1
        if state[ROWS] + 2 > len(rows):
            return FULL, p
        need = named + 2 * room(buf, p, line - p)
        if state[ARENA] + need > len(arena):
            state[NEED] = need
            return FULL, p
        _fields(buf, p, line, tags[1], at[1], sizes[1])
        _row(
            buf,
            READ,
            np.uint8(0),
            0,
            rel[0, 2],
            state,
            rel,
            0,
            cols,
            names,
            arena,
            origin,
            rows,
            lanes,
            spans,
            tags,
            at,
            sizes,
            False,
        )
        p = line + 1
    return END, p


@njit(cache=True, nogil=True)
def _fields(buf, p, end, tags, at, sizes):
    """Split a line at its tabs and resolve each field's escapes where it stands."""
    c = 0
    w = p
    at[0] = p
    tags[0] = TEXT
    while p < end:
        byte = buf[p]
        if byte == 9:
            sizes[c] = w - at[c]
            c += 1
            w = p + 1
            at[c] = w
            tags[c] = TEXT
        elif byte == 92:
            p += 1
            byte = buf[p]
            if byte == 78:  # a null
                tags[c] = NULL
            else:
                buf[w] = _unescaped(byte)
                w += 1
        else:
            buf[w] = byte
            w += 1
        p += 1
    sizes[c] = w - at[c]


@njit(cache=True, nogil=True)
def _unescaped(byte):
    if byte == 98:
        return np.uint8(8)
    if byte == 102:
        return np.uint8(12)
    if byte == 110:
        return np.uint8(10)
    if byte == 114:
        return np.uint8(13)
    if byte == 116:
        return np.uint8(9)
    if byte == 118:
        return np.uint8(11)
    return byte
