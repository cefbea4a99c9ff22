"""The task's half of the Kafka sink without transactions: one producer per process, each record acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from tailrace.contracts import Rejected, Written
from tailrace.sinks.isolate import isolated
from tailrace.sinks.kafka.channel import Channel
from tailrace.sinks.kafka.cluster import Cluster
from tailrace.sinks.kafka.records import Records, allowed, as_given, rows_of, without_rows

_channels: dict[str, Channel] = {}


@dataclass
class KafkaWriter:
    """Produces in order and returns when every record is acknowledged.

    What was not acknowledged when the cluster refused a record is sent again without it, in the same order.
    """

    cluster: Cluster
    records: Records
    _rejected: list[Rejected] = field(default_factory=list)
    _arrived: set[int] = field(default_factory=set)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        try:
            for batch in batches:
                fit, refused = self.records.sendable(batch)
                self._rejected += refused
                for chunk in self.records.chunks(fit):
                    self.records.send(self._channel(), chunk)
                    self._settle(allowed(chunk))
            self._settle(0)
        except BaseException:
            self._discard()
            raise
        return Written(rejected=tuple(self._rejected))

    def _channel(self) -> Channel:
        identity = self.cluster.identity
        if identity not in _channels:
            _channels[identity] = Channel(self.cluster, self.cluster.producer())
        _channels[identity].cluster = self.cluster
        return _channels[identity]

    def _discard(self) -> None:
        channel = _channels.pop(self.cluster.identity, None)
        if channel is not None:
            channel.close()

    def _settle(self, most: int) -> None:
        channel = self._channel()
        if channel.settle(most):
            return
        if not channel.refused():
            raise channel.trouble()
        self._discard()
        rest = pa.Table.from_batches(channel.unsent()).combine_chunks().to_batches()
        for batch in rest:
            self._rejected += map(as_given, isolated(batch, self._send_again))

    def _send_again(self, batch: pa.RecordBatch) -> None:
        """Deliver what of the batch did not arrive yet, or as much as stands before the first refused record. With one
        request at a time, none overtakes another that is refused."""
        missing = without_rows(batch, self._arrived)
        producer = self.cluster.producer(max_in_flight_requests_per_connection=1)
        channel = Channel(self.cluster, producer)
        try:
            self.records.send(channel, missing)
            arrived = channel.settle(0)
        except BaseException:
            channel.close()
            raise
        self._arrived |= rows_of([missing]) - rows_of(channel.unsent())
        if not arrived:
            raise channel.trouble()
