"""Row images taken apart into the columns they become, and put together again. Compiled."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tailrace.json_members import (
    BACKSLASH,
    CLOSING,
    COMMA,
    OPENING,
    QUOTE,
    SPACE,
    Paths,
    buffers,
    past_blanks,
    past_string,
    past_value,
    texts,
    unescape,
)
from tailrace.processors.texts import ZERO, quote
from tailrace.words import borrowed, copy

INLINED = {"json_members": "12931cd5bf641dba", "texts": "af57dc5faa40e52f", "words": "7040ed545e90861d"}
"""What of other files is compiled into this one: see `capture.postgres.json_text`."""

PRESERVE, DROP, NULL = range(3)
"""What becomes of an empty object or list."""
LAST, FIRST, REFUSE = range(3)
"""Which of several columns with one name stays."""

ROW, NAME, NAME_END, MEMBER, VALUE, END, FORM = range(7)
"""What is known of a column: its row, where its name is in `Leaves.names`, where its member in the image begins (-1: it
is none), where its value starts and ends, and its form."""
OWN, CLEARED, MADE, MADE_NULL = range(4)
"""Forms: a member as it stands, one that becomes null, one made of a nested value, and such a one that becomes null."""
_PIECE, _PIECE_END, _COUNT = range(3)
"""Of the way to a value, at each level: the name between its quotes, or -1 and the place in a list; and how many
elements of a list were met (-1: it is an object)."""
_COLUMNS, _LEVELS, _NAMES = -1, -2, -3
"""What there was no room for."""
_FNV, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_DIGITS = 20
_COLON, _LEFT, _RIGHT = 58, OPENING[1], CLOSING[1]
_NULL = np.frombuffer(b"null", dtype=np.uint8)


@dataclass(frozen=True)
class Rules:
    """How far images are taken apart."""

    separator: bytes
    max_depth: int
    index_lists: bool
    empty_object: int
    empty_list: int

    def take_apart(self, images: pa.Array[Any], roots: Any, closed: Paths) -> Leaves:
        """`roots`: for each image the trie of the columns that stay whole; -1: the image stays as it is."""
        text, places, missing = buffers(images)
        wanted = np.where(missing, -1, roots).astype(np.int64)
        separator = np.frombuffer(self.separator, dtype=np.uint8)
        options = (self.max_depth, self.index_lists, self.empty_object, self.empty_list)
        found, names, touched = _taken_apart(text, places, wanted, *closed.arrays(), separator, *options)
        return Leaves(text, places, missing, found, names, touched)


@dataclass(frozen=True)
class Leaves:
    """The columns that images become. `touched`: which images do not stay as they are; only theirs are told."""

    text: Any
    places: Any
    missing: Any
    found: Any
    names: Any
    touched: Any

    def settled(self, rule: int) -> tuple[Any, int]:
        """Which columns stay, where several of an image have one name; with `REFUSE`, the first that comes again, or
        -1."""
        stays = np.ones(len(self.found), dtype=np.bool_)
        return stays, int(_settled(self.found, self.names, stays, rule))

    def name(self, which: Any) -> pa.Array[Any]:
        """The names of these columns."""
        size = (self.found[which, NAME_END] - self.found[which, NAME]).astype(np.int64)
        places = np.concatenate([[0], np.cumsum(size)])
        return texts(_gathered(self.found, self.names, which, places), places, np.ones(len(which), dtype=np.bool_))

    def joined(self, stays: Any, gathered: Any, into: str) -> pa.Array[Any]:
        """The images with these columns; those `gathered` are members of an object at their end, called `into`."""
        name = np.frombuffer(into.encode(), dtype=np.uint8)
        special = int(np.count_nonzero((self.names < SPACE) | (self.names == QUOTE) | (self.names == BACKSLASH)))
        values = int((self.found[:, END] - self.found[:, VALUE]).sum()) + len(_NULL) * len(self.found)
        room = len(self.text) + values + len(self.names) + 5 * special + 8 * len(self.found)
        out = np.empty(room + (2 * len(name) + 16) * len(self.missing), dtype=np.uint8)
        made = np.empty(len(self.missing) + 1, dtype=np.int64)
        inputs = (self.text, self.places, self.missing, self.touched, self.found, self.names)
        used = _joined(*inputs, stays, gathered, name, out, made)
        return texts(out[:used], made, ~self.missing)


@njit(cache=True, nogil=True)
def _taken_apart(text, places, roots, nodes, closed, separator, max_depth, index_lists, empty_object, empty_list):
    found = np.empty((len(roots) + 64, 7), dtype=np.int64)
    names = np.empty(4096, dtype=np.uint8)
    way = np.empty((16, 3), dtype=np.int64)
    touched = np.zeros(len(roots), dtype=np.bool_)
    row, count, used = 0, 0, 0
    for row in range(len(roots)):
        start = past_blanks(text, places[row])
        if roots[row] < 0 or start >= places[row + 1] or text[start] != _LEFT:
            continue
        while True:  # again with more room, until there is enough
            after, used_after, opened = _image(
                borrowed(text), start, places[row + 1], row, roots[row], nodes, closed, separator,
                max_depth, index_lists, empty_object, empty_list, way, found, count, names, used,
            )  # fmt: skip
            if after >= 0:
                break
            if after == _COLUMNS:
                found = _grown(found)
            elif after == _LEVELS:
                way = _grown(way)
            else:
                larger = np.empty(2 * len(names) + used_after, dtype=np.uint8)
                larger[:used] = names[:used]
                names = larger
        touched[row] = opened
        if opened:
            count, used = after, used_after
    return found[:count], names[:used], touched


@njit(cache=True, nogil=True)
def _grown(table):
    larger = np.empty((2 * len(table), table.shape[1]), dtype=np.int64)
    larger[: len(table)] = table
    return larger


@njit(cache=True, nogil=True)
def _image(
    text, start, end, row, root, nodes, closed, separator,
    max_depth, index_lists, empty_object, empty_list, way, found, count, names, used,
):  # fmt: skip
    """(columns, bytes of names, whether anything is opened) with those of one image; or what there was no room for, of
    names with how many bytes are needed."""
    level, opened, p = 0, False, start + 1
    way[0, _COUNT] = -1
    while True:
        while p < end and (text[p] <= SPACE or text[p] == COMMA):
            p += 1
        if p >= end:
            break
        if text[p] == CLOSING[0] or text[p] == CLOSING[1]:
            p, level = p + 1, level - 1
            if level < 0:
                break
            continue
        member = p
        if way[level, _COUNT] < 0:
            name_end = past_string(text, p)
            way[level, _PIECE], way[level, _PIECE_END] = p + 1, name_end - 1
            p = past_blanks(text, past_blanks(text, name_end) + 1)
        else:
            way[level, _PIECE], way[level, _PIECE_END] = -1, way[level, _COUNT]
            way[level, _COUNT] += 1
        form = OWN if level == 0 else MADE
        value_end = -1
        is_object, is_list = p < end and text[p] == _LEFT, p < end and text[p] == OPENING[0]
        if (is_object or is_list) and not (level == 0 and _is_closed(text, way, nodes, closed, root)):
            inside = past_blanks(text, p + 1)
            if text[inside] == CLOSING[int(is_object)]:
                value_end, policy = inside + 1, empty_object if is_object else empty_list
                opened = opened or policy != PRESERVE
                if policy == DROP:
                    p = value_end
                    continue
                form += int(policy == NULL)
            elif level < max_depth and (is_object or index_lists):
                if level + 1 == len(way):
                    return _LEVELS, 0, False
                level, opened, p = level + 1, True, p + 1
                way[level, _COUNT] = -1 if is_object else 0
                continue
        if value_end < 0:
            value_end = past_value(text, p, end)
        if count == len(found):
            return _COLUMNS, 0, False
        room = _name_room(way, level, len(separator))
        if used + room > len(names):
            return _NAMES, room, False
        found[count, ROW], found[count, NAME], found[count, MEMBER] = row, used, member if level == 0 else -1
        used = _named(text, way, level, separator, names, used)
        found[count, NAME_END], found[count, VALUE], found[count, END] = used, p, value_end
        found[count, FORM] = form
        count += 1
        p = value_end
    return count, used, opened


@njit(cache=True, nogil=True)
def _is_closed(text, way, nodes, closed, root):
    """Whether the column is one that stays whole."""
    start, end = way[0, _PIECE], way[0, _PIECE_END]
    name = np.empty(end - start, dtype=np.uint8)
    size = unescape(text, start, end, name, 0)
    child = nodes[root, 0]
    while child >= 0:
        at = nodes[child, 2]
        if nodes[child, 3] - at == size:
            k = 0
            while k < size and name[k] == closed[at + k]:
                k += 1
            if k == size:
                return True
        child = nodes[child, 1]
    return False


@njit(cache=True, nogil=True)
def _name_room(way, level, separator):
    room = 0
    for k in range(level + 1):
        size = way[k, _PIECE_END] - way[k, _PIECE] if way[k, _PIECE] >= 0 else _DIGITS
        room += size + separator
    return room


@njit(cache=True, nogil=True)
def _named(text, way, level, separator, names, w):
    """The name of what is at the end of the way, from `w` on; where it ends."""
    for k in range(level + 1):
        if k > 0:
            w = copy(separator, 0, len(separator), names, w)
        if way[k, _PIECE] >= 0:
            w = unescape(text, way[k, _PIECE], way[k, _PIECE_END], names, w)
        else:
            w = _number(way[k, _PIECE_END], names, w)
    return w


@njit(cache=True, nogil=True)
def _number(number, out, w):
    size, rest = 1, number // 10
    while rest > 0:
        size, rest = size + 1, rest // 10
    for k in range(size):
        out[w + size - 1 - k] = ZERO + number % 10
        number //= 10
    return w + size


@njit(cache=True, nogil=True)
def _settled(found, names, stays, rule):
    """Looks each name up in a table of hashes, one for each row."""
    begin = 0
    slots = np.empty(64, dtype=np.int64)
    while begin < len(found):
        end = begin
        while end < len(found) and found[end, ROW] == found[begin, ROW]:
            end += 1
        size = 64
        while size < 2 * (end - begin):
            size *= 2
        if size > len(slots):
            slots = np.empty(size, dtype=np.int64)
        slots[:size] = -1
        for k in range(begin, end):
            slot = _slot(found, names, slots, size, k)
            if slots[slot] >= 0:
                if rule == REFUSE:
                    return k
                stays[k if rule == FIRST else slots[slot]] = False
            if slots[slot] < 0 or rule == LAST:
                slots[slot] = k
        begin = end
    return -1


@njit(cache=True, nogil=True)
def _slot(found, names, slots, size, k):
    """Where a name is in the table, or would be."""
    start, length, code = found[k, NAME], found[k, NAME_END] - found[k, NAME], _FNV
    for n in range(length):
        code = (code ^ np.uint64(names[start + n])) * _PRIME
    slot = np.int64(code & np.uint64(size - 1))
    while slots[slot] >= 0:
        other = found[slots[slot], NAME]
        if found[slots[slot], NAME_END] - other == length:
            n = 0
            while n < length and names[other + n] == names[start + n]:
                n += 1
            if n == length:
                return slot
        slot = (slot + 1) & (size - 1)
    return slot


@njit(cache=True, nogil=True)
def _gathered(found, names, which, places):
    out = np.empty(places[-1], dtype=np.uint8)
    for k in range(len(which)):
        copy(names, found[which[k], NAME], places[k + 1] - places[k], out, places[k])
    return out


@njit(cache=True, nogil=True)
def _joined(text, places, missing, touched, found, names, stays, gathered, into, out, made):
    text, names, out, k, w = borrowed(text), borrowed(names), borrowed(out), 0, 0
    for row in range(len(missing)):
        made[row] = w
        if not touched[row]:
            if not missing[row]:
                w = copy(text, places[row], places[row + 1] - places[row], out, w)
            continue
        first, more, before = k, False, -1
        while k < len(found) and found[k, ROW] == row:
            more = more or (stays[k] and gathered[k])
            before = k if _is(found, names, k, into) and stays[k] else before
            k += 1
        out[w] = _LEFT
        w += 1
        begun = w
        for leaf in range(first, k):
            if stays[leaf] and not gathered[leaf] and not (more and leaf == before):
                w = _leaf(text, found, names, leaf, out, _comma(out, w, begun))
        if more:
            w = quote(into, 0, len(into), out, _comma(out, w, begun))
            out[w], out[w + 1] = _COLON, _LEFT
            w += 2
            begun = w
            if before >= 0:
                w = _members(text, found, names, before, out, w)
            for leaf in range(first, k):
                if stays[leaf] and gathered[leaf]:
                    w = _leaf(text, found, names, leaf, out, _comma(out, w, begun))
            out[w] = _RIGHT
            w += 1
        out[w] = _RIGHT
        w += 1
    made[len(missing)] = w
    return w


@njit(cache=True, nogil=True)
def _comma(out, w, begun):
    if w > begun:
        out[w] = COMMA
        return w + 1
    return w


@njit(cache=True, nogil=True)
def _is(found, names, leaf, name):
    start, end = found[leaf, NAME], found[leaf, NAME_END]
    k = 0
    while k < len(name) and start + k < end and names[start + k] == name[k]:
        k += 1
    return k == len(name) and start + k == end


@njit(cache=True, nogil=True)
def _leaf(text, found, names, leaf, out, w):
    """A column as a member of the image."""
    form, end = found[leaf, FORM], found[leaf, END]
    if form == OWN:
        return copy(text, found[leaf, MEMBER], end - found[leaf, MEMBER], out, w)
    if form == CLEARED:
        w = copy(text, found[leaf, MEMBER], found[leaf, VALUE] - found[leaf, MEMBER], out, w)
        return copy(_NULL, 0, len(_NULL), out, w)
    w = quote(names, found[leaf, NAME], found[leaf, NAME_END], out, w)
    out[w] = _COLON
    if form == MADE_NULL:
        return copy(_NULL, 0, len(_NULL), out, w + 1)
    return copy(text, found[leaf, VALUE], end - found[leaf, VALUE], out, w + 1)


@njit(cache=True, nogil=True)
def _members(text, found, names, leaf, out, w):
    """The members of an object, without its braces; anything else as a member of its own name."""
    start, end = found[leaf, VALUE], found[leaf, END]
    if text[start] != _LEFT:
        return _leaf(text, found, names, leaf, out, w)
    start = past_blanks(text, start + 1)
    end -= 1
    while end > start and text[end - 1] <= SPACE:
        end -= 1
    return copy(text, start, end - start, out, w)
