"""A producer, and what becomes of the records that are put on their way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.errors import SinkError
from tailrace.sinks.kafka.cluster import FENCED, HEALS, Cluster, gave_up, kafka_error

Headers = list[tuple[str, str | bytes | None]]

_POLL_S = 0.05
_LAST_REPORTS_S = 1.0


class Fenced(Exception):
    """The cluster knows a younger producer with our transactional id, or gave our transaction up."""


@dataclass
class Channel:
    """Sends in order. From its first failure on it is of no use: `close` it and open another.

    librdkafka reports failures only; what is neither on its way nor failed was acknowledged."""

    cluster: Cluster
    producer: Producer
    _pieces: int = 0
    _failed: dict[tuple[int, int], tuple[pa.RecordBatch, KafkaError]] = field(default_factory=dict)
    _broken: KafkaError | None = None

    def send(self, topic: str, piece: pa.RecordBatch, keys: Any, headers: list[Headers] | None) -> None:
        """Put the rows of `piece` on their way, a row without a value as a tombstone."""
        number = self._pieces = self._pieces + 1
        values, names = piece.column("value").cast(pa.binary()), keys.cast(pa.binary())
        report = partial(self._report, number, piece, values, names)
        records: list[dict[str, Any]] = [
            {"value": value, "key": key} for value, key in zip(values.to_pylist(), names.to_pylist(), strict=True)
        ]
        if headers is not None:
            for row, (record, own) in enumerate(zip(records, headers, strict=True)):
                try:
                    self.producer.produce(topic, headers=own, on_delivery=report, **record)
                except KafkaException as error:
                    self._failed[number, row] = piece, error.args[0]
        elif self.producer.produce_batch(topic, records, on_delivery=report) != len(records):
            refused = ((row, record["_error"]) for row, record in enumerate(records) if "_error" in record)
            self._failed.update({(number, row): (piece, error) for row, error in refused})

    def put(self, topic: str, key: str, value: str) -> None:
        """A record of our own, into the first partition; returns when it is acknowledged."""
        self.producer.produce(topic, value.encode(), key.encode(), partition=0, on_delivery=self._put)
        if not self.settle(0):
            raise self.trouble()

    def settle(self, most: int) -> bool:
        """Wait until at most `most` records are on their way. False where something failed: then the channel is closed,
        and what is in `unsent` did not arrive, as far as anybody knows. A wait without any progress ends, and sooner
        where the run does."""
        left, since = len(self.producer), time.monotonic()
        while left > most and self._sound:
            self._poll()
            before, left = left, len(self.producer)
            since = time.monotonic() if left < before else since
            waited = self.cluster.gives_up(since)
            if waited is not None and self._sound:
                text = f"no record was acknowledged for {waited:.0f} seconds; {left} are waiting"
                raise gave_up(text, self.cluster.sink)
        if not self._sound:
            self._hear(_LAST_REPORTS_S)
            self.close()
        return self._sound

    def unsent(self) -> list[pa.RecordBatch]:
        """The rows that failed, one by one, in order."""
        return [self._failed[at][0].slice(at[1], 1) for at in sorted(self._failed)]

    def refused(self) -> list[pa.RecordBatch]:
        """Those that the cluster refused for what they are, or what was sent together with them; in order."""
        return [self._failed[at][0].slice(at[1], 1) for at in sorted(self._failed) if self._is_refused(at)]

    def trouble(self) -> SinkError:
        """The failure: rather a record's own than what followed from it for the others."""
        if self._broken is not None:
            self._refuse_fenced(self._broken)
        for at in sorted(self._failed, key=lambda at: (not self._is_refused(at), at)):
            piece, error = self._failed[at]
            self._refuse_fenced(error)
            return kafka_error(error, "the record was not delivered", place(piece, at[1]))
        assert self._broken is not None
        return kafka_error(self._broken, "the producer failed", self.cluster.sink)

    def close(self) -> None:
        """Drop all that is on its way: nothing of a batch may be sent after it was given up."""
        heard(lambda: self.producer.purge(in_queue=True, in_flight=True, blocking=True))
        self._hear(0)

    def _refuse_fenced(self, error: KafkaError) -> None:
        if error.code() in FENCED and "transactional.id" in self.cluster.settings:
            raise Fenced

    @property
    def _sound(self) -> bool:
        return not self._failed and self._broken is None

    def _is_refused(self, at: tuple[int, int]) -> bool:
        return self._failed[at][1].code() not in HEALS

    def _report(
        self, number: int, piece: pa.RecordBatch, values: Any, keys: Any, error: KafkaError, message: Message
    ) -> None:
        """Which row it is tells only its content; of equal ones, the first that has not failed yet."""
        found, sent = message.value(), values
        if found is None:  # a tombstone
            found, sent = message.key(), pc.if_else(pc.is_null(values), keys, pa.scalar(None, pa.binary()))
        row = pc.index(sent, found).as_py()
        while row >= 0 and (number, row) in self._failed:
            row = pc.index(sent, found, start=row + 1).as_py()
        self._failed[number, max(row, 0)] = piece, error

    def _put(self, error: KafkaError | None, _: Message) -> None:
        self._broken = self._broken or error

    def _poll(self) -> None:
        error = heard(lambda: self.producer.poll(_POLL_S))
        if error is not None:  # the producer gave up, because of a record whose report is still to come
            self._broken = error

    def _hear(self, seconds: float) -> None:
        """Let a producer that is given up say what it still has to say. That it is broken, as by records that were
        taken back on their way, is no news."""
        end = time.monotonic() + seconds
        while True:
            heard(lambda: self.producer.flush(max(end - time.monotonic(), 0)))
            if not len(self.producer) or time.monotonic() >= end:
                return


def heard(call: Callable[[], object]) -> KafkaError | None:
    """The error of librdkafka that a call raises, if it does. One that breaks the producer for good is raised from
    within its reports: as a `KafkaException`, as a `SystemError` where a report follows in the same call, or as the
    `KafkaError` itself, which Python does not take for an exception, so that only a bare `except` catches it."""
    try:
        call()
    except KafkaException as error:
        found: KafkaError = error.args[0]
        return found
    except SystemError:
        return None
    except:  # noqa: E722
        raised: Any = sys.exc_info()[1]
        if isinstance(raised, BaseException):
            raise
        return cast("KafkaError", raised)
    return None


def place(batch: pa.RecordBatch, row: int) -> str:
    """`schema.table at position`, for errors."""
    names = (batch.column(name)[row].as_py() for name in ("schema", "table", "position"))
    return "{}.{} at {}".format(*names)
