"""How far a sink is, as records of a compacted topic: written in the transactions that deliver, read before them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.contracts import Delivery, Span
from tailrace.errors import SinkError
from tailrace.sinks.kafka.channel import Channel, Fenced
from tailrace.sinks.kafka.cluster import FENCED, HEALS, LAST_WAIT_S, Cluster, gave_up, kafka_error

_RECENT = -2_000 - 1_000
"""librdkafka's word for the last thousand offsets, among which ours usually are."""
_SLICE_S = 1.0
_POLL_S = 0.2
_LOOK_S = 0.05
_NOT_YET = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.LEADER_NOT_AVAILABLE,
}


@dataclass
class Seen:
    """What the topic says of a sink: the run that delivers, and the end of what is delivered, by log."""

    run: str | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    kept: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    """By log: where a batch begins, and those of its records that somebody keeps elsewhere."""
    letters: frozenset[str] = frozenset()
    """The ids of the dead letters that were delivered again last."""

    def aside(self, span: Span) -> frozenset[str]:
        """The span's records that need not be delivered."""
        start, names = self.kept.get(span.log_id, (None, frozenset[str]()))
        return names if start == span.start else frozenset()


_seen: dict[str, Seen] = {}
"""What the driver knows since `claim`. Nobody else delivers since then, without a later claim that fences us."""
_claimed: set[tuple[str, str]] = set()
"""(cluster and sink, run) of what this process claimed."""


@dataclass(frozen=True)
class Progress:
    """Of one sink. Whoever claims it last is the one that delivers: everybody else is fenced, and learns why here."""

    cluster: Cluster
    topic: str
    owner: str
    """`pipeline/sink`."""
    run: str

    @classmethod
    def of(cls, cluster: Cluster, topic: str, delivery: Delivery) -> Progress:
        return cls(cluster, topic, f"{delivery.pipeline}/{cluster.sink}", delivery.run)

    def claim(self) -> None:
        """Abort what an earlier producer of this sink left open, fence it, and take its place; once per run."""
        _seen.pop(self._identity, None)
        channel = self.open()
        try:
            seen = self.read()
            if seen.run != self.run:
                if (self._identity, self.run) in _claimed:
                    raise self.fenced()
                self._note(channel, self.owner, {})
        except Fenced:
            raise gave_up("another producer of this sink began at the same time", self.cluster.sink) from None
        finally:
            channel.close()
        _claimed.add((self._identity, self.run))

    def mark(self, log_id: str) -> int:
        """The end of what is delivered of this log; 0 where nothing is."""
        seen = _seen.get(self._identity)
        if seen is None or log_id not in seen.offsets:
            seen = _seen[self._identity] = self.read(log_id)
            seen.offsets.setdefault(log_id, 0)
        return seen.offsets[log_id]

    def moved(self, span: Span) -> None:
        """What the driver knows after a batch."""
        _seen.setdefault(self._identity, Seen()).offsets[span.log_id] = span.end

    def set_aside(self, span: Span, names: list[str]) -> None:
        """Somebody keeps these records of the span, which the cluster refuses: its repeat leaves them out."""
        channel = self.open()
        try:
            key = f"{self.owner}/{span.log_id}/aside"
            self._note(channel, key, {"log": span.log_id, "start": span.start, "aside": names})
        except Fenced:
            raise self.fenced_by() from None
        finally:
            channel.close()

    def _note(self, channel: Channel, key: str, value: dict[str, object]) -> None:
        begin(channel)
        channel.put(self.topic, key, json.dumps({"run": self.run, **value}))
        commit(channel)

    def open(self, **changed: bool | int | str) -> Channel:
        """A transactional producer; every earlier one of this sink is fenced, and what it left open aborted."""
        channel = Channel(self.cluster, self.cluster.producer(**changed))
        try:
            self._connect(channel)
            _patiently(channel, channel.producer.init_transactions, "the cluster gives no transactions")
        except BaseException:
            channel.close()
            raise
        return channel

    def _connect(self, channel: Channel) -> None:
        """librdkafka asks for the coordinator at once where it is connected to a broker it learned of, and else only
        half a second later."""
        with suppress(KafkaException):
            channel.producer.list_topics(self.topic, timeout=min(self.cluster.patience, LAST_WAIT_S))
        channel.producer.poll(_LOOK_S)

    def put(self, channel: Channel, span: Span) -> None:
        """The progress after `span`, as a part of the open transaction."""
        value = {"run": self.run, "log": span.log_id, "offset": span.end}
        channel.put(self.topic, f"{self.owner}/{span.log_id}", json.dumps(value))

    def put_letters(self, channel: Channel, span: Span, letters: list[str]) -> None:
        """The dead letters that the open transaction delivers again."""
        value = {"run": self.run, "log": span.log_id, "letters": letters}
        channel.put(self.topic, f"{self.owner}/{span.log_id}/letters", json.dumps(value))

    def letters(self) -> frozenset[str]:
        """The ids of the dead letters that were delivered again last."""
        return self._scan(OFFSET_BEGINNING).letters

    def fenced(self) -> SinkError:
        return SinkError(
            "sink.fenced",
            f"another run delivers for `{self.owner}` into this cluster",
            hint="is the same pipeline running twice? Stop one of them; what is delivered stays delivered once",
            where=self.cluster.sink,
        )

    def fenced_by(self) -> SinkError:
        """Why a transaction was taken from us."""
        if self.read().run != self.run:
            return self.fenced()
        text = "the cluster gave the transaction up: it was open for longer than `transaction.timeout.ms`"
        hint = "raise it in `client_conf`, or make batches smaller: spec.batch.max_events"
        return SinkError("sink.unavailable", text, hint=hint, where=self.cluster.sink)

    def read(self, log_id: str | None = None) -> Seen:
        """What is committed, with the offset of this log if there is one. Waits for transactions of others that share
        the topic, and for a topic that is being made."""
        recent = self._scan(_RECENT)
        if recent.run is not None and (log_id is None or log_id in recent.offsets):
            return recent
        return self._scan(OFFSET_BEGINNING)

    @property
    def _identity(self) -> str:
        return f"{self.cluster.identity} {self.topic} {self.owner}"

    def _scan(self, start: int) -> Seen:
        seen, consumer = Seen(), self.cluster.consumer()
        partition = TopicPartition(self.topic, 0, start)
        try:
            self._await_topic(consumer)
            consumer.assign([partition])
            for message in self._committed(consumer, partition):
                self._learn(seen, (message.key() or b"").decode(), json.loads(message.value() or b"{}"))
        finally:
            consumer.close()
        return seen

    def _learn(self, seen: Seen, key: str, value: dict[str, Any]) -> None:
        if key != self.owner and not key.startswith(f"{self.owner}/"):
            return
        seen.run = value.get("run")
        if "offset" in value:
            seen.offsets[value["log"]] = value["offset"]
        if "letters" in value:
            seen.letters = frozenset(value["letters"])
        if "aside" in value:
            seen.kept[value["log"]] = value["start"], frozenset(value["aside"])

    def _await_topic(self, consumer: Consumer) -> None:
        """A topic that was made just now is not known everywhere."""
        since = time.monotonic()
        while True:
            try:
                error = consumer.list_topics(self.topic, timeout=self.cluster.patience).topics[self.topic].error
            except KafkaException as failure:
                error = failure.args[0]
            if error is None:
                return
            if error.code() not in _NOT_YET or self.cluster.gives_up(since) is not None:
                raise self._unreadable(error)
            time.sleep(_LOOK_S)

    def _committed(self, consumer: Consumer, partition: TopicPartition) -> Iterator[Message]:
        since = time.monotonic()
        while True:
            message = consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if message is not None and error is None:
                yield message
            elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
                # Before the end stands perhaps the transaction of somebody else, which hides what is behind it.
                if (message.offset() or 0) >= consumer.get_watermark_offsets(partition, cached=True)[1]:
                    return
            elif error is not None and error.code() not in (*HEALS, KafkaError.GROUP_AUTHORIZATION_FAILED):
                raise self._unreadable(error)  # the right to a group is not needed: there is none
            if self.cluster.gives_up(since) is not None:
                raise gave_up(f"the end of the topic {self.topic} cannot be read", self.cluster.sink)

    def _unreadable(self, error: KafkaError) -> SinkError:
        failure = kafka_error(error, f"the topic {self.topic} cannot be read", self.cluster.sink)
        if failure.code != "sink.rejected":
            return failure
        return SinkError(
            "sink.refused",
            f"{failure.message}: it keeps the sink's progress",
            hint="create it with one partition and cleanup.policy=compact, or leave out `create_topics: null`",
            where=self.cluster.sink,
        )


