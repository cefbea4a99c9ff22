"""Where the members of JSON objects are, and what their values stand for: loops over bytes, compiled.

Functions that look at a column return the row in which something is not spelled as taps spell it, or -1."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

QUOTE, BACKSLASH, SLASH, COMMA, COLON, POINT = 34, 92, 47, 44, 58, 46
NULL_WORD, TRUE_WORD, FALSE_WORD = tuple(b"null"), tuple(b"true"), tuple(b"false")
MINUS, PLUS, ZERO, NINE = 45, 43, 48, 57
OPENING, CLOSING = (91, 123), (93, 125)
OPEN, CLOSE = 123, 125
BLANKS = (32, 9, 10, 13)
SPACE = 32
EXPONENTS = (69, 101)
LETTERS = ((98, 8), (102, 12), (110, 10), (114, 13), (116, 9))
"""What follows a backslash, and the character that both stand for."""
UNICODE = 117
UNKNOWN, UNSURE = -1, -2
HIGH, LOW, ABOVE = 0xD800, 0xDC00, 0xE000
"""Where the halves of pairs begin, and what is behind them."""
MOST = np.uint64(1 << 63)
DIGITS = 19
"""Of the largest 64-bit number."""

# -- where the values are ------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def locate(text, places, names, ends, spans):
    """Find the value of each name (which lie one after another, with their quotes) in each object."""
    for row in range(len(places) - 1):
        if not _object(text, places[row], places[row + 1], names, ends, spans, row):
            return row
    return -1


@njit(cache=True, nogil=True)
def _object(text, p, end, names, ends, spans, row):
    following = 0
    if p >= end or text[p] != OPEN:
        return False
    p = _past_blanks(text, p + 1, end)
    while p < end and text[p] == QUOTE:
        column, name_end = _name(text, p, end, names, ends, following)
        if column == UNSURE:
            return False
        p = _past_blanks(text, name_end, end)
        if p >= end or text[p] != COLON:
            return False
        start = _past_blanks(text, p + 1, end)
        value_end = _past_value(text, start, end)
        if value_end <= start:
            return False
        if column >= 0:
            if spans[column, row, 0] != -1:
                return False  # a name that is there twice
            following = column + 1
            spans[column, row, 0], spans[column, row, 1] = start, value_end
        p = _past_blanks(text, value_end, end)
        if p >= end or text[p] != COMMA:
            break
        p = _past_blanks(text, p + 1, end)
        if p >= end or text[p] != QUOTE:
            return False
    return _without_nulls(text, spans, row) and p + 1 == end and text[p] == CLOSE


@njit(cache=True, nogil=True)
def _without_nulls(text, spans, row):
    for column in range(len(spans)):
        start, end = spans[column, row]
        if start >= 0 and text[start] == NULL_WORD[0]:
            if not _is_word(text, start, end, NULL_WORD):
                return False
            spans[column, row, 0], spans[column, row, 1] = -1, -1
    return True


@njit(cache=True, nogil=True)
def _name(text, p, end, names, ends, following):
    """(which column the name at `p` is, as most often the one after the last, where the name ends). UNKNOWN: none;
    UNSURE: it may be one that is spelled otherwise."""
    count = len(ends) - 1
    for step in range(count):
        column = following + step
        column -= count if column >= count else 0
        if _is_at(text, p, end, names, ends[column], ends[column + 1]):
            return column, p + ends[column + 1] - ends[column]
    name_end = _past_string(text, p, end)
    for k in range(p, name_end):
        if text[k] == BACKSLASH:
            return UNSURE, name_end
    return UNKNOWN, name_end


@njit(cache=True, nogil=True)
def _is_at(text, p, end, names, name, name_end):
    if end - p < name_end - name:
        return False
    for k in range(name_end - name):
        if text[p + k] != names[name + k]:
            return False
    return True


@njit(cache=True, nogil=True)
def _past_blanks(text, p, end):
    while p < end and text[p] <= SPACE and text[p] in BLANKS:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _past_string(text, p, end):
    p += 1
    while p < end and text[p] != QUOTE:
        p += 2 if text[p] == BACKSLASH else 1
    return min(p + 1, end)


@njit(cache=True, nogil=True)
def _past_value(text, p, end):
    if p < end and text[p] == QUOTE:
        return _past_string(text, p, end)
    if p < end and text[p] in OPENING:
        return _past_nested(text, p, end)
    while p < end and text[p] != COMMA and text[p] != CLOSE and text[p] > SPACE:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _past_nested(text, p, end):
    depth = 0
    while p < end:
        byte = text[p]
        if byte == QUOTE:
            p = _past_string(text, p, end)
            continue
        p += 1
        if byte in OPENING:
            depth += 1
        elif byte in CLOSING:
            depth -= 1
            if depth == 0:
                break
    return p


# -- what the values are -------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def copy(text, spans, offsets, out):
    """The texts, one after another."""
    at = 0
    for row in range(len(spans)):
        start, end = spans[row]
        for p in range(start, end):
            out[at] = text[p]
            at += 1
        offsets[row + 1] = at


@njit(cache=True, nogil=True)
def copy_strings(text, spans, offsets, out):
    """The characters of JSON strings, one string after another."""
    at = 0
    for row in range(len(spans)):
        p, end = spans[row]
        if p >= 0:
            if text[p] != QUOTE or text[end - 1] != QUOTE or end - p < 2:
                return row
            p += 1
            while p < end - 1:
                byte = text[p]
                if byte == BACKSLASH:
                    p, at = _unescape(text, p, end - 1, out, at)
                    if p < 0:
                        return row
                elif byte < SPACE:
                    return row
                else:
                    out[at] = byte
                    at += 1
                    p += 1
        offsets[row + 1] = at
    return -1


@njit(cache=True, nogil=True)
def copy_texts(text, spans, offsets, out):
    """The characters of JSON strings, and all other values as they stand, one after another."""
    at = 0
    for row in range(len(spans)):
        p, end = spans[row]
        is_string = p >= 0 and text[p] == QUOTE
        if is_string:
            p, end = p + 1, end - 1
        while p < end:
            if is_string and text[p] == BACKSLASH:
                p, at = _unescape(text, p, end, out, at)
                if p < 0:
                    return row
            else:
                out[at] = text[p]
                at += 1
                p += 1
        offsets[row + 1] = at
    return -1


@njit(cache=True, nogil=True)
def _unescape(text, p, end, out, at):
    """(where reading goes on, where writing does) after the escape at `p`; -1: it is none."""
    if p + 1 >= end:
        return -1, at
    letter = text[p + 1]
    if letter == UNICODE:
        return _unescape_code(text, p, end, out, at)
    out[at] = letter
    if letter in (QUOTE, BACKSLASH, SLASH):
        return p + 2, at + 1
    for known, byte in LETTERS:
        if letter == known:
            out[at] = byte
            return p + 2, at + 1
    return -1, at


@njit(cache=True, nogil=True)
def _unescape_code(text, p, end, out, at):
    code = _code(text, p, end)
    p += 6
    if HIGH <= code < LOW:
        low = _code(text, p, end)
        p += 6
        code = ((code - HIGH) << 10) + (low - LOW) + 0x10000 if LOW <= low < ABOVE else -1
    elif LOW <= code < ABOVE:
        code = -1  # half a character
    return (p, _put_utf8(out, at, code)) if code >= 0 else (-1, at)


@njit(cache=True, nogil=True)
def _code(text, p, end):
    """What the escape at `p` stands for; -1 where there is none."""
    if p + 6 > end or text[p] != BACKSLASH or text[p + 1] != UNICODE:
        return -1
    code = 0
    for k in range(p + 2, p + 6):
        byte = text[k]
        if ZERO <= byte <= NINE:
            digit = byte - ZERO
        elif 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        code = code * 16 + digit
    return code


@njit(cache=True, nogil=True)
def _put_utf8(out, at, code):
    if code < 0x80:
        out[at] = code
        return at + 1
    size = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    for k in range(size - 1, 0, -1):
        out[at + k] = 0x80 | (code & 0x3F)
        code >>= 6
    out[at] = (0xF00 >> size) & 0xFF | code
    return at + size


@njit(cache=True, nogil=True)
def integers(text, spans, out):
    for row in range(len(spans)):
        p, end = spans[row]
        if p >= 0:
            minus = text[p] == MINUS
            first = p + 1 if minus else p
            if not first < end <= first + DIGITS or (text[first] == ZERO and end > first + 1):
                return row
            number = np.uint64(0)
            for k in range(first, end):
                if not ZERO <= text[k] <= NINE:
                    return row
                number = number * np.uint64(10) + np.uint64(text[k] - ZERO)
            if number > MOST or (number == MOST and not minus):
                return row
            out[row] = -np.int64(number) if minus else np.int64(number)
    return -1


@njit(cache=True, nogil=True)
def booleans(text, spans, out):
    for row in range(len(spans)):
        start, end = spans[row]
        if start >= 0:
            out[row] = text[start] == TRUE_WORD[0]
            if not (_is_word(text, start, end, TRUE_WORD) or _is_word(text, start, end, FALSE_WORD)):
                return row
    return -1


@njit(cache=True, nogil=True)
def _is_word(text, start, end, word):
    if end - start != len(word):
        return False
    for k in range(len(word)):
        if text[start + k] != word[k]:
            return False
    return True


@njit(cache=True, nogil=True)
def numbers_only(text, spans, quoted):
    """Whether all are numbers as JSON spells them, `quoted` ones without an exponent."""
    for row in range(len(spans)):
        start, end = spans[row]
        if start >= 0:
            if quoted:
                if text[start] != QUOTE:
                    return row
                start, end = start + 1, end - 1
            if not _is_number(text, start, end, not quoted):
                return row
    return -1


@njit(cache=True, nogil=True)
def _is_number(text, p, end, exponent):
    p += p < end and text[p] == MINUS
    whole = _past_digits(text, p, end)
    if whole == p or (text[p] == ZERO and whole > p + 1):
        return False
    p = whole
    if p < end and text[p] == POINT:
        fraction = _past_digits(text, p + 1, end)
        if fraction == p + 1:
            return False
        p = fraction
    if exponent and p < end and text[p] in EXPONENTS:
        p += 1
        p += p < end and (text[p] == MINUS or text[p] == PLUS)
        power = _past_digits(text, p, end)
        if power == p:
            return False
        p = power
    return p == end


@njit(cache=True, nogil=True)
def _past_digits(text, p, end):
    while p < end and ZERO <= text[p] <= NINE:
        p += 1
    return p
