"""Changes as entries of streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SinkError
from tailrace.sinks.pieces import Numbers
from tailrace.sinks.redis.connection import Call
from tailrace.sinks.redis.scripts import ADD_ENTRIES
from tailrace.sinks.redis.slots import beside
from tailrace.sinks.redis.writer import Content, Group, place

EVENT_ID, IDEMPOTENCY_KEY, EVENT, KEY = "event_id", "idempotency_key", "df-event", "df-key"


@dataclass(frozen=True)
class Entries:
    """`owner` is whose marks they are. `stream`: where every record goes to the same one; `template`: else."""

    owner: str
    stream: str | None
    template: str
    trim: tuple[str, int]
    """How, and the most entries; `""`: not at all."""

    def content(self, batch: pa.RecordBatch, largest: int, cluster: bool) -> Content:
        return _Window(self, batch, largest)


@dataclass
class _Window:
    form: Entries
    batch: pa.RecordBatch
    largest: int
    script = ADD_ENTRIES

    def refused(self) -> dict[int, SinkError]:
        errors = too_large(self.batch, [self.batch.column("value"), self.batch.column(self._key)], self.largest)
        return errors | unroutable(self.batch, self._streams, "stream", self.form.template)

    def groups(self, rows: Numbers) -> Iterator[Group]:
        for stream, mine in grouped(self._streams, rows):
            yield Group(f"tailrace:{{{beside(stream)}}}:{self.form.owner}:{stream}", mine)

    def sizes(self) -> Numbers:
        return self._sizes

    def late(self, refused: Numbers, names: set[str]) -> Numbers:
        return refused

    def call(self, group: Group, rows: Numbers, late: Numbers, mark: int, end: int) -> Call:
        arguments: list[str | int] = [mark, end, *self.form.trim]
        for row, is_late in zip(rows.tolist(), late.tolist(), strict=True):
            texts = self._texts(row)
            arguments += (self._offsets[row], -len(texts) if is_late else len(texts), *texts)
        return Call((group.mark, self._streams[int(rows[0])] or "", f"{group.mark}:late"), arguments)

    def _texts(self, row: int) -> list[str]:
        name, key, headers = self._ids[row], self._keys[row], self._headers[row]
        texts = [EVENT_ID, name, IDEMPOTENCY_KEY, name, EVENT, self._values[row]]
        if key is not None:
            texts += (KEY, key)
        if headers:
            texts += (str(text) for header in json.loads(headers).items() for text in header)
        return texts

    @cached_property
    def _streams(self) -> list[str | None]:
        streams = self._column("stream")
        return streams if self.form.stream is None else [each or self.form.stream for each in streams]

    @cached_property
    def _sizes(self) -> Numbers:
        sizes: Numbers = text_sizes(self.batch.column("value")) + text_sizes(self.batch.column(self._key))
        return sizes

    @cached_property
    def _offsets(self) -> list[int]:
        return self._column("seq")

    @cached_property
    def _ids(self) -> list[str]:
        return self._column("event_id")

    @cached_property
    def _values(self) -> list[str]:
        return self._column("value")

    @cached_property
    def _keys(self) -> list[str | None]:
        return self._column(self._key)

    @property
    def _key(self) -> str:
        """The column of the records' keys; behind processors those may have said another."""
        return "record_key" if "record_key" in self.batch.schema.names else "key"

    @cached_property
    def _headers(self) -> list[str | None]:
        return self._column("record_headers")

    def _column(self, name: str) -> list[Any]:
        """A column's values; nulls, where there is none."""
        if name not in self.batch.schema.names:
            return [None] * self.batch.num_rows
        return self.batch.column(name).to_pylist()


def grouped(names: list[str | None], rows: Numbers) -> Iterator[tuple[str, Numbers]]:
    """The rows of each name, in order."""
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(names[row] or "", []).append(row)
    for name, mine in found.items():
        yield name, np.array(mine, dtype=np.int64)


def text_sizes(texts: Any) -> Numbers:
    """Bytes of each text; 0 for null."""
    sizes: Numbers = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return sizes.astype(np.int64)


def too_large(batch: pa.RecordBatch, columns: Iterable[Any], largest: int) -> dict[int, SinkError]:
    """The rows with a text that the server does not take."""
    sizes = np.max([text_sizes(column) for column in columns], axis=0)
    hint = "raise `proto-max-bulk-len` of the server, or leave the column out"
    errors = {}
    for row in np.flatnonzero(sizes > largest).tolist():
        text = f"the record has {sizes[row]} bytes; the server takes {largest}"
        errors[row] = SinkError("sink.rejected", text, hint=hint, where=place(batch, row))
    return errors


def unroutable(batch: pa.RecordBatch, names: list[str | None], what: str, template: str) -> dict[int, SinkError]:
    """The rows whose change gives no stream, or no key."""
    text = f"the change gives no {what} for `{template}`"
    hint = "use a column that every change of the table has, or leave the table out"
    missing = [row for row, name in enumerate(names) if not name]
    return {row: SinkError("sink.unroutable", text, hint=hint, where=place(batch, row)) for row in missing}
