"""PostgreSQL's text values as JSON text: the one mapper, compiled, for the stream and for snapshots alike.

Pure functions over bytes: `(source bytes, start, length, …, out, place) → place after the written text`. The
caller has made room (`room`). Integers, floats and booleans become JSON scalars; decimals strings; `json` is
embedded as it is; timestamps ISO 8601 with microseconds; the rest the database's own text as a string.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import njit

from tailrace.words import below, copy, equal_to, put_word, word_at

U8 = np.ndarray

INLINED = {"words": "7040ed545e90861d"}
"""The beginnings of the SHA-256 of files whose functions are compiled into this one's. numba's cache looks at a
function's own file alone: without a change here it would go on with the old ones. A test compares them."""


class JsonKind(IntEnum):
    """How a type's text becomes JSON."""

    TEXT = 0
    NUMBER = 1
    FLOAT = 2
    BOOL = 3
    JSON = 4
    BYTES = 5
    TIMESTAMP = 6
    TIMESTAMPTZ = 7
    TIME = 8
    TIMETZ = 9
    ARRAY = 10


NUMBER, FLOAT, BOOL, JSON, BYTES = (
    int(kind) for kind in (JsonKind.NUMBER, JsonKind.FLOAT, JsonKind.BOOL, JsonKind.JSON, JsonKind.BYTES)
)
TIMESTAMP, TIMESTAMPTZ, TIME, TIMETZ, ARRAY = (
    int(kind) for kind in (JsonKind.TIMESTAMP, JsonKind.TIMESTAMPTZ, JsonKind.TIME, JsonKind.TIMETZ, JsonKind.ARRAY)
)
QUOTE, BACKSLASH, COMMA, OPEN, CLOSE, SPACE = 34, 92, 44, 123, 125, 32
HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
TRUE = np.frombuffer(b"true", dtype=np.uint8)
FALSE = np.frombuffer(b"false", dtype=np.uint8)
_EXACT = 4096
"""Longer texts are measured before they are written; shorter ones take the worst case, six bytes for one."""


@njit(cache=True, nogil=True)
def room(src: U8, start: int, length: int) -> int:
    """Upper bound of the JSON text of a value: quotes around each array element and escapes included."""
    if length <= _EXACT:
        return 6 * length + 32
    extra = 0
    for i in range(start, start + length):
        c = src[i]
        if c < SPACE:
            extra += 5
        elif c in (QUOTE, BACKSLASH):
            extra += 1
        elif c == COMMA:
            extra += 12
    return length + extra + 32


@njit(cache=True, nogil=True)
def put_value(src: U8, start: int, length: int, kind: int, element: int, delimiter: int, out: U8, at: int) -> int:
    """One value of any kind."""
    if kind == ARRAY:
        return _put_array(src, start, length, element, delimiter, out, at)
    return _put_scalar(src, start, length, kind, out, at)


@njit(cache=True, nogil=True)
def put_string(src: U8, start: int, length: int, out: U8, at: int) -> int:
    """A JSON string; UTF-8 passes through, quotes, backslashes and control characters are escaped."""
    out[at] = QUOTE
    at += 1
    i, end = start, start + length
    while i < end:
        if i + 8 <= end:
            word = word_at(src, i)
            if (below(word, SPACE) | equal_to(word, QUOTE) | equal_to(word, BACKSLASH)) == 0:
                put_word(word, out, at)
                i, at = i + 8, at + 8
                continue
        c = src[i]
        if c >= SPACE and c != QUOTE and c != BACKSLASH:
            out[at] = c
            at += 1
        else:
            at = _put_escaped(c, out, at)
        i += 1
    out[at] = QUOTE
    return at + 1


@njit(cache=True, nogil=True)
def _put_escaped(c: int, out: U8, at: int) -> int:
    out[at] = BACKSLASH
    short = 0
    if c in (QUOTE, BACKSLASH):
        short = c
    elif c == 10:
        short = 110
    elif c == 13:
        short = 114
    elif c == 9:
        short = 116
    elif c == 8:
        short = 98
    elif c == 12:
        short = 102
    if short:
        out[at + 1] = short
        return at + 2
    out[at + 1] = 117
    out[at + 2] = 48
    out[at + 3] = 48
    out[at + 4] = HEX[c >> 4]
    out[at + 5] = HEX[c & 15]
    return at + 6


@njit(cache=True, nogil=True)
def _put_scalar(src: U8, start: int, length: int, kind: int, out: U8, at: int) -> int:
    if kind == NUMBER:
        return copy(src, start, length, out, at)
    if kind == FLOAT:
        return _put_float(src, start, length, out, at)
    if kind == BOOL:
        return _put_bool(src[start] == 116, out, at)
    if kind == JSON:
        return _put_json(src, start, length, out, at)
    if kind == BYTES:
        return _put_base64(src, start, length, out, at)
    if kind in (TIMESTAMP, TIMESTAMPTZ, TIME, TIMETZ):
        return _put_time(src, start, length, kind, out, at)
    return put_string(src, start, length, out, at)


@njit(cache=True, nogil=True)
def _put_float(src: U8, start: int, length: int, out: U8, at: int) -> int:
    """Digits as they are; NaN and ±Infinity, which JSON does not have, as strings."""
    last = src[start + length - 1]
    if last == 78 or last == 121:
        return put_string(src, start, length, out, at)
    return copy(src, start, length, out, at)


@njit(cache=True, nogil=True)
def _put_bool(value: bool, out: U8, at: int) -> int:
    if value:
        return copy(TRUE, 0, 4, out, at)
    return copy(FALSE, 0, 5, out, at)


