"""COPY's text format to rows: compiled, and bounded by the buffers it is given."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from tailrace.capture.postgres.buffers import ARENA, END, FULL, NEED, NULL, READ, ROWS, TEXT
from tailrace.capture.postgres.json_text import room
from tailrace.capture.postgres.row_text import borrow, put_row
from tailrace.words import borrowed, equal_to, first_mark, word_at

INLINED = {
    "buffers": "b258ed74e22fdbfe",
    "json_text": "19bc98d42140c675",
    "row_text": "51c05e32c7f41a86",
    "words": "7040ed545e90861d",
}
"""As in json_text.py."""

TAB, NEWLINE, BACKSLASH, N = 9, 10, 92, 78
MEANS = np.arange(256, dtype=np.uint8)
"""What each byte behind a backslash means."""
MEANS[np.frombuffer(b"bfnrtv", dtype=np.uint8)] = np.frombuffer(b"\b\f\n\r\t\v", dtype=np.uint8)


@njit(cache=True, nogil=True)
def decode_copy(buf, first, end, tables, fields, out):
    """Whole lines, from byte `first` to `end`, as rows of the only relation; returns (stop, next byte).

    Escapes are resolved in place: what was read is overwritten.
    """
    buf = borrowed(buf)
    tables, fields, _, out = borrow(tables, fields, fields, out)
    state = out.state
    named = 256
    for c in range(tables.rel[0, 2]):
        named += 2 * (tables.cols[c, 6] + 48)
    p = first
    while p < end:
        line, count, escaped = _split(buf, p, end, fields)
        if state[ROWS] + 2 > len(out.rows):
            return FULL, p
        need = named + 2 * room(buf, p, line - p)
        if state[ARENA] + need > len(out.arena):
            state[NEED] = need
            return FULL, p
        if escaped:
            _resolve(buf, count, fields)
        put_row(buf, READ, np.uint8(0), False, tables, 0, fields, fields, out)
        p = line + 1
    return END, p


@njit(cache=True, nogil=True)
def _split(buf, p, end, fields):
    """Find a line's fields; returns (its end, its fields, whether one has an escape that is not a null)."""
    c = 0
    escaped = False
    fields.at[0] = p
    fields.tags[0] = TEXT
    while True:
        p = _next_mark(buf, p, end)
        byte = buf[p]
        if byte == BACKSLASH:
            if buf[p + 1] == N:
                fields.tags[c] = NULL
            else:
                escaped = True
            p += 2
            continue
        fields.sizes[c] = p - fields.at[c]
        c += 1
        if byte == NEWLINE:
            return p, c, escaped
        p += 1
        fields.at[c] = p
        fields.tags[c] = TEXT


@njit(cache=True, nogil=True)
def _next_mark(buf, p, end):
    """Where the next tab, newline or backslash is."""
    while p + 8 <= end:
        word = word_at(buf, p)
        marks = equal_to(word, TAB) | equal_to(word, NEWLINE) | equal_to(word, BACKSLASH)
        if marks != 0:
            return p + first_mark(marks)
        p += 8
    while buf[p] != TAB and buf[p] != NEWLINE and buf[p] != BACKSLASH:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _resolve(buf, count, fields):
    """Resolve the escapes of a line's fields where they stand."""
    for c in range(count):
        if fields.tags[c] != TEXT:
            continue
        p = w = fields.at[c]
        end = p + fields.sizes[c]
        while p < end:
            byte = buf[p]
            if byte == BACKSLASH:
                p += 1
                byte = MEANS[buf[p]]
            buf[w] = byte
            w += 1
            p += 1
        fields.sizes[c] = w - fields.at[c]
