"""Members of JSON objects as the very text they have. Spark's JSON functions write numbers anew, and lose digits.

split      one object's members
members    the texts of some members of many objects
locate     where some members of many objects stand, at any depth, for whoever reads or changes them there
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tailrace.words import borrowed, copy, equal_to, first_mark, word_at

INLINED = {"words": "7040ed545e90861d"}
"""What of other files is compiled into this one: see `capture.postgres.json_text`."""

QUOTE, BACKSLASH, COMMA, COLON, NULL = 34, 92, 44, 58, 110
OPENING, CLOSING = (91, 123), (93, 125)
SPACE = 32
U = 117
ESCAPED, CONTROLS = (98, 102, 110, 114, 116), (8, 12, 10, 13, 9)
"""The letters behind a backslash that stand for another character, and those characters."""
HIGH, LOW, NO_CHARACTER = 0xD800, 0xDC00, 0xFFFD
"""The first halves of pairs, the second ones, and what stands for half a pair."""
LEADS = (0, 0xC0, 0xE0, 0xF0)

FIRST, NEXT, NAME, NAME_END, SLOT, OTHERS = range(6)
"""What a node of `Paths.nodes` has: its first child, its next sibling, where its name is in `Paths.names`, the slot of
its member, the slot of members of its value that no child names. -1: none."""
ROW, WHICH, START, COLON, VALUE, END, BEHIND, FOLLOWING = range(8)
"""What `locate` tells of a member: its row and slot, where its name starts and ends, where its value starts and ends,
the end of the member before it and the start of the one behind it in the same object. -1: there is none."""


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
    text, places, missing = buffers(images)
    spans = find(text, places, missing, np.frombuffer(key, dtype=np.uint8), only_nested)
    found = np.zeros(len(missing) + 1, dtype=np.int64)
    np.cumsum(spans[:, 1] - spans[:, 0], out=found[1:])
    return texts(copied(text, spans, found), found, spans[:, 0] >= 0)


Texts = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]


def buffers(array: pa.Array[Any]) -> Texts:
    """An array of texts as bytes, the places between which each one stands (64-bit), and which are null."""
    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    assert offsets is not None
    places = np.frombuffer(memoryview(offsets), dtype=np.int64, count=array.offset + len(array) + 1)[array.offset :]
    text = np.frombuffer(memoryview(data) if data is not None else b"", dtype=np.uint8)
    return text, places, np.asarray(array.is_null())


def texts(data: Any, places: Any, valid: Any) -> pa.Array[Any]:
    """The inverse: an array of the texts between these places."""
    bits: Any = np.packbits(valid, bitorder="little")
    parts: list[Any] = [pa.py_buffer(part) for part in (bits, places, data)]
    return pa.Array.from_buffers(pa.large_string(), len(valid), parts).cast(pa.string())


@dataclass
class Paths:
    """Names of members as tries, one for each kind of object: what `locate` looks for. A `slot` is a number of the
    caller's for a path; several paths may share one."""

    nodes: list[list[int]]
    names: bytearray

    @classmethod
    def none(cls) -> Paths:
        return cls([], bytearray())

    def root(self, others: int = -1) -> int:
        """A new trie. `others`: the slot of every member of the object that no path begins with."""
        self.nodes.append([-1, -1, 0, 0, -1, others])
        return len(self.nodes) - 1

    def add(self, root: int, path: Iterable[str], slot: int) -> None:
        """The member at this path has this slot."""
        node = root
        for name in path:
            node = self._child(node, name.encode())
        self.nodes[node][SLOT] = slot

    def arrays(self) -> tuple[Any, Any]:
        """`nodes` and `names` as `locate` takes them."""
        return np.array(self.nodes, dtype=np.int64).reshape(-1, 6), np.frombuffer(bytes(self.names), dtype=np.uint8)

    def _child(self, node: int, name: bytes) -> int:
        last, child = -1, self.nodes[node][FIRST]
        while child >= 0:
            if self.names[self.nodes[child][NAME] : self.nodes[child][NAME_END]] == name:
                return child
            last, child = child, self.nodes[child][NEXT]
        self.nodes.append([-1, -1, len(self.names), len(self.names) + len(name), -1, -1])
        self.names += name
        made = len(self.nodes) - 1
        self.nodes[node if last < 0 else last][FIRST if last < 0 else NEXT] = made
        return made


@njit(cache=True, nogil=True)
def find(text, places, missing, key, only_nested):
    """(start, end) of the member `key` in each object; -1 where there is none."""
    text, places, key = borrowed(text), borrowed(places), borrowed(key)
    spans = np.full((len(missing), 2), -1, dtype=np.int64)
    for row in range(len(missing)):
        if not missing[row]:
            start, end = _find_member(text, places[row] + 1, places[row + 1], key)
            nested = start >= 0 and text[start] in OPENING
            if start >= 0 and text[start] != NULL and (nested or not only_nested):
                spans[row, 0], spans[row, 1] = start, end
    return spans


