"""What `tailrace doctor` looks at in a Kafka cluster. Unlike the sink itself it creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.config import literal_of
from tailrace.contracts import Check, Delivery, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from tailrace.sinks.kafka import KafkaSink

PATIENCE_S = 5.0


def check_cluster(subject: Subject, sink: KafkaSink, delivery: Delivery) -> Iterator[Check]:
    """Whether brokers answer, and the topics are there or will be."""
    cluster = replace(sink.cluster(delivery), patience=PATIENCE_S)
    try:
        found = Topics(cluster, None).found()
    except TailraceError as error:
        yield subject.failed("brokers", error)
        yield subject.skipped("topic", "the brokers do not answer")
        return
    yield subject.ok("brokers", ", ".join(f"{one.host}:{one.port}" for one in found.brokers.values()))
    yield _topic(subject, sink, "topic", sink.topic, set(found.topics))
    if sink.dlq_topic is not None:
        yield _topic(subject, sink, "dlq_topic", sink.dlq_topic, set(found.topics))
    if sink.exactly_once:
        yield _named(subject, sink, "progress", sink.progress_name(delivery), set(found.topics))


def _topic(subject: Subject, sink: KafkaSink, what: str, template: str, known: set[str]) -> Check:
    name = literal_of(template)
    if name is None:
        made = sink.create_topics is not None
        return subject.ok(what, f"{template}, {'' if made else 'not '}created when missing")
    return _named(subject, sink, what, name, known)


def _named(subject: Subject, sink: KafkaSink, what: str, name: str, known: set[str]) -> Check:
    if name in known:
        return subject.ok(what, f"{name} exists")
    if sink.create_topics is not None:
        return subject.ok(what, f"{name} will be created")
    return subject.fail(what, f"{name} does not exist", "create it, or leave out `create_topics: null`")
