"""What `tailrace doctor` looks at in a Kafka cluster. Unlike the sink itself it creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from tailrace.contracts import Check, Delivery, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from tailrace.sinks.kafka import KafkaSink

PATIENCE_S = 5.0


def check_cluster(subject: Subject, sink: KafkaSink, delivery: Delivery) -> Iterator[Check]:
    """Whether brokers answer, and the topic is there or will be."""
    settings = sink.settings(delivery)
    try:
        Topics(sink.id, settings, None, PATIENCE_S).ensure([])
    except TailraceError as error:
        yield subject.failed("brokers", error)
        yield subject.skipped("topic", "the brokers do not answer")
        return
    known = AdminClient({**settings, "log_level": 0}).list_topics(timeout=PATIENCE_S)
    yield subject.ok("brokers", ", ".join(f"{one.host}:{one.port}" for one in known.brokers.values()))
    yield _topic(subject, sink, set(known.topics))


def _topic(subject: Subject, sink: KafkaSink, known: set[str]) -> Check:
    name, made = sink.static_topic(), sink.create_topics is not None
    if name is None:
        return subject.ok("topic", f"{sink.topic}, {'' if made else 'not '}created when missing")
    if name in known:
        return subject.ok("topic", f"{name} exists")
    if made:
        return subject.ok("topic", f"{name} will be created")
    return subject.fail("topic", f"{name} does not exist", "create it, or leave out `create_topics: null`")
