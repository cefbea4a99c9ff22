"""Row images with their values as Debezium writes them: compiled, bytes in and bytes out.

An image is walked once to find its columns, then written anew in the order of the layout. A value that the kernel does
not write itself is reported; whoever encoded it elsewhere calls again with the text in `aside`.
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from tailrace.render.debezium.values import (
    CLOSE,
    COLON,
    COMMA,
    NULL,
    OMITTED,
    OPEN,
    OPEN_LIST,
    QUOTE,
    RARE_VALUE,
    copy,
    past_blanks,
    past_string,
    past_value,
    put_array,
    put_value,
)

INLINED = {"values": "245f2d08e3726b4f"}
"""The beginning of the SHA-256 of the file whose functions are compiled into this one's. numba's cache looks at a
function's own file alone: without a change here it would go on with the old ones. A test compares them."""


class Texts(NamedTuple):
    """Texts one behind the other; the nth is `data[places[n]:places[n + 1]]`."""

    data: Any
    places: Any


class Layout(NamedTuple):
    """Columns in the order they are written in. `names` are JSON strings, quotes included. Of columns that are
    `defaulted`, `absent` is written for a null too."""

    names: Texts
    codes: Any
    details: Any
    arrays: Any
    absent: Texts
    defaulted: Any
    unsent: Texts


@njit(cache=True, nogil=True)
def encode(text, places, valid, layout, was_unsent, aside, aside_of, out, ends):
    """Write each image into `out`, and where it ends into `ends`. Returns (row, column, start, end) of each value that
    was left out. `was_unsent[row, column]`: the source did not send it; `aside_of[row, column]`: its text in `aside`,
    or -1; either may have no rows, which says the same of all."""
    rares = [(0, 0, 0, 0)]
    count = len(layout.codes)
    starts, stops = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    at = 0
    for row in range(len(valid)):
        if valid[row]:
            if _locate(text, places[row], places[row + 1], layout.names, starts, stops):
                at = _put_members(text, row, places[row], places[row + 1], layout, aside, aside_of, out, at, rares)
            else:
                at = _put_columns(text, row, starts, stops, layout, was_unsent, aside, aside_of, out, at, rares)
        ends[row + 1] = at
    return np.array(rares)[1:]


@njit(cache=True, nogil=True)
def _put_columns(text, row, starts, stops, layout, was_unsent, aside, aside_of, out, at, rares):
    """An image of the table's own columns: all of them, in order."""
    out[at] = OPEN
    at += 1
    first = True
    for column in range(len(starts)):
        if layout.codes[column] == OMITTED:
            continue
        at = _put_name(layout.names, column, first, out, at)
        first = False
        if starts[column] >= 0:
            at = _put(text, row, column, starts[column], stops[column], layout, aside, aside_of, out, at, rares)
        elif len(was_unsent) > 0 and was_unsent[row, column]:
            at = _put_text(layout.unsent, column, out, at)
        else:
            at = _put_text(layout.absent, column, out, at)
    out[at] = CLOSE
    return at + 1


@njit(cache=True, nogil=True)
def _put_members(text, row, p, end, layout, aside, aside_of, out, at, rares):
    """An image with members that are no columns of the table: those that it has, as they come."""
    out[at] = OPEN
    at += 1
    first = True
    p = past_blanks(text, p + 1)
    while p < end and text[p] == QUOTE:
        name_end, start, stop, follows = _member(text, p, end)
        column = _column(text, p, name_end, layout.names, 0)
        if not first:
            out[at] = COMMA
            at += 1
        first = False
        at = copy(text, p, name_end, out, at)
        out[at] = COLON
        at += 1
        if column < 0 or layout.codes[column] == OMITTED:
            at = copy(text, start, stop, out, at)
        else:
            at = _put(text, row, column, start, stop, layout, aside, aside_of, out, at, rares)
        p = follows
    out[at] = CLOSE
    return at + 1


@njit(cache=True, nogil=True)
def _put(text, row, column, start, stop, layout, aside, aside_of, out, at, rares):
    if len(aside_of) > 0 and aside_of[row, column] >= 0:
        return _put_text(aside, aside_of[row, column], out, at)
    code, detail = layout.codes[column], layout.details[column]
    if layout.defaulted[column] and text[start] == NULL:
        return _put_text(layout.absent, column, out, at)
    if layout.arrays[column] and text[start] == OPEN_LIST:
        after = put_array(text, start, stop, code, detail, out, at)
    else:
        after = put_value(text, start, stop, code, detail, out, at)
    if after == RARE_VALUE:
        rares.append((row, column, start, stop))
        return at
    return after


# Walking an image


@njit(cache=True, nogil=True)
def _locate(text, p, end, names, starts, stops):
    """Find each column's value; -1 where there is none. Whether there is a member that is no column."""
    starts[:] = -1
    foreign = False
    expected = 0
    p = past_blanks(text, p + 1)
    while p < end and text[p] == QUOTE:
        name_end, start, stop, follows = _member(text, p, end)
        column = _column(text, p, name_end, names, expected)
        if column < 0:
            foreign = True
        else:
            starts[column], stops[column] = start, stop
            expected = column + 1
        p = follows
    return foreign


@njit(cache=True, nogil=True)
def _column(text, p, end, names, expected):
    """Which column has this name; the expected one is looked at first."""
    count = len(names.places) - 1
    for turn in range(count):
        column = (expected + turn) % count
        start, size = names.places[column], end - p
        if names.places[column + 1] - start != size:
            continue
        same = True
        for k in range(size):
            if text[p + k] != names.data[start + k]:
                same = False
                break
        if same:
            return column
    return -1


@njit(cache=True, nogil=True)
def _member(text, p, end):
    """(end of the name, start and end of the value, where the next member is) of the member at `p`."""
    name_end = past_string(text, p)
    start = past_blanks(text, past_blanks(text, name_end) + 1)
    stop = past_value(text, start, end)
    follows = past_blanks(text, stop)
    if follows < end and text[follows] == COMMA:
        follows = past_blanks(text, follows + 1)
    return name_end, start, stop, follows


@njit(cache=True, nogil=True)
def _put_name(names, column, first, out, at):
    if not first:
        out[at] = COMMA
        at += 1
    at = _put_text(names, column, out, at)
    out[at] = COLON
    return at + 1


@njit(cache=True, nogil=True)
def _put_text(texts, which, out, at):
    return copy(texts.data, texts.places[which], texts.places[which + 1], out, at)