@njit(cache=True, nogil=True)
def copied(text, spans, places):
    """The spans one after another."""
    out = np.empty(places[-1], dtype=np.uint8)
    for row in range(len(spans)):
        copy(text, spans[row, 0], spans[row, 1] - spans[row, 0], out, places[row])
    return out


@njit(cache=True, nogil=True)
def locate(text, places, roots, nodes, names, once):
    """The members that `nodes` and `names` (see `Paths`) name, of each object in the trie `roots` says; -1: none.

    One row of `ROW`, `WHICH` … for each, in the order they stand in. `once`: names at the top are there once, and what
    stands behind the last that is looked for is not read."""
    members = np.empty((len(roots) + 16, 8), dtype=np.int64)
    stack = np.empty((4, len(nodes) + 1), dtype=np.int64)
    found, count, row = borrowed(members), 0, 0
    while row < len(roots):
        row, count = _located(
            borrowed(text),
            borrowed(places),
            borrowed(roots),
            borrowed(nodes),
            borrowed(names),
            once,
            row,
            borrowed(stack),
            found,
            count,
        )
        if row < len(roots):
            larger = np.empty((2 * len(members), 8), dtype=np.int64)
            larger[:count] = members[:count]
            members = larger
            found = borrowed(members)
    return members[:count]


@njit(cache=True, nogil=True)
def _located(text, places, roots, nodes, names, once, row, stack, found, count):
    """Those of the objects from `row` on, as long as there is room: the first one that has none, and the count."""
    here, owner, last, behind = stack[0], stack[1], stack[2], stack[3]
    while row < len(roots):
        if roots[row] < 0:
            row += 1
            continue
        begun = count
        depth, end = 0, places[row + 1]
        here[0], owner[0], last[0], behind[0] = roots[row], -1, -1, -1
        left = _children(nodes, roots[row]) if once else -1
        p = past_blanks(text, places[row] + 1)
        while p < end and left != 0:
            if text[p] == QUOTE:
                colon = _marked(text, p + 1)
                escaped = colon < end and text[colon] == BACKSLASH
                colon = past_string(text, p) if escaped else colon + 1
                value = past_blanks(text, past_blanks(text, colon) + 1)
                node = _child(text, p, colon, escaped, nodes, names, here[depth])
                slot = nodes[node, SLOT] if node >= 0 else nodes[here[depth], OTHERS]
                if last[depth] >= 0:
                    found[last[depth], FOLLOWING] = p
                last[depth] = -1
                if slot >= 0:
                    if count == len(found):
                        return row, begun
                    found[count, ROW], found[count, WHICH], found[count, START] = row, slot, p
                    found[count, COLON], found[count, VALUE] = colon, value
                    found[count, BEHIND], found[count, FOLLOWING] = behind[depth], -1
                    last[depth] = count
                    count += 1
                if node >= 0 and nodes[node, FIRST] >= 0 and text[value] == OPENING[1]:
                    depth += 1
                    here[depth], owner[depth], last[depth], behind[depth] = node, last[depth - 1], -1, -1
                    p = past_blanks(text, value + 1)
                    continue
                p = past_value(text, value, end)
                if slot >= 0:
                    found[last[depth], END] = p
                left -= int(depth == 0 and node >= 0)
            else:  # the end of an object
                if depth == 0:
                    break
                p += 1
                if owner[depth] >= 0:
                    found[owner[depth], END] = p
                depth -= 1
                left -= int(depth == 0)
            behind[depth] = p
            p = past_blanks(text, p)
            if p < end and text[p] == COMMA:
                p = past_blanks(text, p + 1)
        row += 1
    return row, count


@njit(cache=True, nogil=True)
def _children(nodes, node):
    count, child = 0, nodes[node, FIRST]
    while child >= 0:
        count, child = count + 1, nodes[child, NEXT]
    return count


@njit(cache=True, nogil=True, forceinline=True)
def _child(text, start, end, escaped, nodes, names, node):
    """The child of a node that has the name between these quotes, or -1."""
    if escaped:
        name = np.empty(end - start, dtype=np.uint8)
        length = unescape(text, start + 1, end - 1, name, 0)
        return _named(name, 0, length, nodes, names, node)
    return _named(text, start + 1, end - 1, nodes, names, node)


