"""Values of JSON texts as what they mean: strings without their quotes and escapes, numbers digit by digit. Compiled.

A value is a span of bytes, from its first to behind its last; a start of -1 stands for a value that is not there.
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tailrace.json_members import BACKSLASH, CLOSING, COMMA, OPENING, QUOTE, SPACE, buffers, past_value, texts, unescape
from tailrace.words import borrowed, copy

INLINED = {"json_members": "12931cd5bf641dba", "words": "7040ed545e90861d"}
"""What of other files is compiled into this one: see `capture.postgres.json_text`."""

Bytes = "np.ndarray[Any, np.dtype[np.uint8]]"
Places = "np.ndarray[Any, np.dtype[np.int64]]"

ABSENT, NULL, FALSE, TRUE, NUMBER, STRING, OBJECT, ARRAY = range(8)
_BY_FIRST_BYTE = np.full(256, NUMBER, dtype=np.int8)
_BY_FIRST_BYTE[list(b'nft"{[')] = (NULL, FALSE, TRUE, STRING, OBJECT, ARRAY)
ZERO, NINE, POINT, MINUS, PLUS, E, SMALL_U = 48, 57, 46, 45, 43, 69, 117
NO_NUMBER = 2
_FAR = 1 << 40
_INFINITY = np.frombuffer(b"Infinity", dtype=np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SHORT = np.zeros(32, dtype=np.uint8)
_SHORT[[8, 9, 10, 12, 13]] = list(b"btnfr")


@dataclass(frozen=True)
class Number:
    """A number as `0.DIGITS` times a power of ten, without zeros at either end; `sign` is 0 for zero."""

    sign: int
    magnitude: int
    digits: bytes

    @classmethod
    def parse(cls, value: object) -> Number | None:
        """Of a number of a document, or of a text that is one. None: it is no number."""
        try:
            sign, figures, exponent = Decimal(str(value)).as_tuple()
        except InvalidOperation:
            return None
        if not isinstance(exponent, int):  # NaN, Infinity
            return None
        digits = "".join(map(str, figures)).lstrip("0")
        if not digits:
            return cls(0, 0, b"")
        return cls(-1 if sign else 1, len(digits) + exponent, digits.rstrip("0").encode())


def kinds(text: Any, starts: Any) -> Any:
    """What each value is: `ABSENT`, `NULL` …"""
    there = starts >= 0
    if not len(text):
        return np.zeros(len(starts), dtype=np.int8)
    return np.where(there, _BY_FIRST_BYTE[text[np.where(there, starts, 0)]], ABSENT)


def decoded(text: Any, starts: Any, ends: Any) -> pa.Array[Any]:
    """Strings as they read, other values as their JSON text."""
    places = np.empty(len(starts) + 1, dtype=np.int64)
    out = np.empty(int((ends - starts)[starts >= 0].sum()), dtype=np.uint8)
    used = _decoded(text, starts, ends, out, places)
    return texts(out[:used], places, starts >= 0)


def raw(text: Any, starts: Any, ends: Any) -> pa.Array[Any]:
    """Values as their JSON text."""
    places = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(np.where(starts >= 0, ends - starts, 0), out=places[1:])
    out = np.empty(int(places[-1]), dtype=np.uint8)
    _raw(text, starts, out, places)
    return texts(out, places, starts >= 0)


def quoted(array: pa.Array[Any]) -> pa.Array[Any]:
    """Texts as JSON strings, spelled as the tap spells them."""
    text, places, missing = buffers(array)
    made = np.empty(len(array) + 1, dtype=np.int64)
    out = np.empty(int(_room(text, places)), dtype=np.uint8)
    used = _quoted(text, places, missing, out, made)
    return texts(out[:used], made, ~missing)


def compared(text: Any, starts: Any, ends: Any, number: Number) -> Any:
    """-1, 0 or 1 as each value is below, equal to or above `number`; `NO_NUMBER` where it is none.

    A number is a JSON number, or a JSON string that is one or `Infinity`. Every digit counts."""
    digits = np.frombuffer(number.digits, dtype=np.uint8)
    return _compared(text, starts, ends, digits, number.sign, number.magnitude)


def elements(text: Any, starts: Any, ends: Any) -> tuple[Any, Any, Any]:
    """The elements of those values that are arrays: which value each is of, where it starts and ends."""
    count = int(_elements(text, starts, ends, np.empty((0, 3), dtype=np.int64)))
    found = np.empty((count, 3), dtype=np.int64)
    _elements(text, starts, ends, found)
    return found[:, 0], np.ascontiguousarray(found[:, 1]), np.ascontiguousarray(found[:, 2])


@njit(cache=True, nogil=True)
def _decoded(text, starts, ends, out, places):
    text, out, w = borrowed(text), borrowed(out), 0
    for row in range(len(starts)):
        places[row] = w
        start, end = starts[row], ends[row]
        if start >= 0 and text[start] == QUOTE:
            w = unescape(text, start + 1, end - 1, out, w)
        elif start >= 0:
            w = copy(text, start, end - start, out, w)
    places[len(starts)] = w
    return w


@njit(cache=True, nogil=True)
def _raw(text, starts, out, places):
    for row in range(len(starts)):
        copy(text, starts[row], places[row + 1] - places[row], out, places[row])


@njit(cache=True, nogil=True)
def _room(text, places):
    """Bytes that these texts need at most as JSON strings."""
    extra = 0
    for p in range(places[0], places[-1]):
        byte = text[p]
        extra += 5 if byte < SPACE else int(byte in (QUOTE, BACKSLASH))
    return places[-1] - places[0] + extra + 2 * len(places)


@njit(cache=True, nogil=True)
def _quoted(text, places, missing, out, made):
    text, out, w = borrowed(text), borrowed(out), 0
    for row in range(len(missing)):
        made[row] = w
        if missing[row]:
            continue
        w = quote(text, places[row], places[row + 1], out, w)
    made[len(missing)] = w
    return w


@njit(cache=True, nogil=True)
def quote(text, start, end, out, w):
    """What stands between two places as a JSON string, from `w` on; where it ends."""
    out[w] = QUOTE
    w += 1
    for p in range(start, end):
        byte = text[p]
        if byte >= SPACE and byte != QUOTE and byte != BACKSLASH:
            out[w] = byte
            w += 1
            continue
        out[w] = BACKSLASH
        out[w + 1] = byte if byte >= SPACE else _SHORT[byte]
        w += 2
        if byte < SPACE and _SHORT[byte] == 0:
            out[w - 1], out[w], out[w + 1] = SMALL_U, ZERO, ZERO
            out[w + 2], out[w + 3] = _HEX[byte >> 4], _HEX[byte & 15]
            w += 4
    out[w] = QUOTE
    return w + 1


@njit(cache=True, nogil=True)
def _compared(text, starts, ends, digits, sign, magnitude):
    text, digits = borrowed(text), borrowed(digits)
    out = np.empty(len(starts), dtype=np.int8)
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        if start >= 0 and text[start] == QUOTE:
            start, end = start + 1, end - 1
        out[row] = _order(text, start, end, digits, sign, magnitude) if start >= 0 else NO_NUMBER
    return out


@njit(cache=True, nogil=True)
def _order(text, start, end, digits, sign, magnitude):
    mine, size, first = _number(text, start, end)
    if mine == NO_NUMBER:
        return NO_NUMBER
    if mine != sign:
        return 1 if mine > sign else -1
    if size != magnitude:
        return mine if size > magnitude else -mine
    k, p = 0, first
    while sign != 0 and p < end and (ZERO <= text[p] <= NINE or text[p] == POINT):
        if text[p] != POINT:
            other = digits[k] if k < len(digits) else ZERO
            if text[p] != other:
                return mine if text[p] > other else -mine
            k += 1
        p += 1
    return -mine if k < len(digits) else 0


@njit(cache=True, nogil=True)
def _number(text, start, end):
    """(sign or `NO_NUMBER`, magnitude, the first digit that is not zero)."""
    p = start
    sign = 1
    if p < end and text[p] == MINUS:
        p, sign = p + 1, -1
    if end - p == len(_INFINITY) and text[p] == _INFINITY[0]:
        for k in range(len(_INFINITY)):
            if text[p + k] != _INFINITY[k]:
                return NO_NUMBER, 0, 0
        return sign, _FAR, end
    figures, size, first, point = 0, 0, -1, False
    while p < end and (ZERO <= text[p] <= NINE or (text[p] == POINT and not point)):
        if text[p] == POINT:
            point = True
        else:
            figures += 1
            if first < 0 and text[p] != ZERO:
                first = p
            size += int(first >= 0 and not point) - int(first < 0 and point)
        p += 1
    good = figures > 0
    if good and p < end and text[p] | 32 == E | 32:
        p, exponent, minus, good = p + 1, 0, False, False
        if p < end and (text[p] == MINUS or text[p] == PLUS):
            p, minus = p + 1, text[p] == MINUS
        while p < end and ZERO <= text[p] <= NINE:
            exponent, p, good = min(exponent * 10 + text[p] - ZERO, _FAR >> 1), p + 1, True
        size += -exponent if minus else exponent
    if not good or p != end:
        return NO_NUMBER, 0, 0
    return (sign, size, first) if first >= 0 else (0, 0, end)


@njit(cache=True, nogil=True)
def _elements(text, starts, ends, found):
    """Counts them, and writes down as many as there is room for."""
    text, count = borrowed(text), 0
    for row in range(len(starts)):
        if starts[row] < 0 or text[starts[row]] != OPENING[0]:
            continue
        p, end = starts[row] + 1, ends[row]
        while p < end:
            while p < end and (text[p] <= SPACE or text[p] == COMMA):
                p += 1
            if p >= end or text[p] == CLOSING[0]:
                break
            start, p = p, past_value(text, p, end)
            if count < len(found):
                found[count, 0], found[count, 1], found[count, 2] = row, start, p
            count += 1
    return count
