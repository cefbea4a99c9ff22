from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pydantic import ValidationError

from tailrace.config import Secret
from tailrace.contracts import Span
from tailrace.errors import ConfigError, SinkError
from tailrace.sinks.kafka import CreateTopics, KafkaSink, Setting, cluster, writer
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
from tests.sinks.topics import make_topic, messages, topic, values

NOBODY = "127.0.0.1:1"


class TestKafkaSink(ServerSinkSuite):
    repeats = "kept"
    poison = "x" * 1_000_001
    large = (900_000,)

    @pytest.fixture
    def server(self, kafka: KafkaBroker) -> KafkaBroker:
        return kafka

    @pytest.fixture
    def hasty(self, sink: KafkaSink) -> KafkaSink:
        return sink.model_copy(update={"send_timeout_secs": 0.5})

    @pytest.fixture
    def sink(self, kafka: KafkaBroker) -> KafkaSink:
        return KafkaSink(id="bus", brokers=kafka.bootstrap, topic=topic(), create_topics=CreateTopics(partitions=3))

    @pytest.fixture
    def received(self, sink: KafkaSink, kafka: KafkaBroker) -> Received:
        return lambda: values(kafka, sink.topic)

    @pytest.fixture
    def unavailable(self) -> KafkaSink:
        return KafkaSink(id="bus", brokers=NOBODY, topic="anything", send_timeout_secs=0.5)


@pytest.fixture
def sink(kafka: KafkaBroker) -> KafkaSink:
    return KafkaSink(id="bus", brokers=(kafka.bootstrap,), topic=topic())


def test_the_key_is_the_primary_key(sink: KafkaSink, kafka: KafkaBroker) -> None:
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=3, rounds=1))
    keyed = {message.key(): json.loads(message.value() or b"")["id"] for message in messages(kafka, sink.topic)}
    assert keyed == {b'{"id": 0}': 0, b'{"id": 1}': 1, b'{"id": 2}': 2}


def test_a_key_finds_the_partition_that_java_clients_choose(kafka: KafkaBroker) -> None:
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=topic(), create_topics=CreateTopics(partitions=7))
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=20, rounds=1))
    for message in messages(kafka, sink.topic):
        assert message.partition() == (murmur2(message.key() or b"") & 0x7FFFFFFF) % 7