@njit(cache=True, nogil=True, forceinline=True)
def _named(text, start, end, nodes, names, node):
    child = nodes[node, FIRST]
    while child >= 0:
        at = nodes[child, NAME]
        if nodes[child, NAME_END] - at == end - start:
            k = start
            while k < end and text[k] == names[at + k - start]:
                k += 1
            if k == end:
                return child
        child = nodes[child, NEXT]
    return child


@njit(cache=True, nogil=True)
def unescape(text, start, end, out, w):
    """What stands between the quotes of a JSON string, as UTF-8 from `w` on; where it ends. It is never longer."""
    p = start
    while p < end:
        byte = text[p]
        if byte != BACKSLASH or p + 1 >= end:
            out[w] = byte
            p, w = p + 1, w + 1
            continue
        byte = text[p + 1]
        p += 2
        if byte != U:
            for k in range(len(ESCAPED)):
                if byte == ESCAPED[k]:
                    byte = CONTROLS[k]
                    break
            out[w] = byte
            w += 1
            continue
        code = _hex(text, p, end)
        p += 4
        if HIGH <= code < LOW:  # half of a pair: a character beyond the first 65536
            low = _hex(text, p + 2, end) if p + 6 <= end and text[p] == BACKSLASH and text[p + 1] == U else 0
            paired = LOW <= low < LOW + 0x400
            code = 0x10000 + ((code - HIGH) << 10) + low - LOW if paired else NO_CHARACTER
            p += 6 if paired else 0
        elif LOW <= code < LOW + 0x400:
            code = NO_CHARACTER
        w = _utf8(code, out, w)
    return w


@njit(cache=True, nogil=True)
def _hex(text, p, end):
    code = 0
    for k in range(p, min(p + 4, end)):
        digit = text[k]
        code = code * 16 + (digit - 48 if digit < 58 else (digit | 32) - 87)  # 0-9, then a-f
    return code


@njit(cache=True, nogil=True)
def _utf8(code, out, w):
    if code < 0x80:
        out[w] = code
        return w + 1
    more = 1 if code < 0x800 else 2 if code < 0x10000 else 3
    out[w] = LEADS[more] | code >> 6 * more
    for k in range(more):
        out[w + 1 + k] = 0x80 | code >> 6 * (more - 1 - k) & 0x3F
    return w + 1 + more


@njit(cache=True, nogil=True)
def spans(text):
    """(start, end of the name, start, end of the value) of each member of one object; the last is what follows them."""
    found = []
    p = past_blanks(text, 1)
    while p < len(text) and text[p] == QUOTE:
        name, name_end, start, end, p = _member(text, p, len(text))
        found.append((name, name_end, start, end))
    found.append((p, p + 1, p + 1, p + 1))
    return np.array(found)


@njit(cache=True, nogil=True)
def _find_member(text, p, end, key):
    p = past_blanks(text, p)
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
    name_end = past_string(text, p)
    start = past_blanks(text, past_blanks(text, name_end) + 1)
    value_end = past_value(text, start, end)
    follows = past_blanks(text, value_end)
    if follows < end and text[follows] == COMMA:
        follows = past_blanks(text, follows + 1)
    return p, name_end, start, value_end, follows


@njit(cache=True, nogil=True, forceinline=True)
def past_blanks(text, p):
    while p < len(text) and text[p] <= SPACE:
        p += 1
    return p


@njit(cache=True, nogil=True, forceinline=True)
def past_string(text, p):
    p = _marked(text, p + 1)
    while p < len(text) and text[p] == BACKSLASH:
        p = _marked(text, p + 2)
    return min(p + 1, len(text))


@njit(cache=True, nogil=True, forceinline=True)
def _marked(text, p):
    """The next quote or backslash."""
    while p + 8 <= len(text):
        word = word_at(text, p)
        marks = equal_to(word, QUOTE) | equal_to(word, BACKSLASH)
        if marks:
            return p + first_mark(marks)
        p += 8
    while p < len(text) and text[p] != QUOTE and text[p] != BACKSLASH:
        p += 1
    return p


@njit(cache=True, nogil=True, forceinline=True)
def past_value(text, p, end):
    if p < end and text[p] == QUOTE:
        return past_string(text, p)
    if p < end and (text[p] == OPENING[0] or text[p] == OPENING[1]):
        return _past_nested(text, p, end)
    while p < end and text[p] > SPACE and text[p] != COMMA and text[p] != CLOSING[0] and text[p] != CLOSING[1]:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _past_nested(text, p, end):
    depth = 0
    while p < end:
        byte = text[p]
        if byte == QUOTE:
            p = past_string(text, p)
            continue
        p += 1
        if byte == OPENING[0] or byte == OPENING[1]:
            depth += 1
        elif byte == CLOSING[0] or byte == CLOSING[1]:
            depth -= 1
            if depth == 0:
                return p
    return p
