"""The Kafka sink with `exactly_once`: what readers of committed records see, whatever happens to the writers."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from pydantic import ValidationError

from tailrace.config import Secret
from tailrace.contracts import RecordSink, Span
from tailrace.contracts.checking import Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.kafka import CreateTopics, KafkaSink, Setting, progress
from tailrace.testing.servers import KafkaBroker
from tailrace.testing.suites.sinks import (
    DELIVERY,
    LOG,
    Change,
    Received,
    ServerSinkSuite,
    batch_for,
    deliver,
    span_of,
    versions,
    write,
)
from tailrace.testing.waiting import eventually
from tests.sinks.topics import make_topic, messages, topic, values

NOBODY = "127.0.0.1:1"
OLDER, NEWER = (replace(DELIVERY, run=run) for run in ("older", "newer"))


def exact(broker: KafkaBroker, **options: Any) -> KafkaSink:
    name = topic()
    given = {"id": name, "brokers": broker.bootstrap, "topic": name, "create_topics": CreateTopics(partitions=3)}
    return KafkaSink(**{**given, "exactly_once": True, **options})


class TestExactlyOnce(ServerSinkSuite):
    repeats = "absorbed"
    notes_letters = True
    poison = "x" * 1_000_001
    large = (900_000,)

    @pytest.fixture
    def server(self, kafka: KafkaBroker) -> KafkaBroker:
        return kafka

    @pytest.fixture
    def hasty(self, sink: KafkaSink) -> KafkaSink:
        return sink.model_copy(update={"send_timeout_secs": 3})

    @pytest.fixture
    def sink(self, kafka: KafkaBroker) -> KafkaSink:
        return exact(kafka)

    @pytest.fixture
    def received(self, sink: KafkaSink, kafka: KafkaBroker) -> Received:
        return lambda: values(kafka, sink.topic)

    @pytest.fixture
    def unavailable(self) -> KafkaSink:
        return KafkaSink(id="bus", brokers=NOBODY, topic="anything", send_timeout_secs=0.5, exactly_once=True)

    def test_the_mark_is_honest(self, sink: RecordSink) -> None:
        """The writer commits: the mark moves with it, and the driver hears of it from `commit` or `prepare`."""
        changes = versions(0, keys=5, rounds=4)
        sink.prepare(DELIVERY)
        assert sink.mark(DELIVERY, LOG) == 0
        receipts = write(sink, changes)
        sink.prepare(DELIVERY)
        assert sink.mark(DELIVERY, LOG) == len(changes)
        sink.commit(DELIVERY, span_of(changes), receipts)
        assert sink.mark(DELIVERY, LOG) == len(changes)
        assert sink.mark(DELIVERY, "another-log") == 0

    def test_a_refused_record_keeps_no_other_back(self, sink: RecordSink, received: Received) -> None:
        """Nothing is visible before somebody keeps the refused one, of which `commit` is the sign; the repeat has all
        others."""
        changes = [*versions(0, keys=1, rounds=3), Change(3, 0, 3, table="letters", text=self.poison), Change(4, 0, 4)]
        span, batch = span_of(changes), batch_for(sink, changes)
        sink.prepare(DELIVERY)
        written = sink.open(DELIVERY, span, 0).write(iter([batch]))
        assert [each.error.code for each in written.rejected] == ["sink.rejected"]
        assert [each.row for each in written.rejected] == [batch.slice(3, 1)]
        assert received() == []
        with pytest.raises(SinkError) as again:
            sink.commit(DELIVERY, span, [written.receipt])
        assert decide(again.value) is Action.RETRY
        sink.prepare(DELIVERY)
        assert sink.mark(DELIVERY, LOG) == 0
        written = sink.open(DELIVERY, span, 0).write(iter([batch]))
        assert written.rejected == ()
        sink.commit(DELIVERY, span, [written.receipt])
        assert received() == [change.value for change in changes if change.seq != 3]
        assert sink.mark(DELIVERY, LOG) == 5


@pytest.fixture
def sink(kafka: KafkaBroker) -> KafkaSink:
    return exact(kafka)


def seqs(broker: KafkaBroker, sink: KafkaSink) -> list[int]:
    return sorted(json.loads(value)["seq"] for value in values(broker, sink.topic))


def test_what_the_cluster_refuses_is_found_among_what_was_sent_with_it(kafka: KafkaBroker) -> None:
    """The topic takes less than the client, and the cluster alone says so."""
    name = make_topic(kafka, max_message_bytes="20000")
    conf: dict[str, Setting] = {"compression.type": Secret("none"), "batch.size": 20_000}
    sink = exact(kafka, topic=name, client_conf=conf)
    large = (30, 90)
    changes = [Change(n, n % 2, n, text="x" * (25_000 if n in large else 500)) for n in range(120)]
    span, batch = span_of(changes), batch_for(sink, changes)
    sink.prepare(DELIVERY)
    rounds = 0
    while (written := sink.open(DELIVERY, span, 0).write(iter([batch]))).rejected:
        rounds += 1
        assert {each.row.column("seq")[0].as_py() for each in written.rejected} <= set(large)
        assert written.rejected[0].row.schema == batch.schema
        with pytest.raises(SinkError, match="set aside"):
            sink.commit(DELIVERY, span, [written.receipt])
        assert values(kafka, name) == []
        sink.prepare(DELIVERY)
    assert rounds in (1, 2)
    sink.commit(DELIVERY, span, [written.receipt])
    assert [json.loads(value)["n"] for value in values(kafka, name)] == [n for n in range(120) if n not in large]


def test_a_topic_that_takes_less_at_once_than_is_sent_is_named(kafka: KafkaBroker) -> None:
    name = make_topic(kafka, max_message_bytes="20000")
    sink = exact(kafka, topic=name, client_conf={"compression.type": Secret("none")})
    sink.prepare(DELIVERY)
    with pytest.raises(SinkError) as failure:
        write(sink, [Change(n, 0, n, text="x" * 1_000) for n in range(60)])
    assert failure.value.code == "sink.refused"
    assert "batch.size" in failure.value.hint
    assert values(kafka, name) == []


def test_only_the_record_that_is_kept_is_left_out_of_the_repeat(sink: KafkaSink, kafka: KafkaBroker) -> None:
    """Processors make several records of one change."""
    twins = [Change(0, 0, 0, text="x" * 1_000_001), Change(0, 1, 1, text="stays"), Change(1, 0, 2)]
    span, batch = Span(LOG, 0, 2), batch_for(sink, twins)
    sink.prepare(DELIVERY)
    written = sink.open(DELIVERY, span, 0).write(iter([batch]))
    with pytest.raises(SinkError, match="1 records"):
        sink.commit(DELIVERY, span, [written.receipt])
    sink.prepare(DELIVERY)
    assert sink.open(DELIVERY, span, 0).write(iter([batch])).rejected == ()
    assert sorted(json.loads(value)["n"] for value in values(kafka, sink.topic)) == [1, 2]


@pytest.mark.parametrize(
    "point", ["kafka.write.after_progress", "kafka.write.before_commit", "kafka.write.after_commit"]
)
def test_killed_between_progress_records_and_commit(
    sink: KafkaSink, kafka: KafkaBroker, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = versions(0, keys=5, rounds=20)
    sink.prepare(DELIVERY)
    deliver(sink, changes[:30])
    with monkeypatch.context() as patch:
        patch.setenv("TAILRACE_FAILPOINT", point)
        child = multiprocessing.get_context("spawn").Process(target=write, args=(sink, changes[30:70]))
        child.start()
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    sink.prepare(DELIVERY)
    assert sink.mark(DELIVERY, LOG) == (70 if point == "kafka.write.after_commit" else 30)
    deliver(sink, changes[30:70])
    deliver(sink, changes[70:])
    assert seqs(kafka, sink) == list(range(100))


def test_a_repeat_whose_first_outcome_was_lost_sends_nothing_and_reads_all(sink: KafkaSink, kafka: KafkaBroker) -> None:
    changes = versions(0, keys=2, rounds=2)
    sink.prepare(DELIVERY)
    write(sink, changes)
    batches = iter([batch_for(sink, changes)])
    written = sink.open(DELIVERY, span_of(changes), 0).write(batches)
    assert written.rejected == ()
    assert next(batches, None) is None
    assert seqs(kafka, sink) == [0, 1, 2, 3]


def test_a_batch_that_fails_leaves_nothing_behind(sink: KafkaSink, kafka: KafkaBroker) -> None:
    changes = versions(0, keys=3, rounds=4)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, changes[:6])
        raise RuntimeError("the log cannot be read")

    sink.prepare(DELIVERY)
    with pytest.raises(RuntimeError, match="cannot be read"):
        sink.open(DELIVERY, span_of(changes), 0).write(batches())
    assert seqs(kafka, sink) == []
    deliver(sink, changes)
    assert seqs(kafka, sink) == list(range(12))


def test_an_older_run_is_fenced_and_a_younger_one_goes_on(sink: KafkaSink, kafka: KafkaBroker) -> None:
    first, second, third = versions(0, 1, 4), versions(4, 1, 4), versions(8, 1, 4)
    sink.prepare(OLDER)
    sink.open(OLDER, Span(LOG, 0, 4), 0).write(iter([batch_for(sink, first)]))
    sink.prepare(NEWER)
    sink.open(NEWER, Span(LOG, 4, 8), 0).write(iter([batch_for(sink, second)]))
    for attempt in (
        lambda: sink.open(OLDER, Span(LOG, 4, 8), 0).write(iter([batch_for(sink, second)])),
        lambda: sink.open(OLDER, Span("elsewhere", 0, 4), 0).write(iter([batch_for(sink, second)])),
        lambda: sink.prepare(OLDER),
    ):
        with pytest.raises(SinkError) as failure:
            attempt()
        assert failure.value.code == "sink.fenced"
        assert decide(failure.value) is Action.STOP
        assert "running twice" in failure.value.hint
    sink.open(NEWER, Span(LOG, 8, 12), 0).write(iter([batch_for(sink, third)]))
    assert seqs(kafka, sink) == list(range(12))


def test_a_run_that_is_overtaken_inside_a_batch_leaves_nothing_of_it(sink: KafkaSink, kafka: KafkaBroker) -> None:
    changes = versions(0, 1, 8)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, changes[:4])
        sink.prepare(NEWER)
        yield batch_for(sink, changes[4:])

    sink.prepare(OLDER)
    with pytest.raises(SinkError) as failure:
        sink.open(OLDER, Span(LOG, 0, 8), 0).write(batches())
    assert failure.value.code == "sink.fenced"
    assert seqs(kafka, sink) == []
    sink.open(NEWER, Span(LOG, 0, 8), 0).write(iter([batch_for(sink, changes)]))
    assert seqs(kafka, sink) == list(range(8))


def test_a_transaction_that_takes_too_long_is_tried_again(kafka: KafkaBroker) -> None:
    conf: dict[str, Setting] = {"transaction.timeout.ms": 1000, "message.timeout.ms": 1000}
    sink, changes = exact(kafka, client_conf=conf), versions(0, 1, 8)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, changes[:4])
        before = progress_end(kafka, sink)
        eventually(lambda: progress_end(kafka, sink) > before, 30)
        yield batch_for(sink, changes[4:])

    sink.prepare(DELIVERY)
    with pytest.raises(SinkError) as failure:
        sink.open(DELIVERY, Span(LOG, 0, 8), 0).write(batches())
    assert failure.value.code == "sink.unavailable"
    assert "transaction.timeout.ms" in failure.value.message
    deliver(sink, changes)
    assert seqs(kafka, sink) == list(range(8))


def progress_end(broker: KafkaBroker, sink: KafkaSink) -> int:
    """Where the progress topic ends, committed or not."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "tests", "isolation.level": "read_uncommitted"}
    consumer = Consumer(settings)
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(sink.progress_name(DELIVERY), 0), timeout=10)[1])
    finally:
        consumer.close()


