"""What the column `route` says of a record, set for many changes at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.processors.images import DROP, Editor
from tailrace.processors.maps import entry, with_entries
from tailrace.processors.texts import quoted


def routed(routes: Any, entries: Mapping[str, Any], headers: Mapping[str, Any]) -> Any:
    """`routes` with these entries and record headers, by name a text for each change; null: as it was."""
    made = dict(entries)
    if headers:
        made["headers"] = _with_members(entry(routes, "headers"), headers)
    return with_entries(routes, made)


def only(rows: Any, texts: Any) -> Any:
    """Texts of these changes, in order, as a column for all; null for the others."""
    places = np.cumsum(rows) - 1
    return texts.take(pa.array(np.maximum(places, 0), mask=~rows))


def _with_members(objects: Any, texts: Mapping[str, Any]) -> Any:
    """JSON objects with these texts as members; a member that was there goes."""
    names = {name: pa.scalar(json.dumps(name, ensure_ascii=False) + ":") for name in texts}
    members = {name: _joined(names[name], quoted(column)) for name, column in texts.items()}
    if objects.null_count == len(objects):
        listed = _joined(*(_joined(pa.scalar(","), each).fill_null("") for each in members.values()))
        inside = pc.if_else(pc.equal(listed, pa.scalar("")), pa.scalar(None, pa.string()), listed)
        return _joined(pa.scalar("{"), pc.utf8_slice_codeunits(inside, 1), pa.scalar("}"))
    for name, column in members.items():
        objects = _with_member(objects, name, column)
    return objects


def _joined(*texts: Any) -> Any:
    return pc.binary_join_element_wise(*texts, pa.scalar(""))


def _with_member(objects: Any, name: str, members: Any) -> Any:
    editor = Editor()
    root = editor.paths.root()
    editor.paths.add(root, (name,), editor.slot(DROP))
    there = pc.is_valid(members)
    objects = pc.if_else(pc.and_(there, pc.is_null(objects)), pa.scalar("{}"), objects)
    found = editor(objects, np.where(np.asarray(there), root, -1))
    return editor.apply(found, (), members)
