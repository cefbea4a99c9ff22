"""Lanes, and rows in their order as Arrow's columns. Compiled."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from tailrace.change import LANES
from tailrace.words import copy

INLINED = {"words": "7040ed545e90861d"}
"""As in json_text.py."""


@njit(cache=True, nogil=True)
def lane_of(seed, text, start, end):
    """FNV-1a of the key text on the table's seed, folded to a lane. Part of the log's format: never changes."""
    h = np.uint64(seed)
    for i in range(start, end):
        h = (h ^ np.uint64(text[i])) * np.uint64(1099511628211)
    h ^= h >> np.uint64(32)
    h ^= h >> np.uint64(16)
    h ^= h >> np.uint64(8)
    return np.uint8(h & np.uint64(LANES - 1))


@njit(cache=True, nogil=True)
def lane_order(lanes, count):
    """(stable order of the first `count` rows by lane, offsets of the lanes in it)."""
    offsets = np.zeros(LANES + 1, dtype=np.int64)
    for i in range(count):
        offsets[lanes[i] + 1] += 1
    for lane in range(LANES):
        offsets[lane + 1] += offsets[lane]
    order = np.empty(count, dtype=np.int32)
    place = offsets[:-1].copy()
    for i in range(count):
        order[place[lanes[i]]] = i
        place[lanes[i]] += 1
    return order, offsets


@njit(cache=True, nogil=True)
def gather_text(arena, spans, column, order, out_offsets, out, valid):
    """Copy one text column in `order` into an Arrow string column; returns the number of nulls."""
    w = 0
    nulls = 0
    for i in range(len(order)):
        r = order[i]
        start = spans[r, column]
        size = spans[r, column + 1] - start
        out_offsets[i] = w
        if size == 0:
            nulls += 1
        else:
            valid[i >> 3] |= np.uint8(1 << (i & 7))
            w = copy(arena, start, size, out, w)
    out_offsets[len(order)] = w
    return nulls


@njit(cache=True, nogil=True)
def text_size(spans, column, count):
    total = 0
    for r in range(count):
        total += spans[r, column + 1] - spans[r, column]
    return total
