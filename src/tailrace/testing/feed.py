"""A small change log for table sinks, written by the real writer: its changes are made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace import spellings
from tailrace.changelog import Bounds, LogReader, LogWriter, Retention, Subscribers
from tailrace.contracts import Admitted, ChunkId, Span
from tailrace.schema import Column, TableSchema
from tailrace.testing.captures import Row, capture

Image = dict[str, Any]


def schema_of(
    number: int, table: str, columns: Mapping[str, str], key: tuple[str, ...] = ("id",), *, relation: int = 100
) -> TableSchema:
    """A table version; `columns`: name → type, as PostgreSQL spells it."""
    named = tuple(column_of(name, spelled, number) for number, (name, spelled) in enumerate(columns.items(), 1))
    return TableSchema(number, "shop", "public", table, named, key, relation=relation)


def column_of(name: str, spelled: str, number: int = 0) -> Column:
    """A column of the type that PostgreSQL spells like this."""
    return Column(name, spelled, number=number, kind=spellings.kind_of(spelled))


MESSAGES = schema_of(99, "messages", {}, ())


class Feed:
    """Changes of one or more tables. Each is a transaction of its own, and in the log when `flush` was called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[Row] = []
        self._chunks = 0
        self._write()

    @property
    def log_id(self) -> str:
        return LogReader(self.path).log_id

    @property
    def retained(self) -> dict[str, int]:
        """What the log keeps, and for which table."""
        return {each.name.rpartition("/")[2]: each.offset for each in Subscribers(self.path).all()}

    def add(self, schema: TableSchema, op: str, image: Image | None = None, **more: Any) -> Feed:
        """One change. `image`: the row, or the key's columns of a delete."""
        key = _key(schema, image) if image and schema.key else None
        images = {"key": _text(key), "after" if op in "cur" else "before": _text(image)}
        self._waiting.append(Row(op, table=schema, **{**images, **more}))
        return self

    def say(self) -> Feed:
        """A logical message, which is of no table."""
        return self.add(MESSAGES, "m")

    def move(self, schema: TableSchema, old: Image, new: Image, unchanged: list[str] | None = None) -> Feed:
        """A row gets another key."""
        keys = [_key(schema, image) for image in (old, new)]
        self.add(schema, "d", keys[0], headers={"new_key": _text(keys[1])})
        return self.add(schema, "c", new, headers={"old_key": _text(keys[0])}, unchanged=unchanged)

    def evolve(self, schema: TableSchema, defaults: Mapping[str, Any] | None = None) -> Feed:
        """The table has another version from here on."""
        return self.add(schema, "s", after={"version": schema.id, "defaults": dict(defaults or {})})

    def read(self, schema: TableSchema, images: Sequence[Image], run: str = "first", *, disjoint: bool = True) -> Feed:
        """A chunk of a snapshot, behind what waits. `disjoint`: its keys are in no other chunk of the run."""
        rows = [Row("r", table=schema, key=_text(_key(schema, image)), after=_text(image)) for image in images]
        self._chunks += 1
        chunk = ChunkId(run, schema.schema, schema.table, self._chunks)
        self.flush(0)
        self._write(rows, admitted=Admitted(chunk, len(rows), disjoint=disjoint))
        return self

    def flush(self, start: int) -> Span:
        """Write what waits. Returns all from `start` on."""
        waiting, self._waiting = self._waiting, []
        return Span(self.log_id, start, self._write(*([each] for each in waiting)))

    def trim(self) -> int:
        """Drop all that is in the log, whoever waits for it. Returns where it begins now."""
        subscribers = Subscribers(self.path)
        for each in subscribers.all():
            subscribers.forget(each.name)
        self.say()
        end = self._write([self._waiting.pop()], manifest_bytes=1)
        Retention(self.path).enforce(Bounds(max_bytes=0))
        return end

    def _write(self, *transactions: list[Row], admitted: Admitted | None = None, **settings: Any) -> int:
        with closing(LogWriter(self.path, "shop", **settings)) as writer:
            if transactions:
                made = capture(*transactions, first_xid=writer.end)
                writer.append(made if admitted is None else replace(made, xids=None, admitted=admitted))
            return writer.end


def _key(schema: TableSchema, image: Image) -> Image:
    return {column.name: image[column.name] for column in schema.columns if column.name in schema.key}


def _text(image: Image | None) -> str | None:
    """With blanks, as a database writes JSON, and no escapes but those that must be."""
    return None if image is None else json.dumps(image, ensure_ascii=False)
