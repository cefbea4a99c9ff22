"""Values as Debezium writes them: compiled, from JSON text to JSON text.

`(text, start, stop, …, out, at)` → the place behind what was written, or `RARE_VALUE`: nothing was.
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from tailrace.render.debezium.codes import Code

INLINED = {"codes": "65c9276f178cc4e2"}
"""The beginning of the SHA-256 of the file whose numbers are compiled into this one's functions, as in `kernel`."""

VERBATIM, FLOAT, DECIMAL, VARIABLE_DECIMAL = (
    int(code) for code in (Code.VERBATIM, Code.FLOAT, Code.DECIMAL, Code.VARIABLE_DECIMAL)
)
DATE, TIME_MICROS, TIME_MILLIS = (int(code) for code in (Code.DATE, Code.TIME_MICROS, Code.TIME_MILLIS))
MICROS, MILLIS, ZONED = (int(code) for code in (Code.MICROS, Code.MILLIS, Code.ZONED))
JSON, OMITTED = int(Code.JSON), int(Code.OMITTED)

QUOTE, BACKSLASH, COMMA, COLON, DOT, MINUS, ZERO, NINE = 34, 92, 44, 58, 46, 45, 48, 57
OPEN_LIST, CLOSE_LIST, OPEN, CLOSE, NULL = 91, 93, 123, 125, 110
BLANK = 32
DAY = 86_400_000_000
SECOND = 1_000_000
WORD_DIGITS, MOST_DIGITS = 18, 120
"""So many digits fit into a word; of more than the most, Python takes care."""
RARE_VALUE = -1
"""Instead of a place: the value was not written."""

_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NULL = np.frombuffer(b"null", dtype=np.uint8)
_QUOTED_NULL = np.frombuffer(b'"null"', dtype=np.uint8)
_SCALE = np.frombuffer(b'{"scale":', dtype=np.uint8)
_VALUE = np.frombuffer(b',"value":', dtype=np.uint8)


@njit(cache=True, nogil=True)
def put_array(text, p, stop, code, detail, out, at):
    """An array, of whatever dimensions; elements of JSON are JSON, whatever they are."""
    depth = 0
    while p < stop:
        byte = text[p]
        if byte == OPEN_LIST and not (code == JSON and depth == 1):
            depth += 1
        elif byte == CLOSE_LIST:
            depth -= 1
        elif byte != COMMA:
            end = p if byte <= BLANK else past_value(text, p, stop)
            if end > p:
                at = put_value(text, p, end, code, detail, out, at)
                if at == RARE_VALUE:
                    return RARE_VALUE
            p = max(end, p + 1)
            continue
        out[at] = byte
        at, p = at + 1, p + 1
    return at


@njit(cache=True, nogil=True)
def put_value(text, start, stop, code, detail, out, at):
    """Where it ends, or `RARE_VALUE`."""
    if code == JSON:
        return _put_json(text, start, stop, detail, out, at)
    if code == VERBATIM or text[start] == NULL:
        return copy(text, start, stop, out, at)
    if code == FLOAT:
        return _put_float(text, start, stop, out, at)
    if code in (DECIMAL, VARIABLE_DECIMAL):
        return _put_decimal(text, start, stop, code == VARIABLE_DECIMAL, detail, out, at)
    if code == DATE:
        return _put_date(text, start, stop, out, at)
    if code in (TIME_MICROS, TIME_MILLIS):
        return _put_time(text, start, stop, code == TIME_MILLIS, detail, out, at)
    if code in (MICROS, MILLIS):
        return _put_timestamp(text, start, stop, code == MILLIS, out, at)
    if code == ZONED:
        return _put_zoned(text, start, stop, detail, out, at)
    return RARE_VALUE


@njit(cache=True, nogil=True)
def _put_json(text, start, stop, null_is_value, out, at):
    """A document as a string that holds its text. A null is NULL, unless the column has no such thing."""
    if text[start] == NULL:
        return copy(_QUOTED_NULL, 0, 6, out, at) if null_is_value else copy(_NULL, 0, 4, out, at)
    out[at] = QUOTE
    at += 1
    for p in range(start, stop):
        byte = text[p]
        if byte < BLANK:
            at = _put_control(byte, out, at)
            continue
        if byte in (QUOTE, BACKSLASH):
            out[at] = BACKSLASH
            at += 1
        out[at] = byte
        at += 1
    out[at] = QUOTE
    return at + 1


