"""The task's half of the Kafka sink: Arrow batches to records, with one producer per process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.config import MIB
from tailrace.contracts import Written, never
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.kafka.topics import (
    HEALS,
    LAST_WAIT_S,
    SILENCE,
    Settings,
    Topics,
    bad_settings,
    gave_up,
    kafka_error,
)

_CHUNK_ROWS = 4096
_CHUNK_BYTES = 8 * MIB
_WAITING_ROWS = 65_536
_WAITING_BYTES = 32 * MIB
_DEFAULT_LARGEST = 1_000_000
_POLL_S = 0.05
_LAST_REPORTS_S = 1.0

_producers: dict[str, Producer] = {}
_known_topics: dict[str, set[str]] = {}


@dataclass
class KafkaWriter:
    """Produces in order and returns when every record is acknowledged.

    Records on their way are bounded in number and bytes, well below librdkafka's own bounds: it never refuses
    a record behind which others of the same key would pass.
    """

    sink: str
    settings: Settings = field(repr=False)
    topics: Topics
    topic: str | None
    template: str
    key: str
    headers: list[tuple[str, str | bytes | None]]
    patience: float
    ending: Callable[[], bool] = never
    _failures: list[SinkError] = field(default_factory=list)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        identity = json.dumps(self.settings, sort_keys=True)
        producer = self._producer(identity)
        try:
            for batch in batches:
                for chunk in self._chunks(batch):
                    self._produce(producer, chunk, identity)
                    self._await(producer, _allowed(chunk))
            self._await(producer, 0)
        except BaseException:
            _discard(identity)
            raise
        return Written()

    def _producer(self, identity: str) -> Producer:
        if identity not in _producers:
            _producers[identity] = open_producer(self.settings, self.sink)
        return _producers[identity]

    def _chunks(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in pieces of bounded size, after checking that each of its records can be sent."""
        if self.topic is None:
            self._check_routes(batch)
        lengths = _lengths(batch.column("value")) + _lengths(self._keys(batch))
        self._check_sizes(batch, lengths)
        share = np.cumsum(lengths, dtype=np.int64) // _CHUNK_BYTES
        rows = np.arange(batch.num_rows) // _CHUNK_ROWS
        cuts = np.flatnonzero(np.diff(share) | np.diff(rows)) + 1
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), batch.num_rows], strict=True):
            if last > first:
                yield batch.slice(first, last - first)

    def _check_routes(self, batch: pa.RecordBatch) -> None:
        empty = np.flatnonzero(_lengths(batch.column("topic")) == 0)
        if len(empty):
            raise SinkError(
                "sink.unroutable",
                f"the change gives no topic for `{self.template}`",
                hint="use a column that every change of the table has, or leave the table out",
                where=place(batch, int(empty[0])),
            )

    def _check_sizes(self, batch: pa.RecordBatch, lengths: np.ndarray) -> None:
        """librdkafka's own check, made before any record behind the large one is on its way."""
        largest = int(self.settings.get("message.max.bytes", _DEFAULT_LARGEST))
        large = np.flatnonzero(lengths > largest)
        if len(large):
            row = int(large[0])
            raise SinkError(
                "sink.rejected",
                f"the record has {lengths[row]} bytes; `message.max.bytes` is {largest}",
                hint="raise `message.max.bytes` in `client_conf` and `max.message.bytes` of the topic",
                where=place(batch, row),
            )

    def _produce(self, producer: Producer, chunk: pa.RecordBatch, identity: str) -> None:
        if self.topic is not None and "topic" not in chunk.schema.names:
            self._send(producer, self.topic, chunk)
            return
        topics: Any = chunk.column("topic")
        if self.topic is not None:
            topics = pc.fill_null(topics, self.topic)
        names: list[str] = topics.unique().to_pylist()
        known = _known_topics.setdefault(identity, set())
        if not known.issuperset(names):
            self.topics.ensure(names)
            known.update(names)
        for name in names:
            mine = chunk if len(names) == 1 else chunk.filter(pc.equal(topics, pa.scalar(name)))
            self._send(producer, name, mine)

    def _send(self, producer: Producer, topic: str, chunk: pa.RecordBatch) -> None:
        chunk = _with_tombstones(chunk, self._keys(chunk)) if "op" in chunk.schema.names else chunk
        values = chunk.column("value").cast(pa.binary()).to_pylist()
        keys = self._keys(chunk).cast(pa.binary()).to_pylist()
        report = partial(self._failed, chunk)
        headers = self._headers_of(chunk)
        if headers is not None:
            for value, key, own in zip(values, keys, headers, strict=True):
                producer.produce(topic, value, key, on_delivery=report, headers=own)
            return
        records: list[dict[str, Any]] = [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
        if producer.produce_batch(topic, records, on_delivery=report) != len(records):
            row, error = next((row, record["_error"]) for row, record in enumerate(records) if "_error" in record)
            raise kafka_error(error, "the record was refused", place(chunk, row))

    def _keys(self, batch: pa.RecordBatch) -> Any:
        """The records' keys; behind processors those may have said another."""
        return batch.column("record_key" if "record_key" in batch.schema.names else self.key)

    def _headers_of(self, chunk: pa.RecordBatch) -> list[list[tuple[str, str | bytes | None]]] | None:
        """The headers of each record; None where no record has any."""
        said: Any = chunk.column("record_headers") if "record_headers" in chunk.schema.names else None
        if said is None or said.null_count == len(said):
            return [self.headers] * chunk.num_rows if self.headers else None
        return [
            [*self.headers, *((name, str(value).encode()) for name, value in json.loads(text or "{}").items())]
            for text in said.to_pylist()
        ]

    def _failed(self, chunk: pa.RecordBatch, error: KafkaError, message: Message) -> None:
        if self._failures and error.code() in HEALS:
            return
        tombstone = message.value() is None
        sent, found = (self._keys(chunk), message.key()) if tombstone else (chunk.column("value"), message.value())
        row = pc.index(sent.cast(pa.binary()), found).as_py()
        self._note(kafka_error(error, "the record was not delivered", place(chunk, max(row, 0))))

    def _poll(self, producer: Producer) -> None:
        try:
            producer.poll(_POLL_S)
        except KafkaException as error:  # the producer gave up, because of a record whose report is still to come
            _hear(producer, _LAST_REPORTS_S)
            self._note(kafka_error(error.args[0], "the producer failed", self.sink))

    def _note(self, failure: SinkError) -> None:
        """Keep the first failure, but rather a record's own than what followed from it for the others."""
        if not self._failures or (decide(self._failures[0]), decide(failure)) == (Action.RETRY, Action.SET_ASIDE):
            self._failures = [failure]

    def _await(self, producer: Producer, most: int) -> None:
        """Wait until at most `most` records are on their way. A wait without any progress ends, and sooner where the
        run does."""
        left, since = len(producer), time.monotonic()
        while left > most:
            self._poll(producer)
            now, before, left = time.monotonic(), left, len(producer)
            since = now if left < before else since
            if self._failures:
                break
            if now - since > self.patience or (now - since > LAST_WAIT_S and self.ending()):
                raise gave_up(
                    f"no record was acknowledged for {now - since:.0f} seconds; {left} are waiting", self.sink
                )
        if self._failures:
            raise self._failures[0]


def open_producer(settings: Settings, sink: str) -> Producer:
    """A producer that reports failures only. Raises `ConfigError` for settings librdkafka does not accept."""
    try:
        return Producer({**settings, "delivery.report.only.error": True}, logger=SILENCE)
    except (KafkaException, ValueError) as error:
        raise bad_settings(error, sink) from None


def place(batch: pa.RecordBatch, row: int) -> str:
    """`schema.table at position`, for errors."""
    names = (batch.column(name)[row].as_py() for name in ("schema", "table", "position"))
    return "{}.{} at {}".format(*names)


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


def _allowed(chunk: pa.RecordBatch) -> int:
    """How many records of this chunk's size may be on their way."""
    return min(_WAITING_ROWS, _WAITING_BYTES * chunk.num_rows // max(chunk.nbytes, 1))


def _lengths(texts: Any) -> np.ndarray:
    """Bytes of each text; 0 for NULL."""
    lengths: np.ndarray = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return lengths


def _discard(identity: str) -> None:
    """Drop the producer and all it still holds: nothing of a batch may be sent after it was given up."""
    producer = _producers.pop(identity, None)
    if producer is not None:
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        _hear(producer, 0)


def _hear(producer: Producer, seconds: float) -> None:
    """Let a producer that is given up say what it still has to say. That it is broken, as by records that were taken
    back on their way, it raises, and a SystemError where a report follows in the same call."""
    with suppress(KafkaException, SystemError):
        producer.flush(seconds)
