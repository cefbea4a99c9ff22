"""The topic for dead letters: each is produced there too, by a producer of its own, outside of any transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.contracts import LetterRecord
from tailrace.errors import SinkError
from tailrace.sinks.isolate import isolated
from tailrace.sinks.kafka.channel import Channel, Headers
from tailrace.sinks.kafka.cluster import Cluster
from tailrace.sinks.kafka.topics import Topics

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
_ROW = pa.schema(
    [
        pa.field(name, pa.int64() if name == "number" else pa.string())
        for name in ("number", "topic", "key", "value", "schema", "table", "position")
    ]
)


@dataclass(frozen=True)
class LetterTopic:
    """Of one sink. `destination` says which topic a letter's record was for."""

    topics: Topics
    template: str
    destination: Callable[[LetterRecord], str | None]

    def publish(self, letters: Sequence[LetterRecord]) -> None:
        """Return when the cluster has each. One that it refuses for its value goes without; whatever else is wrong is
        raised."""
        topics = [each.filled(self.template, _as_name) for each in letters]
        self.topics.ensure(dict.fromkeys(topics))
        batch = _batch(letters, topics)
        for refused in isolated(batch, lambda some: self._send(letters, some)):
            self._send_without_value(letters, refused.row)

    def _send_without_value(self, letters: Sequence[LetterRecord], row: pa.RecordBatch) -> None:
        place = row.schema.get_field_index("value")
        try:
            self._send(letters, row.set_column(place, "value", pa.nulls(1, pa.string())))
        except SinkError as error:
            hint = "let it take records without a value, or change `dlq_topic`; the letter is in the journal"
            text = f"the topic {row.column('topic')[0]} takes no dead letters: {error.message}"
            raise SinkError("sink.refused", text, hint=hint, where=self._cluster.sink) from error

    def _send(self, letters: Sequence[LetterRecord], batch: pa.RecordBatch) -> None:
        channel = Channel(self._cluster, self._cluster.producer())
        try:
            names: Any = batch.column("topic").unique().to_pylist()
            for topic in names:
                mine = batch.filter(pc.equal(batch.column("topic"), pa.scalar(topic)))
                channel.send(topic, mine, mine.column("key"), self._headers(letters, mine))
            if not channel.settle(0):
                raise channel.trouble()
        finally:
            channel.close()

    def _headers(self, letters: Sequence[LetterRecord], batch: pa.RecordBatch) -> list[Headers]:
        found: list[Headers] = []
        for row in batch.to_pylist():
            each = letters[row["number"]]
            told = each.headers(self.destination(each), whole=row["value"] is not None)
            found.append([(name, text.encode()) for name, text in told.items()])
        return found

    @property
    def _cluster(self) -> Cluster:
        return self.topics.cluster


def _batch(letters: Sequence[LetterRecord], topics: Sequence[str]) -> pa.RecordBatch:
    """The letters' records, with the columns that errors name them by."""
    rows = [
        {
            "number": number,
            "topic": topic,
            "key": each.key,
            "value": each.value,
            "schema": each.letter.schema,
            "table": each.letter.table,
            "position": each.letter.position,
        }
        for number, (each, topic) in enumerate(zip(letters, topics, strict=True))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_ROW)


def _as_name(value: str) -> str:
    return _NO_NAME.sub("_", value)