@njit(cache=True, nogil=True)
def _put_control(byte, out, at):
    out[at], out[at + 1], out[at + 2], out[at + 3] = BACKSLASH, 117, ZERO, ZERO
    out[at + 4], out[at + 5] = _HEX[byte >> 4], _HEX[byte & 15]
    return at + 6


@njit(cache=True, nogil=True)
def _put_float(text, start, stop, out, at):
    """With a point, so that `-0` stays what it is."""
    at = copy(text, start, stop, out, at)
    for p in range(start, stop):
        if text[p] in (DOT, 101, 69, QUOTE):
            return at
    out[at], out[at + 1] = DOT, ZERO
    return at + 2


@njit(cache=True, nogil=True)
def _put_decimal(text, start, stop, variable, scale, out, at):
    """Digits as base64 of the unscaled number; with its scale beside it where the column has none."""
    if text[start] == QUOTE:
        start, stop = start + 1, stop - 1
    negative = text[start] == MINUS
    start += negative
    point = start
    while point < stop and text[point] != DOT:
        point += 1
    if variable:
        while stop > point + 1 and text[stop - 1] == ZERO:
            stop -= 1
        scale = max(stop - point - 1, 0)
    fraction = max(stop - point - 1, 0)
    digits = point - start + scale
    if fraction > scale or point == start or digits > MOST_DIGITS or not _all_digits(text, start, point, stop):
        return RARE_VALUE
    if variable:
        at = copy(_SCALE, 0, 9, out, at)
        at = _put_integer(scale, out, at)
        at = copy(_VALUE, 0, 9, out, at)
    unscaled = _unscaled(text, start, point, stop, scale, digits, negative)
    at = _put_base64(unscaled, out, at)
    if variable:
        out[at] = CLOSE
        at += 1
    return at


@njit(cache=True, nogil=True)
def _all_digits(text, start, point, stop):
    fine = True
    for p in range(start, stop):
        fine = fine and (p == point or ZERO <= text[p] <= NINE)
    return fine