def begin(channel: Channel) -> None:
    _patiently(channel, lambda _: channel.producer.begin_transaction(), "no transaction was begun")


def commit(channel: Channel) -> None:
    """All of the transaction becomes visible, or nothing. Raises `Fenced`, or an error that leaves it open which."""
    _patiently(channel, channel.producer.commit_transaction, "the transaction was not committed")


def abort(channel: Channel) -> None:
    """Soon, or not at all: whoever begins next does it as well."""
    _patiently(channel, channel.producer.abort_transaction, "the transaction was not aborted", LAST_WAIT_S)


def _patiently(channel: Channel, call: Callable[[float], None], what: str, seconds: float = math.inf) -> None:
    """librdkafka's calls go on where they were when they are called again."""
    since = time.monotonic()
    while True:
        try:
            call(_SLICE_S)
            return
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in FENCED:
                raise Fenced from None
            late = channel.cluster.gives_up(since) is not None or time.monotonic() - since > seconds
            if not error.retriable() or error.txn_requires_abort() or late:
                raise _not_done(error, what, channel.cluster.sink) from None


def _not_done(error: KafkaError, what: str, sink: str) -> SinkError:
    if error.retriable() or error.txn_requires_abort():
        return gave_up(f"{what}: {error.str()}", sink)
    found = kafka_error(error, what, sink)
    if found.code != "sink.rejected":
        return found
    return SinkError("sink.refused", found.message, hint="check what the cluster allows of transactions", where=sink)
