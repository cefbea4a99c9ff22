"""Kafka, through librdkafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Secret, Template, parse_template
from tailrace.contracts import Check, Delivery, RecordSink, Span, Subject
from tailrace.sinks.kafka.check import check_cluster
from tailrace.sinks.kafka.topics import Topics
from tailrace.sinks.kafka.writer import KafkaWriter, open_producer

Setting = bool | int | float | Secret

_MAX_IN_FLIGHT = 5
_DEFAULTS: dict[str, bool | int | str] = {
    "acks": "all",
    "batch.size": 1_048_576,
    "compression.type": "lz4",
    "delivery.timeout.ms": 120_000,
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
    "transactional.id": "remove it: the sink writes without transactions",
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

    Records with equal keys are in order, in one partition. The default key is the primary key as JSON text; a
    record without a key (a table that has none, a truncate, a logical message, a `key` template with a hole
    that the change cannot fill, such as `${after.id}` of a delete) goes to any partition. A change whose
    `topic` cannot be filled stops the sink with `sink.unroutable`.

    TLS and SASL are librdkafka's settings, in `client_conf`: `security.protocol`, `ssl.ca.location`,
    `sasl.mechanism`, `sasl.username`, `sasl.password` and so on. No text in `client_conf` is ever shown.
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

    carries_tombstones: ClassVar[bool] = True

    def columns(self) -> tuple[str, ...]:
        return ("seq", "schema", "table", "key", "position", *(("op",) if self.wants_tombstones else ()))

    def routes(self) -> dict[str, str]:
        routes = {} if self.static_topic() is not None else {"topic": self.topic}
        return routes if self.key is None else {**routes, "record_key": self.key}

    def routed(self) -> dict[str, str]:
        return {"topic": "topic", "record_key": "key", "record_headers": "headers"}

    def static_topic(self) -> str | None:
        """The topic, where every record goes to the same one."""
        match parse_template(self.topic):
            case (str(name),):
                return name
            case _:
                return None

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_cluster(subject, self, delivery)

    def prepare(self, delivery: Delivery) -> None:
        name = self.static_topic()
        open_producer(self.settings(delivery), self.id)  # librdkafka checks its settings
        self._topics(delivery).ensure([] if name is None else [name])

    def open(self, delivery: Delivery, span: Span, task: int) -> KafkaWriter:
        return KafkaWriter(
            sink=self.id,
            settings=self.settings(delivery),
            topics=self._topics(delivery),
            topic=self.static_topic(),
            template=self.topic,
            key="key" if self.key is None else "record_key",
            headers=[(name, value.encode()) for name, value in self.headers.items()],
            patience=self.send_timeout_secs,
            ending=delivery.ending,
        )

    def settings(self, delivery: Delivery) -> dict[str, bool | int | float | str]:
        """librdkafka's settings, secrets in the clear."""
        brokers = self.brokers if isinstance(self.brokers, str) else ",".join(self.brokers)
        given = {name: _plain(value) for name, value in self.client_conf.items()}
        client = {"bootstrap.servers": brokers, "client.id": f"tailrace-{delivery.pipeline}-{self.id}"}
        return {**_DEFAULTS, **client, **given}

    def _topics(self, delivery: Delivery) -> Topics:
        make = self.create_topics
        wanted = None if make is None else (make.partitions, make.replication)
        return Topics(self.id, self.settings(delivery), wanted, self.send_timeout_secs, delivery.ending)


def _plain(value: Setting) -> bool | int | float | str:
    return value.get_secret_value() if isinstance(value, Secret) else value


def _text(value: Setting) -> str:
    return str(_plain(value))


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.unsafe_setting", "{message}", {"message": message, "hint": hint})
