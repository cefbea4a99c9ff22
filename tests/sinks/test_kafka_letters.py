"""The topic for dead letters of the Kafka sink: what is in it, what comes again, and what it never does to a batch."""

from __future__ import annotations

import pytest
from confluent_kafka import Message
from pydantic import ValidationError

from tailrace.config import Secret
from tailrace.contracts import Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.kafka import KafkaSink, Setting
from tailrace.testing.servers import KafkaBroker
from tailrace.testing.suites.sinks import DELIVERY, deliver, versions
from tests.sinks.dead_letters import failed, headers_of, refused
from tests.sinks.topics import headers, make_topic, messages, topic, values

NOBODY = "127.0.0.1:1"


@pytest.fixture
def sink(kafka: KafkaBroker) -> KafkaSink:
    name = topic()
    return KafkaSink(id="bus", brokers=kafka.bootstrap, topic=name, dlq_topic=f"{name}.dlq")


def letters_in(broker: KafkaBroker, sink: KafkaSink, name: str | None = None) -> list[Message]:
    found = messages(broker, name or sink.dlq_topic or "")
    return sorted(found, key=lambda message: (headers(message)["dlq.source.offset"], message.offset()))


def test_a_letter_is_its_record_with_headers_that_say_why(sink: KafkaSink, kafka: KafkaBroker) -> None:
    sink.prepare(DELIVERY)
    assert letters_in(kafka, sink) == [], "the topic is there before the first letter"
    sink.publish_letters(DELIVERY, [refused(3), refused(4, topic="elsewhere", record_key="four"), failed(5)])
    one, two, three = letters_in(kafka, sink)
    assert (one.key(), one.value()) == (b'{"id": 3}', b'{"n": 3}')
    assert headers(one) == headers_of(3, source_topic=sink.topic)
    assert (two.key(), two.value()) == (b"four", b'{"n": 4}')
    assert headers(two) == headers_of(4, source_topic="elsewhere")
    assert (three.key(), three.value()) == (None, None)
    said = {"error_type": "processor.failed", "processor": "enrich", "value": "left out"}
    assert headers(three) == headers_of(5, source_topic=sink.topic, **said)
    assert values(kafka, sink.topic) == []


def test_letters_that_come_again_say_the_same(sink: KafkaSink, kafka: KafkaBroker) -> None:
    for _ in range(2):
        sink.publish_letters(DELIVERY, [refused(3)])
    first, again = letters_in(kafka, sink)
    assert (first.key(), first.value(), headers(first)) == (again.key(), again.value(), headers(again))


def test_a_topic_for_each_table(sink: KafkaSink, kafka: KafkaBroker) -> None:
    sink = sink.model_copy(update={"dlq_topic": sink.topic + ".${source.schema}.${source.table}.dlq"})
    sink.prepare(DELIVERY)
    sink.publish_letters(DELIVERY, [refused(1), refused(2, table="my items")])
    for name, seq in (("orders", 1), ("my_items", 2)):
        [message] = letters_in(kafka, sink, f"{sink.topic}.public.{name}.dlq")
        assert headers(message)["dlq.event_id"] == f"event-{seq}"


@pytest.mark.parametrize("of_broker", [True, False], ids=["broker", "client"])
def test_a_value_that_the_topic_refuses_is_left_out(kafka: KafkaBroker, *, of_broker: bool) -> None:
    name = make_topic(kafka, max_message_bytes="3000") if of_broker else topic()
    settings: dict[str, Setting] = {"compression.type": Secret("none")} if of_broker else {"message.max.bytes": 3000}
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic="x", dlq_topic=name, client_conf=settings)
    sink.publish_letters(DELIVERY, [refused(1), refused(2, value="x" * 5000), refused(3)])
    said = {headers(each)["dlq.source.offset"]: (each.value(), headers(each)) for each in letters_in(kafka, sink)}
    assert {seq: value for seq, (value, _) in said.items()} == {"1": b'{"n": 1}', "2": None, "3": b'{"n": 3}'}
    assert said["2"][1] == headers_of(2, source_topic="x", value="left out")


def test_exactly_once_goes_on_beside_it(sink: KafkaSink, kafka: KafkaBroker) -> None:
    """Its producer is not fenced by that of the letters, which reads of committed records show too."""
    sink = sink.model_copy(update={"exactly_once": True})
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=3, rounds=1))
    sink.publish_letters(DELIVERY, [refused(7)])
    deliver(sink, versions(3, keys=3, rounds=1))
    assert len(values(kafka, sink.topic)) == 6
    assert [headers(each)["dlq.event_id"] for each in letters_in(kafka, sink)] == ["event-7"]


def test_nobody_there_is_a_wait() -> None:
    sink = KafkaSink(id="bus", brokers=NOBODY, topic="t", dlq_topic="t.dlq", send_timeout_secs=0.5)
    with pytest.raises(SinkError) as failure:
        sink.publish_letters(DELIVERY, [refused(1)])
    assert (failure.value.code, decide(failure.value)) == ("sink.unavailable", Action.RETRY)


def test_a_topic_that_takes_none_stops_the_sink(kafka: KafkaBroker) -> None:
    """A compacted one takes no record without a key; a letter is never dropped for that."""
    name = make_topic(kafka, cleanup_policy="compact")
    sink = KafkaSink(id="bus", brokers=kafka.bootstrap, topic="x", dlq_topic=name)
    with pytest.raises(SinkError, match=f"{name} takes no dead letters") as failure:
        sink.publish_letters(DELIVERY, [failed(1)])
    assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)
    assert "dlq_topic" in failure.value.hint


@pytest.mark.parametrize("name", ["", "t", "t.${after.id}", "${source.lsn}"])
def test_topics_that_cannot_be(name: str) -> None:
    with pytest.raises(ValidationError):
        KafkaSink(id="bus", brokers=NOBODY, topic="t", dlq_topic=name)


def test_the_doctor_looks_for_the_topic_too(sink: KafkaSink) -> None:
    missing = sink.model_copy(update={"create_topics": None})

    def states(of: KafkaSink) -> list[tuple[str, str]]:
        _, *topics = of.check(Subject("sink bus"), DELIVERY)
        return [(check.name, check.state) for check in topics]

    assert states(missing) == [("topic", "fail"), ("dlq_topic", "fail")]
    sink.prepare(DELIVERY)
    assert states(missing) == states(sink) == [("topic", "ok"), ("dlq_topic", "ok")]
