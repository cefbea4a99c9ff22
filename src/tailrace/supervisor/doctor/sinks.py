"""Checks of sinks, one function each. Unlike `Sink.prepare`, they create nothing."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka.admin import AdminClient

from tailrace.contracts import Delivery, RecordSink, Sink
from tailrace.errors import TailraceError
from tailrace.sinks.file import FileSink
from tailrace.sinks.kafka import KafkaSink
from tailrace.sinks.kafka.topics import Topics
from tailrace.spec import Pipeline
from tailrace.supervisor.doctor.check import Check, Subject
from tailrace.supervisor.doctor.disk import check_directory

KAFKA_S = 5.0


def check_sinks(pipeline: Pipeline) -> Iterator[Check]:
    """What can be said about each sink before it runs."""
    for sink in pipeline.sinks:
        subject = Subject(f"sink {pipeline.name}/{sink.id}")
        match sink:
            case FileSink():
                yield from check_directory(subject, sink.path)
            case KafkaSink():
                yield from _check_kafka(subject, sink, pipeline)
            case RecordSink():
                yield subject.ok("ready", "needs nothing")
            case _:
                yield from _check_tables(subject, sink)


def _check_tables(subject: Subject, sink: Sink) -> Iterator[Check]:
    from tailrace.sinks.lake import LakeSink  # loads Spark's own library

    folder = sink.local_folder() if isinstance(sink, LakeSink) else None
    if folder is None:
        yield subject.skipped("storage", "it is looked at when the pipeline runs")
    else:
        yield from check_directory(subject, folder)


def _check_kafka(subject: Subject, sink: KafkaSink, pipeline: Pipeline) -> Iterator[Check]:
    settings = sink.settings(Delivery(pipeline.name, pipeline.metadata.tenant, pipeline.source_id))
    try:
        Topics(sink.id, settings, None, KAFKA_S).ensure([])
    except TailraceError as error:
        yield subject.failed("brokers", error)
        yield subject.skipped("topic", "the brokers do not answer")
        return
    known = AdminClient({**settings, "log_level": 0}).list_topics(timeout=KAFKA_S)
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
