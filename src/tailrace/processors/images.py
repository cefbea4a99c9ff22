"""Row images, edited where they stand: members renamed, dropped, replaced and added, everything else byte for byte."""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from tailrace.json_members import (
    BEHIND,
    CLOSING,
    COLON,
    COMMA,
    END,
    FOLLOWING,
    OPENING,
    ROW,
    SPACE,
    START,
    VALUE,
    WHICH,
    Paths,
    buffers,
    locate,
    texts,
)
from tailrace.words import borrowed, copy

INLINED = {"json_members": "12931cd5bf641dba", "words": "7040ed545e90861d"}
"""What of other files is compiled into this one: see `capture.postgres.json_text`."""

RENAME, REPLACE, DROP = 1, 2, 4
"""What is to happen to the members of a slot. A member may be both renamed and replaced."""


class Found(NamedTuple):
    """Where members stand in some images. `members`: a row of `json_members.ROW`, `WHICH` … for each."""

    text: Any
    places: Any
    missing: Any
    members: Any

    def of_slots(self, slots: Iterable[int]) -> Any:
        """The places in `members` of those with these slots."""
        return np.flatnonzero(np.isin(self.members[:, WHICH], list(slots)))

    def spans(self, which: Any) -> tuple[Any, Any, Any]:
        """The bytes, and where these members' values start and end in them."""
        return (
            self.text,
            np.ascontiguousarray(self.members[which, VALUE]),
            np.ascontiguousarray(self.members[which, END]),
        )

    def values(self, slot: int) -> tuple[Any, Any, Any]:
        """The bytes, and where each image's member of this slot starts and ends; -1 where it has none. Of several
        with one name the last counts, as for every reader of JSON."""
        starts, ends = (np.full(len(self.missing), -1, dtype=np.int64) for _ in range(2))
        mine = self.members[self.members[:, WHICH] == slot]
        starts[mine[:, ROW]], ends[mine[:, ROW]] = mine[:, VALUE], mine[:, END]
        return self.text, starts, ends


@dataclass
class Search:
    """Members to find, by the slots of `paths`. `once`: nothing is to be found twice at the top."""

    paths: Paths = field(default_factory=Paths.none)
    once: bool = False

    def __call__(self, images: pa.Array[Any], roots: Any) -> Found:
        """`roots`: the trie for each image; -1: nothing is looked for in it."""
        text, places, missing = buffers(images)
        nodes, names = self.paths.arrays()
        wanted = np.where(missing, -1, roots).astype(np.int64)
        return Found(text, places, missing, locate(text, places, wanted, nodes, names, self.once))


@dataclass
class Editor(Search):
    """Edits of members. Each has a slot, which says what to do with the members at its paths."""

    actions: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)

    def slot(self, action: int, name: str = "") -> int:
        """A new slot. `name`: what its members are called from now on."""
        self.actions.append(action)
        self.names.append(json.dumps(name, ensure_ascii=False).encode() if action & RENAME else b"")
        return len(self.actions) - 1

    def apply(
        self,
        found: Found,
        values: Sequence[tuple[Any, pa.Array[Any]]] = (),
        tails: Any = None,
    ) -> pa.Array[Any]:
        """The images with everything done. `values`: for members by their places in `found.members`, JSON texts to
        stand there instead (null: what stands there stays). `tails`: members to add at the end of each image, without
        the braces (null or empty: none)."""
        starts, ends, pool = _pooled(len(found.members), values)
        actions = np.array([*self.actions, 0], dtype=np.int64)
        ends_of_names = np.cumsum([0, *map(len, self.names)])
        names = np.frombuffer(b"".join(self.names), dtype=np.uint8)
        tails = pa.nulls(len(found.missing), pa.string()) if tails is None else tails
        tail, tail_places, _ = buffers(tails.fill_null(""))
        longest = max(map(len, self.names), default=0)
        grown = len(found.members) * longest + len(pool) + int(tail_places[-1] - tail_places[0]) + len(found.missing)
        out = np.empty(int(found.places[-1] - found.places[0]) + grown, dtype=np.uint8)
        made = np.empty(len(found.missing) + 1, dtype=np.int64)
        used = _spliced(
            *(found.text, found.places, found.missing, found.members, actions, names, ends_of_names),
            *(pool, starts, ends, tail, tail_places, out, made),
        )
        return texts(out[:used], made, ~found.missing)


def _pooled(count: int, values: Sequence[tuple[Any, pa.Array[Any]]]) -> tuple[Any, Any, Any]:
    """Where each member's new value starts and ends, in the bytes of all of them; -1: it has none."""
    starts, ends = (np.full(count, -1, dtype=np.int64) for _ in range(2))
    pool, places, missing = buffers(pa.concat_arrays([pa.array([], pa.string()), *(each for _, each in values)]))
    members = np.concatenate([np.empty(0, dtype=np.int64), *(which for which, _ in values)])
    starts[members] = np.where(missing, -1, places[:-1])
    ends[members] = places[1:]
    return starts, ends, pool


@njit(cache=True, nogil=True)
def _spliced(
    text, places, missing, members, actions, names, name_places, pool, starts, ends, tail, tail_places, out, made
):
    text, members, pool, tail, out = borrowed(text), borrowed(members), borrowed(pool), borrowed(tail), borrowed(out)
    w, at = 0, 0
    for row in range(len(missing)):
        made[row] = w
        if missing[row]:
            continue
        cursor, comma, comma_end = places[row], 0, 0  # what is copied next, and what separates it from before
        while at < len(members) and members[at, ROW] == row:
            slot, start, value = members[at, WHICH], members[at, START], members[at, VALUE]
            action = actions[slot]
            if action & DROP:
                behind = members[at, BEHIND]
                upto = behind if behind >= 0 else start
                if cursor <= upto:  # else the member before is dropped too
                    w = copy(text, comma, comma_end - comma, out, w)
                    w = copy(text, cursor, upto - cursor, out, w)
                    comma, comma_end = upto, start
                cursor = members[at, FOLLOWING]
                if cursor < 0:
                    cursor, comma, comma_end = members[at, END], 0, 0
                at += 1
                continue
            upto = start if action & RENAME else value
            if action & RENAME or starts[at] >= 0:
                w = copy(text, comma, comma_end - comma, out, w)
                w = copy(text, cursor, upto - cursor, out, w)
                cursor, comma, comma_end = upto, 0, 0
            if action & RENAME:
                w = copy(names, name_places[slot], name_places[slot + 1] - name_places[slot], out, w)
                cursor = members[at, COLON]
            if starts[at] >= 0:
                w = copy(text, cursor, value - cursor, out, w)
                w = copy(pool, starts[at], ends[at] - starts[at], out, w)
                cursor = members[at, END]
            at += 1
        w = copy(text, comma, comma_end - comma, out, w)
        added = tail_places[row + 1] - tail_places[row]
        if added > 0:
            closing = places[row + 1] - 1
            while text[closing] != CLOSING[1]:
                closing -= 1
            w = copy(text, cursor, closing - cursor, out, w)
            last = w - 1
            while out[last] <= SPACE:
                last -= 1
            if out[last] != OPENING[1]:
                out[w] = COMMA
                w += 1
            w = copy(tail, tail_places[row], added, out, w)
            cursor = closing
        w = copy(text, cursor, places[row + 1] - cursor, out, w)
    made[len(missing)] = w
    return w