@njit(cache=True, nogil=True)
def _put_json(src: U8, start: int, length: int, out: U8, at: int) -> int:
    """Verbatim; a line break can only stand between tokens and becomes a space, so a row stays one line."""
    i, end = start, start + length
    while i < end:
        if i + 8 <= end:
            word = word_at(src, i)
            if below(word, SPACE) == 0:
                put_word(word, out, at)
                i, at = i + 8, at + 8
                continue
        out[at] = SPACE if src[i] == 10 or src[i] == 13 else src[i]
        i, at = i + 1, at + 1
    return at


@njit(cache=True, nogil=True)
def _nibble(c: int) -> int:
    return c - 48 if c < 58 else (c | 32) - 87


@njit(cache=True, nogil=True)
def _put_base64(src: U8, start: int, length: int, out: U8, at: int) -> int:
    """`\\x…` hex, as `bytea_output = hex` gives it, to base64."""
    count = (length - 2) // 2
    place = start + 2
    out[at] = QUOTE
    at += 1
    for i in range(0, count, 3):
        word = 0
        for k in range(3):
            word <<= 8
            if i + k < count:
                word |= (_nibble(src[place]) << 4) | _nibble(src[place + 1])
                place += 2
        for k in range(4):
            out[at + k] = BASE64[(word >> (18 - 6 * k)) & 63] if i + k <= count else 61
        at += 4
    out[at] = QUOTE
    return at + 1


@njit(cache=True, nogil=True)
def _put_time(src: U8, start: int, length: int, kind: int, out: U8, at: int) -> int:
    """ISO 8601 with six fractional digits; infinity and years BC stay the database's own text."""
    end = start + length
    if src[end - 1] > 57:
        return put_string(src, start, length, out, at)
    out[at] = QUOTE
    at += 1
    i = start
    if length >= 19 and src[i + 4] == 45 and src[i + 10] == SPACE:  # a year of four digits: date and clock are these
        copy(src, i, 19, out, at)
        out[at + 10] = 84
        i, at = i + 19, at + 19
    clock = i > start
    while i < end and src[i] != 46 and src[i] != 43 and not (clock and src[i] == 45):
        clock = clock or src[i] == 58
        out[at] = 84 if src[i] == SPACE else src[i]
        at += 1
        i += 1
    at, i = _put_fraction(src, i, end, out, at)
    return _put_zone(src, i, end, kind, out, at)


@njit(cache=True, nogil=True)
def _put_fraction(src: U8, i: int, end: int, out: U8, at: int) -> tuple[int, int]:
    out[at] = 46
    at += 1
    digits = 0
    if i < end and src[i] == 46:
        i += 1
        while i < end and 48 <= src[i] <= 57:
            out[at] = src[i]
            at += 1
            i += 1
            digits += 1
    while digits < 6:
        out[at] = 48
        at += 1
        digits += 1
    return at, i


@njit(cache=True, nogil=True)
def _put_zone(src: U8, i: int, end: int, kind: int, out: U8, at: int) -> int:
    """`Z` for a timestamptz (the session's zone is UTC), ±HH:MM for a timetz, nothing without a zone."""
    if kind == TIMESTAMPTZ:
        out[at] = 90
        at += 1
    elif kind == TIMETZ:
        at = copy(src, i, end - i, out, at)
        if end - i == 3:
            out[at] = 58
            out[at + 1] = 48
            out[at + 2] = 48
            at += 3
    out[at] = QUOTE
    return at + 1


@njit(cache=True, nogil=True)
def _put_array(src: U8, start: int, length: int, element: int, delimiter: int, out: U8, at: int) -> int:
    """`{a,"b c",{…},NULL}` to nested JSON arrays; an explicit lower bound (`[0:2]={…}`) is left out."""
    end = start + length
    i = start
    while src[i] != OPEN:
        i += 1
    while i < end:
        c = src[i]
        if c == OPEN:
            out[at] = 91
            at, i = at + 1, i + 1
        elif c == CLOSE:
            out[at] = 93
            at, i = at + 1, i + 1
        elif c == delimiter:
            out[at] = COMMA
            at, i = at + 1, i + 1
        elif c == QUOTE:
            at, i = _put_quoted(src, i + 1, element, out, at)
        else:
            at, i = _put_bare(src, i, end, element, delimiter, out, at)
    return at


@njit(cache=True, nogil=True)
def _put_quoted(src: U8, i: int, element: int, out: U8, at: int) -> tuple[int, int]:
    text = np.empty(_quoted_size(src, i), dtype=np.uint8)
    size = 0
    while src[i] != QUOTE:
        if src[i] == BACKSLASH:
            i += 1
        text[size] = src[i]
        size += 1
        i += 1
    return _put_scalar(text, 0, size, element, out, at), i + 1


@njit(cache=True, nogil=True)
def _quoted_size(src: U8, i: int) -> int:
    """Bytes up to the closing quote."""
    begin = i
    while src[i] != QUOTE:
        i += 2 if src[i] == BACKSLASH else 1
    return i - begin


@njit(cache=True, nogil=True)
def _put_bare(src: U8, i: int, end: int, element: int, delimiter: int, out: U8, at: int) -> tuple[int, int]:
    begin = i
    while i < end and src[i] != delimiter and src[i] != CLOSE:
        i += 1
    if i - begin == 4 and src[begin] == 78 and src[begin + 1] == 85 and src[begin + 2] == 76 and src[begin + 3] == 76:
        return put_null(out, at), i
    return _put_scalar(src, begin, i - begin, element, out, at), i


@njit(cache=True, nogil=True)
def put_null(out: U8, at: int) -> int:
    out[at] = 110
    out[at + 1] = 117
    out[at + 2] = 108
    out[at + 3] = 108
    return at + 4
