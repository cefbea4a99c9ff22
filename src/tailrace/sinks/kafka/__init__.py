"""Kafka, through librdkafka."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Secret, Template, literal_of
from tailrace.contracts import Check, Delivery, LetterRecord, LetterTemplate, RecordSink, Span, Subject
from tailrace.errors import SinkError
from tailrace.sinks.kafka.check import check_cluster
from tailrace.sinks.kafka.cluster import Cluster, Settings
from tailrace.sinks.kafka.letters import LetterTopic
from tailrace.sinks.kafka.login import Login
from tailrace.sinks.kafka.progress import Progress
from tailrace.sinks.kafka.records import Records
from tailrace.sinks.kafka.topics import Topics
from tailrace.sinks.kafka.transaction import LetterWriter, TransactionWriter
from tailrace.sinks.kafka.writer import KafkaWriter

Setting = bool | int | float | Secret

_MAX_IN_FLIGHT = 5
_DEFAULTS: dict[str, bool | int | str] = {
    "acks": "all",
    "batch.size": 1_048_576,
    "compression.type": "lz4",
    "message.timeout.ms": 120_000,
    "enable.gapless.guarantee": True,  # Law 3: a record that fails takes all behind it along
    "enable.idempotence": True,
    "linger.ms": 5,
    "max.in.flight.requests.per.connection": _MAX_IN_FLIGHT,
    "partitioner": "murmur2_random",  # the Java client's: the same key finds the same partition
    "request.timeout.ms": 30_000,
    "socket.keepalive.enable": True,
}
_OURS = {
    "bootstrap.servers": "use `brokers`",
    "metadata.broker.list": "use `brokers`",
    "delivery.report.only.error": "remove it: the sink needs it as it is",
    "transactional.id": "remove it: `exactly_once` names its producer itself",
    "isolation.level": "remove it: the sink reads nothing but its own progress",
}
_TRANSACTION_TIMEOUT_MS = 300_000
"""A batch may be one large transaction of the source. The next start does not wait for it."""
_ALIASES = {
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "request.required.acks": "acks",
}
_NEEDED = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "enable.gapless.guarantee": ("true",),
}


def _safe_settings(settings: dict[str, Setting]) -> dict[str, Setting]:
    """Refuse what would break a promise of the sink."""
    for name, value in settings.items():
        text = _text(value).lower()
        if name in _OURS:
            raise _refused(f"`{name}` cannot be set here", _OURS[name])
        if name in _NEEDED and text not in _NEEDED[name]:
            raise _refused(f"`{name}: {text}` would lose or reorder records", "remove it: the default is safe")
        if name in ("max.in.flight", "max.in.flight.requests.per.connection") and int(text) > _MAX_IN_FLIGHT:
            raise _refused(f"`{name}` above {_MAX_IN_FLIGHT} would reorder records", f"use {_MAX_IN_FLIGHT} or less")
    return settings


class CreateTopics(Model):
    """How missing topics are made."""

    partitions: Annotated[int, Field(ge=-1, description="Partitions; -1 is the broker's default.")] = -1
    replication: Annotated[int, Field(ge=-1, description="Replicas; -1 is the broker's default.")] = -1


class KafkaSink(RecordSink):
    """Produces one record per change, acknowledged by all in-sync replicas before the batch is done.

    Delivery is at least once. Retries on the wire are absorbed by the idempotent producer; a batch that is
    delivered again after a crash or an outage is in the topic twice, with the same `event_id`s in the same
    order, and consumers drop what they know. After a failed batch the producer is purged and discarded. A
    request already on its way to the broker may still arrive then: before the repeat, as a part of it, in
    order.

    With `exactly_once: true` delivery is exactly once for consumers that read with
    `isolation.level=read_committed`. A batch is one transaction of one ordered producer
    (`tailrace-<pipeline>/<sink>`), and how far the log is delivered is a record of `progress_topic` inside it.
    A repeat finds its end there and sends nothing. A start takes the producer over, which aborts what a dead one
    left open; an older run that still lives is fenced and stops with `sink.fenced`. Where the progress is
    missing though the checkpoint says that something was delivered, the sink stops with `sink.progress_lost`:
    turn it on for a new sink, or give the sink another id. Everything of a batch goes through one task. A dead
    letter that is delivered again is no part of this: after a crash it may be there twice.

    Records with equal keys are in order, in one partition. The default key is the primary key as JSON text; a
    record without a key (a table that has none, a truncate, a logical message, a `key` template with a hole
    that the change cannot fill, such as `${after.id}` of a delete) goes to any partition.

    A record that the cluster or its client refuses (too large, without a key in a compacted topic), and a change
    whose `topic` cannot be filled, are `sink.rejected` and `sink.unroutable`. They keep no other back; with
    `exactly_once` nothing of their batch is visible before they are kept elsewhere. `dlq_topic` gets them too, at least
    once, also with `exactly_once`.

    TLS and SASL are librdkafka's settings, in `client_conf`: `security.protocol`, `ssl.ca.location`,
    `sasl.mechanism`, `sasl.username`, `sasl.password` and so on. No text in `client_conf` is ever shown. Tokens
    of Amazon MSK (IAM) and of Google's managed Kafka come by `oauth`.
    """

    brokers: Annotated[
        str | tuple[str, ...],
        Field(
            min_length=1, description="Brokers of the cluster, `host:port`; one or more.", examples=["localhost:9092"]
        ),
    ]
    topic: Annotated[
        Template,
        Field(min_length=1, description="The topic of each record.", examples=["shop.${source.table}"]),
    ]
    key: Annotated[
        Template | None,
        Field(
            description="The record's key. Absent: the row's primary key, as JSON text.",
            examples=["${after.customer_id}"],
        ),
    ] = None
    headers: Annotated[dict[str, str], Field(description="Headers of every record. They make producing slower.")] = (
        Field(default_factory=dict)
    )
    create_topics: Annotated[
        CreateTopics | None, Field(description="How missing topics are made; null: they are not.")
    ] = CreateTopics()
    exactly_once: Annotated[
        bool, Field(description="One transaction per batch, with the progress in it; readers need `read_committed`.")
    ] = False
    progress_topic: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Compacted topic with one partition that keeps the progress of `exactly_once`. Absent: "
            "`_tailrace_progress.<pipeline>.<sink>`, made like other topics.",
        ),
    ] = None
    dlq_topic: Annotated[
        LetterTemplate | None,
        Field(
            description="The topic that gets each new dead letter too, with headers that say why; needs `journal`. "
            "Absent: none does.",
            examples=["shop.${source.table}.dlq"],
        ),
    ] = None
    send_timeout_secs: Annotated[
        float,
        Field(
            gt=0, description="Seconds without an acknowledgement after which the batch is given up and tried again."
        ),
    ] = 30
    client_conf: Annotated[
        dict[str, Setting],
        Field(
            description="Settings of librdkafka, such as those of TLS and SASL; they win over the sink's own. Texts in "
            "it are never shown.",
            examples=[{"security.protocol": "SASL_SSL", "linger.ms": 20}],
        ),
        AfterValidator(_safe_settings),
    ] = Field(default_factory=dict)
    oauth: Annotated[
        Login | None,
        Field(
            description="Tokens of a cloud for SASL OAUTHBEARER over TLS.",
            examples=[{"type": "aws_msk_iam", "region": "eu-central-1"}],
        ),
    ] = None

    carries_tombstones: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.progress_topic is not None and not self.exactly_once:
            raise _refused("`progress_topic` is for `exactly_once: true`", "remove it, or turn `exactly_once` on")
        if "transaction.timeout.ms" in self.client_conf and not self.exactly_once:
            raise _refused("`transaction.timeout.ms` is for `exactly_once: true`", "remove it")
        if self.oauth is not None and "sasl.mechanism" in self.client_conf:
            raise _refused("`oauth` chooses the SASL mechanism itself", "remove it from `client_conf`")
        if self.dlq_topic in ("", self.topic):
            raise _refused("`dlq_topic` is a topic of its own", f"use another one, such as {self.topic}.dlq")
        return self

    def columns(self) -> tuple[str, ...]:
        return ("seq", "schema", "table", "key", "position", *(("op",) if self.wants_tombstones else ()))

    def tasks(self) -> int | None:
        return 1 if self.exactly_once else None

    def routes(self) -> dict[str, str]:
        routes = {} if self.static_topic() is not None else {"topic": self.topic}
        return routes if self.key is None else {**routes, "record_key": self.key}

    def routed(self) -> dict[str, str]:
        return {"topic": "topic", "record_key": "key", "record_headers": "headers"}

    def static_topic(self) -> str | None:
        """The topic, where every record goes to the same one."""
        return literal_of(self.topic)

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_cluster(subject, self, delivery)

    def prepare(self, delivery: Delivery) -> None:
        name, cluster = self.static_topic(), self.cluster(delivery)
        cluster.producer()  # librdkafka checks its settings
        letters = None if self.dlq_topic is None else literal_of(self.dlq_topic)
        self._topics(cluster).ensure([each for each in (name, letters) if each is not None])
        if self.exactly_once:
            self._progress_topic(cluster).ensure([self.progress_name(delivery)])
            self._progress(delivery).claim()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        return self._progress(delivery).mark(log_id) if self.exactly_once else 0

    def replayed(self, delivery: Delivery, letters: tuple[str, ...]) -> frozenset[str]:
        return self._progress(delivery).letters() & frozenset(letters) if self.exactly_once else frozenset()

    def open(self, delivery: Delivery, span: Span, task: int) -> KafkaWriter | TransactionWriter:
        cluster = self.cluster(delivery)
        records = Records(
            topics=self._topics(cluster),
            topic=self.static_topic(),
            template=self.topic,
            key="key" if self.key is None else "record_key",
            headers=[(name, value.encode()) for name, value in self.headers.items()],
        )
        if not self.exactly_once:
            return KafkaWriter(cluster, records)
        if span.letters:
            return LetterWriter(self._progress(delivery), records, span)
        return TransactionWriter(self._progress(delivery), records, span)

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        """The writer committed already; but where records were refused, which somebody keeps now."""
        if not self.exactly_once or span.letters:
            return
        refused = [name for receipt in receipts if receipt for name in json.loads(receipt)]
        if not refused:
            self._progress(delivery).moved(span)
            return
        self._progress(delivery).set_aside(span, refused)
        raise SinkError(
            "sink.again",
            f"the cluster refused {len(refused)} records of the batch, which are set aside",
            hint="nothing: the batch is delivered without them",
            where=self.id,
        )

    def publishes_letters(self) -> bool:
        return self.dlq_topic is not None

    def publish_letters(self, delivery: Delivery, letters: Sequence[LetterRecord]) -> None:
        assert self.dlq_topic is not None
        cluster = self.cluster(delivery)
        settings = {name: value for name, value in cluster.settings.items() if not name.startswith("transaction")}
        topics = self._topics(replace(cluster, settings=settings))
        LetterTopic(topics, self.dlq_topic, self._destination).publish(letters)

    def _destination(self, letter: LetterRecord) -> str | None:
        """The topic that the letter's record was for."""
        return letter.row.get("topic") or self.static_topic()

    def cluster(self, delivery: Delivery) -> Cluster:
        return Cluster(self.id, self.settings(delivery), self.oauth, self.send_timeout_secs, delivery.ending)

    def settings(self, delivery: Delivery) -> Settings:
        """librdkafka's settings, secrets in the clear."""
        brokers = self.brokers if isinstance(self.brokers, str) else ",".join(self.brokers)
        given = {_ALIASES.get(name, name): _plain(value) for name, value in self.client_conf.items()}
        client: Settings = {"bootstrap.servers": brokers, "client.id": f"tailrace-{delivery.pipeline}-{self.id}"}
        if self.exactly_once:
            client["transactional.id"] = f"tailrace-{delivery.pipeline}/{self.id}"
            client["transaction.timeout.ms"] = _TRANSACTION_TIMEOUT_MS
        if self.oauth is not None:
            client |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        return {**_DEFAULTS, **client, **given}

    def progress_name(self, delivery: Delivery) -> str:
        return self.progress_topic or f"_tailrace_progress.{delivery.pipeline}.{self.id}"

    def _progress(self, delivery: Delivery) -> Progress:
        return Progress.of(self.cluster(delivery), self.progress_name(delivery), delivery)

    def _topics(self, cluster: Cluster) -> Topics:
        make = self.create_topics
        return Topics(cluster, None if make is None else (make.partitions, make.replication))

    def _progress_topic(self, cluster: Cluster) -> Topics:
        make = self.create_topics
        return Topics(cluster, None if make is None else (1, make.replication), (("cleanup.policy", "compact"),))


def _plain(value: Setting) -> bool | int | float | str:
    return value.get_secret_value() if isinstance(value, Secret) else value


def _text(value: Setting) -> str:
    return str(_plain(value))


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.unsafe_setting", "{message}", {"message": message, "hint": hint})
