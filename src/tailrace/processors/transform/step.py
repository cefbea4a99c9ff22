"""The transform at work: one walk over each image for all that is to be done to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import Place
from tailrace.processors.chain import with_columns
from tailrace.processors.images import DROP, RENAME, REPLACE, Editor
from tailrace.processors.maps import entry, with_entries
from tailrace.processors.tables import versions
from tailrace.processors.transform.columns import Edits
from tailrace.processors.transform.plan import Plan, plan_of
from tailrace.schema import TableSchema

MOVES = ("old_key", "new_key")
"""Headers that hold keys."""


@dataclass(frozen=True)
class _Version:
    """What is done to a version of a table. `root`: its trie in the editor; -1: its rows stay as they are."""

    plan: Plan
    root: int
    of_key: bool
    tail: str


class TransformStep:
    def __init__(self, edits: Edits, place: Place) -> None:
        self._edits, self._place = edits, place
        self._changes = [each.change() for each in edits.hiding()]
        self._editor = Editor()
        self._slots: dict[tuple[int, str, int], int] = {}
        self._versions: dict[int, _Version] = {}

    def __call__(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        tables, which = versions(changes, self._place.tables)
        found = [self._version(table) for table in tables]
        made: dict[str, Any] = self._rows(changes, found, which) if any(each.root >= 0 for each in found) else {}
        headers = made.get("headers", changes.column("headers"))
        words = _words(found, which)
        if words:
            made["headers"] = with_entries(headers, words)
        return with_columns(changes, **made)

    def _rows(self, changes: pa.RecordBatch, found: list[_Version], which: Any) -> dict[str, Any]:
        """The columns that hold rows, keys and names of columns, changed."""
        rows = np.asarray(pc.is_in(changes.column("op"), pa.array(["c", "u", "d", "r"])))
        roots = np.where(rows, np.array([each.root for each in found])[which], -1)
        of_keys = np.where(np.array([each.of_key for each in found])[which], roots, -1)
        tails = None
        if any(each.tail for each in found):
            texts = pa.array([each.tail if each.root >= 0 else None for each in found], pa.string())
            tails = pc.if_else(pa.array(rows), texts.take(pa.array(which)), pa.scalar(None, pa.string()))
        made = {name: self._edited(changes.column(name), roots, tails) for name in ("before", "after")}
        made["key"] = self._edited(changes.column("key"), of_keys)
        made["unchanged"] = _renamed(changes.column("unchanged"), [each.plan for each in found], which, rows)
        headers = changes.column("headers")
        if headers.null_count < len(headers) and (of_keys >= 0).any():
            moves = {name: self._edited(entry(headers, name), of_keys) for name in MOVES}
            made["headers"] = with_entries(headers, moves)
        return made

    def _edited(self, images: Any, roots: Any, tails: Any = None) -> Any:
        if images.null_count == len(images) or not (roots >= 0).any():
            return images
        found = self._editor(images, roots)
        values = []
        for number, change in enumerate(self._changes):
            hidden = found.of_slots([slot for (_, _, edit), slot in self._slots.items() if edit == number])
            if len(hidden):
                values.append((hidden, change(*found.spans(hidden))))
        return self._editor.apply(found, values, tails)

    def _version(self, table: TableSchema) -> _Version:
        if table.id not in self._versions:
            plan = plan_of(self._edits, table, mirror=self._place.mirror)
            members = (f"{_json(name)}:{_json(value)}" for name, value in plan.added.items())
            of_key = not table.columns or plan.touches(table.key)
            self._versions[table.id] = _Version(plan, self._root(plan), of_key, ",".join(members))
        return self._versions[table.id]

    def _root(self, plan: Plan) -> int:
        """A trie of its own, with everything that is done to rows of the version."""
        if not plan.changes_rows:
            return -1
        paths = self._editor.paths
        root = paths.root(self._slot(DROP) if plan.kept is not None else -1)
        for name in plan.kept or ():
            paths.add(root, (name,), self._slot(0))
        for path in {(name,) for name in plan.renamed} | plan.hidden.keys():
            name, edit = plan.renamed.get(path[0], "") if len(path) == 1 else "", plan.hidden.get(path, -1)
            action = (RENAME if name else 0) | (REPLACE if edit >= 0 else 0)
            if not self._is_gone(path, plan):
                paths.add(root, path, self._slot(action, name, edit))
        for path in plan.dropped:
            paths.add(root, path, self._slot(DROP))
        return root

    def _is_gone(self, path: tuple[str, ...], plan: Plan) -> bool:
        above = any(path[: len(gone)] == gone for gone in plan.dropped)
        return above or (plan.kept is not None and path[0] not in plan.kept)

    def _slot(self, action: int, name: str = "", edit: int = -1) -> int:
        which = (action, name, edit)
        if which not in self._slots:
            self._slots[which] = self._editor.slot(action, name)
        return self._slots[which]


def _words(found: list[_Version], which: Any) -> Mapping[str, Any]:
    """The headers to add, by name a value for each change."""
    names = dict.fromkeys(name for each in found for name in each.plan.headers)
    values = {name: pa.array([each.plan.headers.get(name) for each in found], pa.string()) for name in names}
    return {name: column.take(pa.array(which)) for name, column in values.items()}


def _renamed(unchanged: Any, plans: list[Plan], which: Any, rows: Any) -> Any:
    """The columns that the source did not send, under their new names; without those that are gone."""
    names: Any = pc.list_flatten(unchanged)
    if not len(names):
        return unchanged
    owners = np.asarray(pc.list_parent_indices(unchanged))
    encoded = names.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    table = pa.array([plan.name(name) for plan in plans for name in known], pa.string())
    new = table.take(pa.array(which[owners] * len(known) + np.asarray(encoded.indices)))
    new = pc.if_else(pa.array(rows[owners]), new, names)
    stays = np.asarray(pc.is_valid(new))
    counts = np.bincount(owners[stays], minlength=len(unchanged))
    is_null = np.append(np.asarray(pc.is_null(unchanged)), False)
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), mask=is_null)
    return pa.ListArray.from_arrays(offsets, new.drop_null()).cast(unchanged.type)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