def murmur2(data: bytes) -> int:
    """The hash of Kafka's Java client."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_templates_choose_topic_and_key_and_topics_are_made(kafka: KafkaBroker) -> None:
    prefix = topic()
    sink = KafkaSink(
        id="bus",
        brokers=kafka.bootstrap,
        topic=f"{prefix}.${{source.table}}",
        key="${after.n}",
        create_topics=CreateTopics(partitions=2),
    )
    sink.prepare(DELIVERY)
    deliver(sink, [Change(0, 0, 5), Change(1, 0, 6, table="items"), Change(2, 0, 7)])
    assert [(m.key(), m.partition() in (0, 1)) for m in messages(kafka, f"{prefix}.items")] == [(b"6", True)]
    assert sorted(m.key() or b"" for m in messages(kafka, f"{prefix}.orders")) == [b"5", b"7"]


@pytest.mark.parametrize(("column", "text"), [("nowhere", ""), ("text", ""), ("text", "no such thing"), ("text", "..")])
def test_a_change_without_a_topic_is_named_and_keeps_no_other_back(kafka: KafkaBroker, column: str, text: str) -> None:
    name = topic()
    other = "nowhere" if column == "nowhere" else name
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=f"${{after.{column}}}")
    sink.prepare(DELIVERY)
    changes = [Change(6, 0, 0, text=other), Change(7, 0, 1, text=text), Change(8, 0, 2, text=other)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    failures = [each.error for each in written.rejected]
    assert [failure.code for failure in failures] == ["sink.unroutable"] * (3 if column == "nowhere" else 1)
    assert failures[-1].where == ("public.orders at 0/8" if column == "nowhere" else "public.orders at 0/7")
    if column == "text":
        assert [json.loads(value)["seq"] for value in values(kafka, name)] == [6, 8]


def test_an_unfilled_key_is_no_key(kafka: KafkaBroker) -> None:
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=topic(), key="${before.id}")
    sink.prepare(DELIVERY)
    deliver(sink, [Change(0, 0, 0)])
    assert [message.key() for message in messages(kafka, sink.topic)] == [None]


def test_headers_are_on_every_record(kafka: KafkaBroker) -> None:
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=topic(), headers={"team": "shop", "x": "ž"})
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=2))
    headers = [message.headers() for message in messages(kafka, sink.topic)]
    assert headers == [[("team", b"shop"), ("x", "ž".encode())]] * 4


def test_a_record_the_broker_refuses_is_named_and_keeps_no_other_back(kafka: KafkaBroker) -> None:
    """Larger than the broker takes, though not than the client: only the delivery report tells, of all records that
    were on their way."""
    conf: dict[str, Setting] = {"message.max.bytes": 4_000_000, "compression.type": Secret("none")}
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=topic(), client_conf=conf)
    sink.prepare(DELIVERY)
    large = [Change(n, n % 3, n, text="x" * 2_000_000) for n in (7, 40)]
    changes = sorted([*(Change(n, n % 3, n) for n in range(60) if n not in (7, 40)), *large], key=lambda one: one.seq)
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    assert [each.error.code for each in written.rejected] == ["sink.rejected"] * 2
    assert [each.error.where for each in written.rejected] == ["public.orders at 0/7", "public.orders at 0/28"]
    assert [each.row.column("seq").to_pylist() for each in written.rejected] == [[7], [40]]
    assert written.rejected[0].row.schema == batch_for(sink, large).schema
    found = [json.loads(value) for value in values(kafka, sink.topic)]
    for key in range(3):
        assert [row["n"] for row in found if row["id"] == key] == [n for n in range(key, 60, 3) if n not in (7, 40)]
    deliver(sink, versions(100, keys=1, rounds=2))
    assert [json.loads(value)["n"] for value in values(kafka, sink.topic) if json.loads(value)["seq"] >= 100] == [0, 1]


def test_records_that_are_refused_only_together_arrive(kafka: KafkaBroker) -> None:
    """The topic takes less at once than the client sends."""
    name = make_topic(kafka, max_message_bytes="20000")
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=name, client_conf={"compression.type": Secret("none")})
    sink.prepare(DELIVERY)
    changes = [Change(n, 0, n, text="x" * (25_000 if n == 30 else 1_000)) for n in range(60)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    assert [each.error.where for each in written.rejected] == ["public.orders at 0/1E"]
    assert [json.loads(value)["n"] for value in values(kafka, name)] == [n for n in range(60) if n != 30]


def test_a_compacted_topic_refuses_what_has_no_key_and_nothing_else(kafka: KafkaBroker) -> None:
    name = make_topic(kafka, cleanup_policy="compact")
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic=name)
    sink.prepare(DELIVERY)
    batch = batch_for(sink, versions(0, keys=1, rounds=5))
    keys = pa.array([None if row == 2 else str(row) for row in range(5)], pa.string())
    batch = batch.set_column(batch.schema.get_field_index("key"), "key", keys)
    written = sink.open(DELIVERY, Span(LOG, 0, 5), 0).write(iter([batch]))
    assert [each.row.column("seq").to_pylist() for each in written.rejected] == [[2]]
    assert [json.loads(value)["n"] for value in values(kafka, name)] == [0, 1, 3, 4]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_values_of_one_and_ten_megabytes(exactly_once: bool, kafka: KafkaBroker) -> None:
    """Where topic and client are told to take them: by default Kafka takes a megabyte."""
    name = make_topic(kafka, max_message_bytes="12000000")
    conf = {"message.max.bytes": 12_000_000, "compression.type": "none"}
    where = {"id": name, "brokers": kafka.bootstrap, "topic": name}
    sink = KafkaSink.from_document({**where, "exactly_once": exactly_once, "client_conf": conf})
    changes = [Change(n, n, n, text=text * 1_000_000) for n, text in enumerate(("x", "0123456789"))]
    sink.prepare(DELIVERY)
    deliver(sink, changes, tasks=1)
    assert values(kafka, name) == [change.value for change in changes]


@pytest.mark.slow
def test_a_broker_that_dies_in_the_middle_is_a_wait_and_nothing_arrives_late() -> None:
    with KafkaBroker() as broker:
        sink = KafkaSink(id="bus", brokers=broker.bootstrap, topic=topic(), send_timeout_secs=2)
        sink.prepare(DELIVERY)
        deliver(sink, versions(0, keys=2, rounds=2))
        broker.kill()
        with pytest.raises(SinkError) as failure:
            write(sink, versions(4, keys=2, rounds=2))
        assert failure.value.code == "sink.unavailable"
        broker.start()
        sink = sink.model_copy(update={"send_timeout_secs": 30.0})
        sink.prepare(DELIVERY)
        deliver(sink, versions(8, keys=1, rounds=1))
        seqs = [json.loads(value)["seq"] for value in values(broker, sink.topic)]
    assert sorted(seqs) == [0, 1, 2, 3, 8]


class Patient(Producer):
    """Looks long enough to see what became of records that were taken back."""

    def flush(self, timeout: float = 0) -> int:
        return super().flush(max(timeout, 1.0))


def test_a_batch_that_is_given_up_says_why_though_records_are_on_their_way(
    sink: KafkaSink, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking those back breaks librdkafka's producer, which says so itself."""
    monkeypatch.setattr(cluster, "Producer", Patient)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=1, rounds=1))

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, versions(1, keys=1, rounds=3))
        for channel in writer._channels.values():
            channel.producer.poll(0.5)  # nothing comes back, but the records go out
        raise RuntimeError("given up")

    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError, match="given up"):
            sink.open(DELIVERY, Span("log", 1, 4), 0).write(batches())
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    deliver(sink, versions(4, keys=1, rounds=1))
    assert json.loads(values(kafka, sink.topic)[-1])["seq"] == 4


