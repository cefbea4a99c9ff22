"""One change as a row: its JSON texts one after another in the arena, and their places. Compiled."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from tailrace.capture.postgres.buffers import (
    AFTER,
    ARENA,
    BEFORE,
    DELETE,
    HEADERS,
    KEY,
    ORDINAL,
    ORIGIN,
    ROWS,
    SAME,
    SPANS,
    TEXT,
    TXS,
    UNCHANGED,
    UPDATE,
    Fields,
    Out,
    Tables,
)
from tailrace.capture.postgres.json_text import put_null, put_string, put_value
from tailrace.capture.postgres.lanes import lane_of
from tailrace.words import borrowed, copy

INLINED = {
    "buffers": "b258ed74e22fdbfe",
    "json_text": "19bc98d42140c675",
    "lanes": "f1632067b57600eb",
    "words": "7040ed545e90861d",
}
"""As in json_text.py."""

WHOLE = 79
"""The tag of an old tuple that has every column."""
IDENTITY, IS_KEY = 3, 4
"""Columns of `cols` that say which columns belong to an object."""

NEW_KEY = np.frombuffer(b'{"new_key":', dtype=np.uint8)
OLD_KEY = np.frombuffer(b'{"old_key":', dtype=np.uint8)


@njit(cache=True, nogil=True)
def borrow(tables, before, after, out):
    """All of them as arrays nobody counts the uses of (`words.borrowed`)."""
    return (
        Tables(borrowed(tables.rel), borrowed(tables.cols), borrowed(tables.names)),
        Fields(borrowed(before.tags), borrowed(before.at), borrowed(before.sizes)),
        Fields(borrowed(after.tags), borrowed(after.at), borrowed(after.sizes)),
        Out(
            borrowed(out.state),
            borrowed(out.arena),
            borrowed(out.rows),
            borrowed(out.lanes),
            borrowed(out.spans),
            borrowed(out.txs),
            borrowed(out.origin),
        ),
    )


@njit(cache=True, nogil=True)
def put_row(buf, op, old, moved, tables, relation, before, after, out):
    """Write one change. `old`: the old tuple's tag, or 0; `moved`: a delete and a create that together are one key
    change; `before`, `after`: the tuples' fields. There must be room."""
    state, arena, spans = out.state, out.arena, out.spans
    r = state[ROWS]
    w = state[ARENA]
    spans[r, KEY] = w
    w = _object(buf, IS_KEY, False, tables, relation, before if op == DELETE else after, arena, w)
    out.lanes[r] = lane_of(tables.rel[relation, 4], arena, spans[r, KEY], w)
    spans[r, BEFORE] = w
    if op == DELETE or (op == UPDATE and old == WHOLE):
        w = _object(buf, IDENTITY, old == WHOLE, tables, relation, before, arena, w)
    spans[r, AFTER] = w
    if op != DELETE:
        w = _object(buf, IDENTITY, True, tables, relation, after, arena, w)
    spans[r, UNCHANGED] = w
    if op != DELETE:
        w = _unchanged(tables, relation, after, arena, w)
    spans[r, HEADERS] = w
    if moved:
        w = _moved(buf, op, tables, relation, after if op == DELETE else before, arena, w)
    w = _origin(out.origin, state[ORIGIN], arena, w, spans[r, HEADERS])
    spans[r, SPANS] = w
    out.rows[r, 0] = op
    out.rows[r, 1] = tables.rel[relation, 3]
    out.rows[r, 2] = state[TXS] - 1
    out.rows[r, 3] = state[ORDINAL]
    state[ORDINAL] += 1
    state[ROWS] = r + 1
    state[ARENA] = w


@njit(cache=True, nogil=True)
def _object(buf, flag, whole, tables, relation, fields, arena, w):
    """A JSON object of the columns flagged in `cols[:, flag]`, or of all; nothing at all where none applies."""
    cols = tables.cols
    begin = w
    first = tables.rel[relation, 1]
    for c in range(tables.rel[relation, 2]):
        col = first + c
        tag = fields.tags[c]
        if tag == SAME or not (whole or cols[col, flag] == 1):
            continue
        arena[w] = 123 if w == begin else 44
        w = copy(tables.names, cols[col, 5], cols[col, 6], arena, w + 1)
        arena[w] = 58
        w += 1
        if tag == TEXT:
            w = put_value(buf, fields.at[c], fields.sizes[c], cols[col, 0], cols[col, 1], cols[col, 2], arena, w)
        else:
            w = put_null(arena, w)
    if w > begin:
        arena[w] = 125
        w += 1
    return w


@njit(cache=True, nogil=True)
def _unchanged(tables, relation, fields, arena, w):
    begin = w
    first = tables.rel[relation, 1]
    for c in range(tables.rel[relation, 2]):
        if fields.tags[c] == SAME:
            arena[w] = 91 if w == begin else 44
            w = copy(tables.names, tables.cols[first + c, 5], tables.cols[first + c, 6], arena, w + 1)
    if w > begin:
        arena[w] = 93
        w += 1
    return w


@njit(cache=True, nogil=True)
def _moved(buf, op, tables, relation, other, arena, w):
    """`{"new_key": "…"` on the delete, `{"old_key": "…"` on the create; closed by `_origin`."""
    text = np.empty(_key_room(tables, relation, other), dtype=np.uint8)
    size = _object(buf, IS_KEY, False, tables, relation, other, text, 0)
    label = NEW_KEY if op == DELETE else OLD_KEY
    w = copy(label, 0, len(label), arena, w)
    return put_string(text, 0, size, arena, w)


@njit(cache=True, nogil=True)
def _key_room(tables, relation, fields):
    total = 16
    first = tables.rel[relation, 1]
    for c in range(tables.rel[relation, 2]):
        if tables.cols[first + c, IS_KEY] == 1:
            total += tables.cols[first + c, 6] + 48 + (6 * fields.sizes[c] if fields.tags[c] == TEXT else 0)
    return total


@njit(cache=True, nogil=True)
def _origin(origin, length, arena, w, begin):
    """Add the transaction's origin to the headers and close them."""
    if length:
        arena[w] = 123 if w == begin else 44
        w = copy(origin, 0, length, arena, w + 1)
    if w > begin:
        arena[w] = 125
        w += 1
    return w
