"""Texts that are JSON objects: payloads in columns of text. Compiled."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tailrace.json_members import BACKSLASH, CLOSING, COMMA, OPENING, QUOTE, SPACE, U, buffers
from tailrace.processors.texts import MINUS, NINE, PLUS, POINT, ZERO
from tailrace.words import borrowed

INLINED = {"json_members": "12931cd5bf641dba", "texts": "af57dc5faa40e52f", "words": "7040ed545e90861d"}
"""What of other files is compiled into this one: see `capture.postgres.json_text`."""

_COLON, _SMALL_E = 58, 101
_ESCAPES = np.zeros(256, dtype=np.bool_)
_ESCAPES[list(b'"\\/bfnrt')] = True
_HEX = np.zeros(256, dtype=np.bool_)
_HEX[list(b"0123456789abcdefABCDEF")] = True
_BLANK = np.zeros(256, dtype=np.bool_)
_BLANK[list(b" \t\n\r")] = True
_WORDS = (np.frombuffer(b"true", np.uint8), np.frombuffer(b"false", np.uint8), np.frombuffer(b"null", np.uint8))
_VALUE, _VALUE_OR_END, _NAME, _NAME_OR_END, _BEHIND = range(5)
"""What may come next."""


def objects(array: pa.Array[Any]) -> Any:
    """The texts that are JSON objects, as row images have them: without line breaks and blanks around. Null: the
    others."""
    text, places, missing = buffers(array)
    good: Any = pa.array(_are_objects(text, places, missing))
    lines: Any = pc.replace_substring_regex(array, "[\r\n]", " ")
    return pc.if_else(good, pc.utf8_trim_whitespace(lines), pa.scalar(None, pa.string()))


@njit(cache=True, nogil=True)
def _are_objects(text, places, missing):
    text, good = borrowed(text), np.zeros(len(missing), dtype=np.bool_)
    for row in range(len(missing)):
        if not missing[row]:
            good[row] = _is_object(text, places[row], places[row + 1])
    return good


@njit(cache=True, nogil=True)
def _is_object(text, p, end):
    """Goes through the text as through a grammar, with what is open on a stack."""
    p = _past_blanks(text, p, end)
    if p >= end or text[p] != OPENING[1]:
        return False
    room = 0
    for k in range(p, end):
        room += int(text[k] == OPENING[0] or text[k] == OPENING[1])
    opened = np.empty(room, dtype=np.uint8)
    depth, state = 0, _VALUE
    while True:
        p = _past_blanks(text, p, end)
        if p >= end:
            return depth == 0 and state == _BEHIND
        byte = text[p]
        closes = depth > 0 and byte == CLOSING[opened[depth - 1]]
        if closes and state in (_BEHIND, _VALUE_OR_END, _NAME_OR_END):
            p, depth, state = p + 1, depth - 1, _BEHIND
        elif state == _BEHIND:
            if depth == 0 or byte != COMMA:
                return False
            p, state = p + 1, _NAME if opened[depth - 1] == 1 else _VALUE
        elif state in (_NAME, _NAME_OR_END):
            p = _past_blanks(text, _past_string(text, p, end), end)
            if p >= end or text[p] != _COLON:
                return False
            p, state = p + 1, _VALUE
        elif byte == OPENING[0] or byte == OPENING[1]:
            opened[depth] = int(byte == OPENING[1])
            p, depth, state = p + 1, depth + 1, _NAME_OR_END if byte == OPENING[1] else _VALUE_OR_END
        else:
            p, state = _past_scalar(text, p, end), _BEHIND
        if p > end:
            return False


@njit(cache=True, nogil=True)
def _past_blanks(text, p, end):
    while p < end and _BLANK[text[p]]:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _past_string(text, p, end):
    """Where a string ends; beyond the end where there is none."""
    if text[p] != QUOTE:
        return end + 1
    p += 1
    while p < end and text[p] != QUOTE:
        if text[p] < SPACE:
            return end + 1
        if text[p] != BACKSLASH:
            p += 1
            continue
        if p + 1 < end and _ESCAPES[text[p + 1]]:
            p += 2
            continue
        if p + 5 >= end or text[p + 1] != U:
            return end + 1
        for k in range(p + 2, p + 6):
            if not _HEX[text[k]]:
                return end + 1
        p += 6
    return p + 1


@njit(cache=True, nogil=True)
def _past_scalar(text, p, end):
    if text[p] == QUOTE:
        return _past_string(text, p, end)
    for word in _WORDS:
        if text[p] == word[0]:
            k = 0
            while k < len(word) and p + k < end and text[p + k] == word[k]:
                k += 1
            return p + k if k == len(word) else end + 1
    p += int(text[p] == MINUS)
    if p < end and text[p] == ZERO:
        p += 1
    else:
        p = _past_digits(text, p, end)
    if p < end and text[p] == POINT:
        p = _past_digits(text, p + 1, end)
    if p < end and text[p] | 32 == _SMALL_E:
        p += 1
        p += int(p < end and (text[p] == PLUS or text[p] == MINUS))
        p = _past_digits(text, p, end)
    return p


@njit(cache=True, nogil=True)
def _past_digits(text, p, end):
    """At least one; beyond the end where there is none."""
    if p >= end or text[p] < ZERO or text[p] > NINE:
        return end + 1
    while p < end and ZERO <= text[p] <= NINE:
        p += 1
    return p