def test_a_run_that_ends_does_not_wait_for_a_cluster_that_is_away() -> None:
    """It has the patience of an hour otherwise."""
    sink = KafkaSink(id="bus", brokers=NOBODY, topic="anything", send_timeout_secs=3600)
    ending = replace(DELIVERY, ending=lambda: True)
    batch = batch_for(sink, versions(0, 1, 1))
    for attempt in (
        lambda: sink.prepare(ending),
        lambda: sink.open(ending, Span("log", 0, 1), 0).write(iter([batch])),
    ):
        with pytest.raises(SinkError) as failure:
            attempt()
        assert failure.value.code == "sink.unavailable"


def test_an_existing_topic_is_left_as_it_is(sink: KafkaSink, kafka: KafkaBroker) -> None:
    sink.prepare(DELIVERY)
    other = sink.model_copy(update={"create_topics": KafkaSink.model_fields["create_topics"].default})
    other.prepare(DELIVERY)
    deliver(other, versions(0, keys=1, rounds=2))
    assert len(values(kafka, sink.topic)) == 2


@pytest.mark.parametrize(
    ("conf", "word"),
    [
        ({"enable.idempotence": False}, "enable.idempotence"),
        ({"enable.idempotence": "false"}, "enable.idempotence"),
        ({"acks": 1}, "acks"),
        ({"acks": "0"}, "acks"),
        ({"request.required.acks": "1"}, "request.required.acks"),
        ({"max.in.flight": 6}, "max.in.flight"),
        ({"transactional.id": "mine"}, "transactional.id"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level"),
        ({"bootstrap.servers": "elsewhere:9092"}, "bootstrap.servers"),
    ],
)
def test_settings_that_would_break_a_promise_are_refused(conf: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError) as failure:
        KafkaSink.from_document({"id": "bus", "brokers": NOBODY, "topic": "t", "client_conf": conf})
    (error,) = failure.value.errors()
    assert error["type"] == "config.unsafe_setting"
    assert word in error["msg"]
    assert error["ctx"]["hint"]


def test_a_setting_that_librdkafka_does_not_know_is_a_configuration_error() -> None:
    sink = KafkaSink(id="bus", brokers=NOBODY, topic="t", client_conf={"linger.sm": 5})
    with pytest.raises(ConfigError) as failure:
        sink.prepare(DELIVERY)
    assert "linger.sm" in failure.value.message


def test_secrets_reach_librdkafka_and_nothing_else() -> None:
    secret = Secret("hunter2")
    conf: dict[str, Setting] = {"sasl.password": secret, "ssl.key.pem": secret, "linger.ms": 7}
    sink = KafkaSink(id="bus", brokers=NOBODY, topic="t", client_conf=conf)
    assert sink.settings(DELIVERY)["sasl.password"] == "hunter2"
    assert sink.settings(DELIVERY)["linger.ms"] == 7
    assert "hunter2" not in repr(sink) + str(sink) + sink.model_dump_json()
    assert "hunter2" not in repr(sink.open(DELIVERY, Span("log", 0, 1), 0))


def test_the_defaults_are_accepted_by_librdkafka() -> None:
    settings = KafkaSink(id="bus", brokers=NOBODY, topic="t").settings(DELIVERY)
    Producer({**settings, "log_level": 0})
    assert settings["acks"] == "all"
    assert settings["enable.idempotence"] is True
    assert settings["partitioner"] == "murmur2_random"


@pytest.mark.parametrize("headers", [{}, {"h": "1"}])
def test_a_tombstone_follows_each_delete_that_has_a_key(headers: dict[str, str], kafka: KafkaBroker) -> None:
    sink = KafkaSink.model_validate(
        {
            "id": "bus",
            "brokers": kafka.bootstrap,
            "topic": topic(),
            "headers": headers,
            "create_topics": {"partitions": 1},  # a record without a key goes to any
            "envelope": {"type": "debezium", "tombstones": True},
        }
    )
    sink.prepare(DELIVERY)
    ops, keys = ["c", "d", "d", "d", "u"], ["1", "1", None, "2", "3"]
    batch = pa.RecordBatch.from_pydict(
        {
            "seq": list(range(5)),
            "schema": ["public"] * 5,
            "table": ["t"] * 5,
            "key": keys,
            "position": ["0/0"] * 5,
            "op": ops,
            "value": [f"{op}{key}" for op, key in zip(ops, keys, strict=True)],
        }
    )
    sink.open(DELIVERY, Span("log", 0, 5), 0).write(iter([batch]))
    found = [(message.key(), message.value()) for message in messages(kafka, sink.topic)]
    assert found == [
        (b"1", b"c1"),
        (b"1", b"d1"),
        (b"1", None),
        (None, b"dNone"),
        (b"2", b"d2"),
        (b"2", None),
        (b"3", b"u3"),
    ]