@njit(cache=True, nogil=True)
def _unscaled(text, start, point, stop, scale, digits, negative):
    """The digits, and as many zeros as the scale wants more, as the fewest bytes of two's complement."""
    if digits <= WORD_DIGITS:
        word = 0
        for p in range(start, stop):
            if p != point:
                word = word * 10 + (text[p] - ZERO)
        for _ in range(scale - max(stop - point - 1, 0)):
            word *= 10
        return _of_word(-word if negative else word)
    number = np.zeros(digits // 2 + 2, dtype=np.uint8)
    for p in range(start, stop):
        if p != point:
            _times_ten(number, text[p] - ZERO)
    for _ in range(scale - max(stop - point - 1, 0)):
        _times_ten(number, 0)
    return _of_bytes(number, negative)


@njit(cache=True, nogil=True)
def _times_ten(number, digit):
    """`number`, lowest byte first, times ten and more."""
    carry = digit
    for k in range(len(number)):
        carry += number[k] * 10
        number[k] = carry & 255
        carry >>= 8


@njit(cache=True, nogil=True)
def _of_word(word):
    size = 1
    while size < 8 and not -(1 << (8 * size - 1)) <= word < 1 << (8 * size - 1):
        size += 1
    found = np.empty(size, dtype=np.uint8)
    for k in range(size):
        found[size - 1 - k] = (word >> (8 * k)) & 255
    return found


@njit(cache=True, nogil=True)
def _of_bytes(number, negative):
    """Highest byte first, negative where wanted, without bytes that say nothing."""
    if negative:
        carry = 1
        for k in range(len(number)):
            carry += 255 - number[k]
            number[k] = carry & 255
            carry >>= 8
    size = len(number)
    filler = 255 if negative else 0
    while size > 1 and number[size - 1] == filler and (number[size - 2] >= 128) == (filler == 255):
        size -= 1
    return number[:size][::-1].copy()


@njit(cache=True, nogil=True)
def _put_base64(data, out, at):
    out[at] = QUOTE
    at += 1
    for i in range(0, len(data), 3):
        word = 0
        for k in range(3):
            word = (word << 8) | (data[i + k] if i + k < len(data) else 0)
        for k in range(4):
            out[at + k] = _BASE64[(word >> (18 - 6 * k)) & 63] if i + k <= len(data) else 61
        at += 4
    out[at] = QUOTE
    return at + 1


@njit(cache=True, nogil=True)
def _put_date(text, start, stop, out, at):
    if stop - start != 12:
        return RARE_VALUE
    days, fine = _days(text, start + 1)
    return _put_integer(days, out, at) if fine else RARE_VALUE


@njit(cache=True, nogil=True)
def _put_time(text, start, stop, millis, in_array, out, at):
    if stop - start != 17:
        return RARE_VALUE
    micros = _clock(text, start + 1)
    if micros < 0:
        return RARE_VALUE
    if in_array:
        micros = micros % DAY // 1000 * 1000
    return _put_integer(micros // 1000 if millis else micros, out, at)


@njit(cache=True, nogil=True)
def _put_timestamp(text, start, stop, millis, out, at):
    if stop - start != 28 or text[start + 11] != 84:
        return RARE_VALUE
    days, fine = _days(text, start + 1)
    clock = _clock(text, start + 12)
    if not fine or clock < 0:
        return RARE_VALUE
    micros = days * DAY + clock
    return _put_integer(micros // 1000 if millis else micros, out, at)


@njit(cache=True, nogil=True)
def _put_zoned(text, start, stop, digits, out, at):
    """As it is, with as many fractional digits as the column has."""
    if stop - start != 29 or text[stop - 2] != 90 or not _days(text, start + 1)[1] or _clock(text, start + 12) < 0:
        return RARE_VALUE
    at = copy(text, start, start + 20, out, at)
    if digits > 0:
        at = copy(text, start + 20, start + 21 + digits, out, at)
    out[at], out[at + 1] = 90, QUOTE
    return at + 2


@njit(cache=True, nogil=True)
def _days(text, p):
    """Days since 1970 of `YYYY-MM-DD`, and whether it is one."""
    year, month, day = _number(text, p, 4), _number(text, p + 5, 2), _number(text, p + 8, 2)
    if min(year, month, day) < 0 or text[p + 4] != MINUS or text[p + 7] != MINUS:
        return 0, False
    early = month <= 2
    year -= early
    months = month + 9 if early else month - 3
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * months + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468, True


@njit(cache=True, nogil=True)
def _clock(text, p):
    """Microseconds of `HH:MM:SS.ffffff`, or -1 where it is none."""
    hour, minute, second = _number(text, p, 2), _number(text, p + 3, 2), _number(text, p + 6, 2)
    micros = _number(text, p + 9, 6)
    if min(hour, minute, second, micros) < 0 or text[p + 2] != COLON or text[p + 5] != COLON or text[p + 8] != DOT:
        return -1
    return ((hour * 60 + minute) * 60 + second) * SECOND + micros


@njit(cache=True, nogil=True)
def _number(text, p, size):
    """So many digits, or -1."""
    found = 0
    for k in range(size):
        digit = text[p + k] - ZERO
        if digit < 0 or digit > 9:
            return -1
        found = found * 10 + digit
    return found


@njit(cache=True, nogil=True)
def _put_integer(number, out, at):
    if number < 0:
        out[at] = MINUS
        at += 1
    size, rest = 1, number
    while rest <= -10 or rest >= 10:
        rest = -(-rest // 10) if rest < 0 else rest // 10
        size += 1
    for k in range(size - 1, -1, -1):
        rest = -(-number // 10) if number < 0 else number // 10
        out[at + k] = ZERO + abs(number - rest * 10)
        number = rest
    return at + size


# Reading JSON
@njit(cache=True, nogil=True)
def past_blanks(text, p):
    while p < len(text) and text[p] <= BLANK:
        p += 1
    return p


@njit(cache=True, nogil=True)
def past_string(text, p):
    p += 1
    while p < len(text) and text[p] != QUOTE:
        p += 2 if text[p] == BACKSLASH else 1
    return min(p + 1, len(text))


@njit(cache=True, nogil=True)
def past_value(text, p, end):
    depth = 0
    while p < end:
        byte = text[p]
        if byte == QUOTE:
            p = past_string(text, p)
            if depth == 0:
                return p
            continue
        if byte in (OPEN, OPEN_LIST):
            depth += 1
        elif byte in (CLOSE, CLOSE_LIST):
            if depth == 0:
                return p
            depth -= 1
            if depth == 0:
                return p + 1
        elif depth == 0 and (byte == COMMA or byte <= BLANK):
            return p
        p += 1
    return p


@njit(cache=True, nogil=True)
def copy(text, start, stop, out, at):
    for k in range(stop - start):
        out[at + k] = text[start + k]
    return at + stop - start
