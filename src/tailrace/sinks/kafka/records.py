"""From rows to records: which can be sent at all, and where each goes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.config import MIB
from tailrace.contracts import Rejected
from tailrace.errors import SinkError
from tailrace.sinks.kafka.channel import Channel, Headers, place
from tailrace.sinks.kafka.topics import Topics

ROW = "_row"
"""The column that numbers the rows of a batch; a tombstone has the number of its delete."""

_CHUNK_ROWS = 4096
_CHUNK_BYTES = 8 * MIB
_WAITING_ROWS = 65_536
_WAITING_BYTES = 32 * MIB
_DEFAULT_LARGEST = 1_000_000
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")

_known_topics: dict[str, set[str]] = {}
"""By cluster: those that are there."""


@dataclass
class Records:
    """What a sink makes of rows. Records on their way are bounded in number and bytes, well below librdkafka's own
    bounds: it never refuses a record behind which others of the same key would pass."""

    topics: Topics
    topic: str | None
    template: str
    key: str
    headers: Headers
    _numbered: int = field(default=0, init=False)

    def sendable(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Rejected]]:
        """The batch without the records that cannot be sent, and those."""
        refused = {**self._too_large(batch), **self._unroutable(batch)}
        if not refused:
            return batch, []
        kept = np.ones(batch.num_rows, bool)
        kept[list(refused)] = False
        return batch.filter(pa.array(kept)), [Rejected(batch.slice(row, 1), refused[row]) for row in sorted(refused)]

    def chunks(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in pieces of bounded size, with `ROW` and with the tombstones that belong to it."""
        share = np.cumsum(self._lengths(batch), dtype=np.int64) // _CHUNK_BYTES
        rows = np.arange(batch.num_rows)
        batch = batch.append_column(ROW, pa.array(self._numbered + rows))
        self._numbered += batch.num_rows
        cuts = np.flatnonzero(np.diff(share) | np.diff(rows // _CHUNK_ROWS)) + 1
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), batch.num_rows], strict=True):
            if last > first:
                chunk = batch.slice(first, last - first)
                yield _with_tombstones(chunk, self._keys(chunk)) if "op" in chunk.schema.names else chunk

    def send(self, channel: Channel, chunk: pa.RecordBatch) -> None:
        """Put a chunk on its way."""
        if self.topic is not None and "topic" not in chunk.schema.names:
            self._send_to(channel, self.topic, chunk)
            return
        topics = self._topics_of(chunk)
        names: list[str] = topics.unique().to_pylist()
        known = _known_topics.setdefault(self.topics.cluster.identity, set())
        if not known.issuperset(names):
            self.topics.ensure(names)
            known.update(names)
        for name in names:
            mine = chunk if len(names) == 1 else chunk.filter(pc.equal(topics, pa.scalar(name)))
            self._send_to(channel, name, mine)

    def _send_to(self, channel: Channel, topic: str, chunk: pa.RecordBatch) -> None:
        channel.send(topic, chunk, self._keys(chunk), self._headers_of(chunk))

    def _topics_of(self, batch: pa.RecordBatch) -> Any:
        topics: Any = batch.column("topic")
        return topics if self.topic is None else pc.fill_null(topics, self.topic)

    def _keys(self, batch: pa.RecordBatch) -> Any:
        """The records' keys; behind processors those may have said another."""
        return batch.column("record_key" if "record_key" in batch.schema.names else self.key)

    def _lengths(self, batch: pa.RecordBatch) -> np.ndarray:
        lengths: np.ndarray = _lengths(batch.column("value")) + _lengths(self._keys(batch))
        return lengths

    def _headers_of(self, chunk: pa.RecordBatch) -> list[Headers] | None:
        """The headers of each record; None where no record has any."""
        said: Any = chunk.column("record_headers") if "record_headers" in chunk.schema.names else None
        if said is None or said.null_count == len(said):
            return [self.headers] * chunk.num_rows if self.headers else None
        return [
            [*self.headers, *((name, str(value).encode()) for name, value in json.loads(text or "{}").items())]
            for text in said.to_pylist()
        ]

    def _unroutable(self, batch: pa.RecordBatch) -> dict[int, SinkError]:
        if "topic" not in batch.schema.names:
            return {}
        topics = self._topics_of(batch).dictionary_encode()
        good = np.array([bool(_TOPIC_NAME.fullmatch(name)) for name in topics.dictionary.to_pylist()] + [False])
        rows = np.flatnonzero(~good[pc.fill_null(topics.indices, -1).to_numpy(zero_copy_only=False)])
        return {row: self._no_topic(batch, row) for row in rows.tolist()}

    def _no_topic(self, batch: pa.RecordBatch, row: int) -> SinkError:
        name = self._topics_of(batch)[row].as_py()
        return SinkError(
            "sink.unroutable",
            f"`{name}` is no name of a topic" if name else f"the change gives no topic for `{self.template}`",
            hint="use a column that every change of the table has, with letters, digits, dots, dashes and underscores",
            where=place(batch, row),
        )

    def _too_large(self, batch: pa.RecordBatch) -> dict[int, SinkError]:
        """librdkafka's own check, made before any record is on its way."""
        lengths = self._lengths(batch)
        largest = int(self.topics.cluster.settings.get("message.max.bytes", _DEFAULT_LARGEST))
        return {
            row: SinkError(
                "sink.rejected",
                f"the record has {lengths[row]} bytes; `message.max.bytes` is {largest}",
                hint="raise `message.max.bytes` in `client_conf` and `max.message.bytes` of the topic",
                where=place(batch, row),
            )
            for row in np.flatnonzero(lengths > largest).tolist()
        }