@pytest.mark.parametrize("delivered", [0, 4])
def test_a_progress_that_lacks_what_was_delivered_stops(sink: KafkaSink, delivered: int) -> None:
    sink.prepare(DELIVERY)
    if delivered:
        deliver(sink, versions(0, 1, delivered))
    with pytest.raises(SinkError) as failure:
        write(sink, versions(6, 1, 2), span=Span(LOG, 6, 8, began=0))
    assert failure.value.code == "sink.progress_lost"
    assert decide(failure.value) is Action.STOP


def test_a_first_batch_may_begin_behind_what_the_log_has_dropped(sink: KafkaSink, kafka: KafkaBroker) -> None:
    sink.prepare(DELIVERY)
    write(sink, versions(6, 1, 2), span=Span(LOG, 6, 8, began=6))
    assert seqs(kafka, sink) == [6, 7]


def test_progress_far_from_the_end_is_found(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a topic that another sink shares."""
    monkeypatch.setattr(progress, "_RECENT", -2_000 - 5)
    shared = topic()
    quiet, busy = exact(kafka, progress_topic=shared), exact(kafka, progress_topic=shared)
    quiet.prepare(DELIVERY)
    deliver(quiet, versions(0, 1, 3))
    busy.prepare(DELIVERY)
    for number in range(6):
        busy.open(DELIVERY, Span(LOG, number, number + 1), 0).write(iter([]))
    quiet.prepare(DELIVERY)
    assert quiet.mark(DELIVERY, LOG) == 3
    deliver(quiet, versions(3, 1, 3))
    assert seqs(kafka, quiet) == list(range(6))


def test_the_progress_topic_is_compacted_and_has_one_partition(sink: KafkaSink, kafka: KafkaBroker) -> None:
    sink.prepare(DELIVERY)
    name = sink.progress_name(DELIVERY)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    wanted = ConfigResource(ResourceType.TOPIC, name)
    assert admin.describe_configs([wanted])[wanted].result(10)["cleanup.policy"].value == "compact"
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 1
    deliver(sink, versions(0, 1, 1))
    assert {message.key() for message in messages(kafka, name)} == {
        f"shop/{sink.id}".encode(),
        f"shop/{sink.id}/{LOG}".encode(),
    }


def test_a_progress_topic_that_nobody_makes_is_missed(kafka: KafkaBroker) -> None:
    sink = exact(kafka, topic=make_topic(kafka), create_topics=None, send_timeout_secs=2)
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.refused"
    assert "cleanup.policy=compact" in failure.value.hint
    (found,) = [check for check in sink.check(Subject("sink"), DELIVERY) if check.name == "progress"]
    assert found.state == "fail"


def test_one_task_has_all_of_a_batch(sink: KafkaSink) -> None:
    assert sink.tasks() == 1
    assert KafkaSink(id="bus", brokers=NOBODY, topic="t").tasks() is None


@pytest.mark.parametrize(
    "document",
    [
        {"progress_topic": "p"},
        {"client_conf": {"transaction.timeout.ms": 1000}},
        {"exactly_once": True, "client_conf": {"transactional.id": "mine"}},
        {"exactly_once": True, "client_conf": {"acks": 1}},
        {"oauth": {"type": "google"}, "client_conf": {"sasl.mechanism": "PLAIN"}},
    ],
)
def test_options_that_do_not_go_together_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as failure:
        KafkaSink.from_document({"id": "bus", "brokers": NOBODY, "topic": "t", **document})
    assert [error["type"] for error in failure.value.errors()] == ["config.unsafe_setting"]
