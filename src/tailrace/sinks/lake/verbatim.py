"""Members of JSON objects as the very text they have. Spark's JSON functions write numbers anew, and lose digits."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

QUOTE, BACKSLASH, COMMA, COLON, NULL = 34, 92, 44, 58, 110
OPENING, CLOSING = (91, 123), (93, 125)
BLANKS = (32, 9, 10, 13)


def split(text: str) -> dict[str, str]:
    """The members of a JSON object, each value as the text it has; of several with one name, the last.

    What it is made of is not checked, but that it ends: half an object is an error."""
    data = text.encode()
    places = spans(np.frombuffer(data, dtype=np.uint8)).tolist()
    if not data.startswith(b"{") or data[places[-1][0] : places[-1][1]] != b"}":
        raise ValueError("not a JSON object, or half of one")
    return {json.loads(data[a:b]): data[start:end].decode() for a, b, start, end in places[:-1]}


def members(names: Sequence[str], *, only_nested: bool) -> Callable[[pa.Array[Any]], pa.Array[Any]]:
    """A function from JSON objects to structs of the texts of these members.

    With `only_nested` a member that is neither object nor array is null; a JSON null always is.
    """
    keys = [json.dumps(name, ensure_ascii=False).encode() for name in names]
    fields = [f"c{place}" for place in range(len(names))]

    def texts(images: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark evaluates these
        columns = [_texts(images, key, only_nested) for key in keys]
        return pa.StructArray.from_arrays(columns, fields)

    return texts


def _texts(images: pa.Array[Any], key: bytes, only_nested: bool) -> pa.Array[Any]:
    images = images.cast(pa.large_string())
    _, offsets, data = images.buffers()
    assert offsets is not None
    count = len(images)
    places = np.frombuffer(memoryview(offsets), dtype=np.int64, count=images.offset + count + 1)[images.offset :]
    text = np.frombuffer(memoryview(data), dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    missing = np.asarray(images.is_null())
    spans = find(text, places, missing, np.frombuffer(key, dtype=np.uint8), only_nested)
    found = np.empty(count + 1, dtype=np.int64)
    np.cumsum(spans[:, 1] - spans[:, 0], out=found[1:])
    found[0] = 0
    copied = copy(text, spans, found)
    valid = np.packbits(spans[:, 0] >= 0, bitorder="little")
    buffers: list[pa.Buffer | None] = [pa.py_buffer(part.tobytes()) for part in (valid, found, copied)]
    whole: pa.Array[Any] = pa.Array.from_buffers(pa.large_string(), count, buffers)
    return whole.cast(pa.string())


@njit(cache=True, nogil=True)
def find(text, places, missing, key, only_nested):
    """(start, end) of the member `key` in each object; -1 where there is none."""
    spans = np.full((len(missing), 2), -1, dtype=np.int64)
    for row in range(len(missing)):
        if not missing[row]:
            start, end = _find_member(text, places[row] + 1, places[row + 1], key)
            nested = start >= 0 and text[start] in OPENING
            if start >= 0 and text[start] != NULL and (nested or not only_nested):
                spans[row, 0], spans[row, 1] = start, end
    return spans


@njit(cache=True, nogil=True)
def copy(text, spans, places):
    """The spans one after another."""
    out = np.empty(places[-1], dtype=np.uint8)
    for row in range(len(spans)):
        for k in range(spans[row, 1] - spans[row, 0]):
            out[places[row] + k] = text[spans[row, 0] + k]
    return out


@njit(cache=True, nogil=True)
def spans(text):
    """(start, end of the name, start, end of the value) of each member of one object; the last is what follows them."""
    found = []
    p = _past_blanks(text, 1)
    while p < len(text) and text[p] == QUOTE:
        name, name_end, start, end, p = _member(text, p, len(text))
        found.append((name, name_end, start, end))
    found.append((p, p + 1, p + 1, p + 1))
    return np.array(found)


@njit(cache=True, nogil=True)
def _find_member(text, p, end, key):
    p = _past_blanks(text, p)
    while p < end and text[p] == QUOTE:
        name, name_end, start, value_end, p = _member(text, p, end)
        same = name_end - name == len(key)
        for k in range(len(key)):
            if not same:
                break
            same = text[name + k] == key[k]
        if same:
            return start, value_end
    return -1, -1


@njit(cache=True, nogil=True)
def _member(text, p, end):
    """(start, end of the name, start, end of the value, where the next member is) of the member at `p`."""
    name_end = _past_string(text, p)
    start = _past_blanks(text, _past_blanks(text, name_end) + 1)
    value_end = _past_value(text, start, end)
    follows = _past_blanks(text, value_end)
    if follows < end and text[follows] == COMMA:
        follows = _past_blanks(text, follows + 1)
    return p, name_end, start, value_end, follows


@njit(cache=True, nogil=True)
def _past_blanks(text, p):
    while p < len(text) and text[p] in BLANKS:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _past_string(text, p):
    p += 1
    while p < len(text) and text[p] != QUOTE:
        p += 2 if text[p] == BACKSLASH else 1
    return min(p + 1, len(text))


@njit(cache=True, nogil=True)
def _past_value(text, p, end):
    depth = 0
    while p < end:
        byte = text[p]
        if byte == QUOTE:
            p = _past_string(text, p)
            if depth == 0:
                return p
            continue
        if byte in OPENING:
            depth += 1
        elif byte in CLOSING:
            if depth == 0:
                return p
            depth -= 1
            if depth == 0:
                return p + 1
        elif depth == 0 and (byte == COMMA or byte in BLANKS):
            return p
        p += 1
    return p
