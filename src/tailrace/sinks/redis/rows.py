"""Changes as keys: each holds a row, or is deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tailrace.errors import SinkError
from tailrace.json_members import split
from tailrace.sinks.pieces import Numbers
from tailrace.sinks.redis.connection import Call
from tailrace.sinks.redis.entries import text_sizes, too_large, unroutable
from tailrace.sinks.redis.scripts import WRITE_KEYS
from tailrace.sinks.redis.slots import slot_of, tag_of
from tailrace.sinks.redis.writer import Content, Group, place

KeyMode = Literal["set", "hset", "del"]
_OF_ROWS = frozenset("crud")
_ALWAYS = 1 << 62
"""An offset that is beyond every mark."""


@dataclass(frozen=True)
class Rows:
    """`owner` is whose marks they are. `text`: the column that `set` writes. `refuse_truncates`: they are errors."""

    owner: str
    mode: KeyMode
    template: str
    text: Literal["after", "value"]
    ttl_ms: int
    refuse_truncates: bool

    def content(self, batch: pa.RecordBatch, largest: int, cluster: bool) -> Content:
        return _Window(self, batch, largest, cluster)


@dataclass
class _Window:
    form: Rows
    batch: pa.RecordBatch
    largest: int
    cluster: bool
    script = WRITE_KEYS

    def refused(self) -> dict[int, SinkError]:
        errors = self._too_large()
        nameless = unroutable(self.batch, self._keys, "key", self.form.template)
        errors |= {row: error for row, error in nameless.items() if self._ops[row] in _OF_ROWS}
        if self.form.refuse_truncates:
            errors |= {row: _truncate(self.batch, row) for row, op in enumerate(self._ops) if op == "t"}
        return errors

    def groups(self, rows: Numbers) -> Iterator[Group]:
        """One, or in a cluster one for each slot."""
        about = [row for row in rows.tolist() if self._ops[row] in _OF_ROWS]
        found: dict[int, list[int]] = {}
        for row in about:
            found.setdefault(slot_of(self._keys[row] or "") if self.cluster else -1, []).append(row)
        for slot, mine in found.items():
            tag = f"{{{tag_of(slot)}}}:" if self.cluster else ""
            yield Group(f"tailrace:{tag}{self.form.owner}:", np.array(mine, dtype=np.int64))

    def sizes(self) -> Numbers:
        return text_sizes(self.batch.column(self.form.text))

    def late(self, refused: Numbers, names: set[str]) -> Numbers:
        """With all that followed it under the same key, so that the newest is what stays."""
        found = refused.copy()
        for row, key in enumerate(self._keys) if names or refused.any() else ():
            if found[row]:
                names.add(key or "")
            found[row] |= key in names
        return found

    def call(self, group: Group, rows: Numbers, late: Numbers, mark: int, end: int) -> Call:
        keys = [group.mark]
        arguments: list[str | int] = [mark, end, self.form.ttl_ms]
        for row, is_late in zip(rows.tolist(), late.tolist(), strict=True):
            action, texts, missing = self._change(row)
            keys.append(self._keys[row] or "")
            arguments += (
                _ALWAYS if is_late else self._offsets[row],
                action,
                len(texts),
                len(missing),
                *texts,
                *missing,
            )
        return Call(keys, arguments)

    def _too_large(self) -> dict[int, SinkError]:
        if self.form.mode == "del":
            return {}
        errors = too_large(self.batch, [self.batch.column(self.form.text)], self.largest)
        if self.form.mode == "hset":  # each column is a text of its own
            return {row: error for row, error in errors.items() if self._longest_field(row) > self.largest}
        return errors

    def _longest_field(self, row: int) -> int:
        return max((len(text.encode()) for text in _fields(self._texts[row] or "{}")), default=0)

    def _change(self, row: int) -> tuple[str, list[str], list[str]]:
        """What to do, the texts that it takes, and the columns that did not come."""
        text, missing = self._texts[row], self._missing[row] or []
        if self.form.mode == "del" or self._ops[row] == "d" or text is None:
            return "del", [], []
        if self.form.mode == "hset":
            return "hset", _fields(text), missing
        if self.form.text == "after" and missing:  # half a row: better none
            return "del", [], []
        return "set", [text], []

    @cached_property
    def _texts(self) -> list[str | None]:
        return self._values(self.form.text)

    @cached_property
    def _keys(self) -> list[str | None]:
        return self._values("record_key")

    @cached_property
    def _ops(self) -> list[str]:
        return self._values("op")

    @cached_property
    def _offsets(self) -> list[int]:
        return self._values("seq")

    @cached_property
    def _missing(self) -> list[list[str] | None]:
        return self._values("unchanged")

    def _values(self, name: str) -> list[Any]:
        return self.batch.column(name).to_pylist()


def _fields(image: str) -> list[str]:
    """Names and values in turn: a text as it reads, any other value as its JSON text; a null has no field."""
    found = []
    for name, text in split(image).items():
        if text != "null":
            found += [name, _plain(text)]
    return found


def _plain(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _truncate(batch: pa.RecordBatch, row: int) -> SinkError:
    text = "the table was truncated, which does not name the keys of its rows"
    hint = "delete its keys, and set `truncates: keep`, or drop truncates with a filter"
    return SinkError("sink.rejected", text, hint=hint, where=place(batch, row))
