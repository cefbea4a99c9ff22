"""Checks of sinks, one function each. Unlike `Sink.prepare`, they create nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.contracts import Delivery, Sink
from tailrace.errors import TailraceError
from tailrace.spec import Pipeline
from tailrace.supervisor.doctor.check import Check, Subject
from tailrace.supervisor.doctor.disk import check_directory

if TYPE_CHECKING:
    from tailrace.sinks.file import FileSink
    from tailrace.sinks.kafka import KafkaSink

KAFKA_S = 5.0


def check_sink(pipeline: Pipeline, sink: Sink) -> Iterator[Check]:
    """What can be said about a sink before it runs; nothing for kinds that need nothing."""
    subject = Subject(f"sink {pipeline.name}/{sink.id}")
    match type(sink).__name__:
        case "FileSink":
            yield from _check_file(subject, sink)  # type: ignore[arg-type]
        case "KafkaSink":
            delivery = Delivery(pipeline.name, pipeline.metadata.tenant, pipeline.source_id)
            yield from _check_kafka(subject, sink, delivery)  # type: ignore[arg-type]
        case _:
            yield subject.ok("sink", "needs nothing")


def _check_file(subject: Subject, sink: FileSink) -> Iterator[Check]:
    yield from check_directory(subject, sink.path)


def _check_kafka(subject: Subject, sink: KafkaSink, delivery: Delivery) -> Iterator[Check]:
    from tailrace.sinks.kafka.topics import Topics

    try:
        known = Topics(sink.id, sink.settings(delivery), None, KAFKA_S).names()
    except TailraceError as error:
        yield subject.failed("brokers", error)
        yield subject.skipped("topic", "the brokers do not answer")
        return
    yield subject.ok("brokers", f"answer; {len(known)} topics")
    yield _topic(subject, sink, known)


def _topic(subject: Subject, sink: KafkaSink, known: set[str]) -> Check:
    name, made = sink.static_topic(), sink.create_topics is not None
    if name is None:
        how = "created when missing" if made else "not created when missing"
        return subject.ok("topic", f"by `{sink.topic}`, {how}")
    if name in known:
        return subject.ok("topic", f"{name} exists")
    if made:
        return subject.ok("topic", f"{name} will be created")
    return subject.fail("topic", f"{name} does not exist", "create it, or leave out `create_topics: null`")