def allowed(chunk: pa.RecordBatch) -> int:
    """How many records of this chunk's size may be on their way."""
    return min(_WAITING_ROWS, _WAITING_BYTES * chunk.num_rows // max(chunk.nbytes, 1))


def rows_of(batches: list[pa.RecordBatch]) -> set[int]:
    """The numbers of their rows."""
    return {int(number) for batch in batches for number in batch.column(ROW).to_numpy()}


def without_rows(batch: pa.RecordBatch, numbers: set[int]) -> pa.RecordBatch:
    """The batch but for the rows with these numbers."""
    return batch.filter(pa.array(~np.isin(batch.column(ROW).to_numpy(), list(numbers))))


def names_of(batch: pa.RecordBatch) -> list[str]:
    """What tells each record from others, also when its batch comes again: its change and what it says."""
    texts = (batch.column(name).to_pylist() for name in ("seq", "key", "value"))
    return [
        f"{seq}-{hashlib.blake2b(f'{key}|{value}'.encode(), digest_size=8).hexdigest()}"
        for seq, key, value in zip(*texts, strict=True)
    ]


def without(batch: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:
    """The batch but for the records with these names."""
    if not names:
        return batch
    offsets = sorted({int(name.partition("-")[0]) for name in names})
    near = np.flatnonzero(np.isin(batch.column("seq").to_numpy(), offsets))
    found = [row for row in near.tolist() if names_of(batch.slice(row, 1))[0] in names]
    return batch.filter(pa.array(~np.isin(np.arange(batch.num_rows), found)))


def as_given(refused: Rejected) -> Rejected:
    """With the row as the writer was given it."""
    return Rejected(refused.row.drop_columns([ROW]), refused.error)


def _with_tombstones(chunk: pa.RecordBatch, keys: Any) -> pa.RecordBatch:
    """A row without a value behind each delete that has a key: what a compacted topic forgets the key by."""
    deletes = np.asarray(pc.and_(pc.equal(chunk.column("op"), pa.scalar("d")), pc.is_valid(keys)))
    if not deletes.any():
        return chunk
    rows: Any = np.repeat(np.arange(chunk.num_rows), 1 + deletes)
    tombstones = np.append(False, rows[1:] == rows[:-1])
    twice = chunk.take(pa.array(rows, pa.int64()))
    values = pc.if_else(pa.array(tombstones), pa.scalar(None, pa.string()), twice.column("value"))
    return twice.set_column(twice.schema.get_field_index("value"), "value", values)


def _lengths(texts: Any) -> np.ndarray:
    """Bytes of each text; 0 for NULL."""
    lengths: np.ndarray = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return lengths
