"""The subject for dead letters of the NATS sink: what its stream has, what comes again, and what is refused."""

from __future__ import annotations

import uuid

import pytest
from nats.aio.msg import Msg
from pydantic import ValidationError

from tailrace.contracts import Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.nats import NatsSink
from tailrace.testing.servers import NatsServer
from tailrace.testing.suites.sinks import DELIVERY, deliver, versions
from tests.sinks.dead_letters import failed, headers_of, refused
from tests.sinks.nats_streams import NOBODY, add_stream, nats_sink, stream_of, values


@pytest.fixture
def sink(nats: NatsServer) -> NatsSink:
    return nats_sink(nats, dlq_subject=f"dlq.{uuid.uuid4().hex}")


def letters_in(server: NatsServer, sink: NatsSink) -> list[Msg]:
    return stream_of(server, f"{sink.stream}_DLQ")


def own_headers(seq: int, key: str | None = None) -> dict[str, str]:
    known = {} if key is None else {"df-key": key}
    return {"Nats-Msg-Id": f"dlq-shop-bus-event-{seq}", **known}


def test_a_letter_is_its_record_with_headers_that_say_why(sink: NatsSink, nats: NatsServer) -> None:
    sink.prepare(DELIVERY)
    sink.publish_letters(DELIVERY, [refused(3), failed(5)])
    one, two = letters_in(nats, sink)
    assert (one.subject, one.data) == (sink.dlq_subject, b'{"n": 3}')
    assert one.headers == own_headers(3, '{"id": 3}') | headers_of(3, source_topic=sink.subject)
    said = {"error_type": "processor.failed", "processor": "enrich", "value": "left out"}
    assert (two.data, two.headers) == (b"", own_headers(5) | headers_of(5, source_topic=sink.subject, **said))


def test_letters_that_come_again_are_absorbed(sink: NatsSink, nats: NatsServer) -> None:
    sink.prepare(DELIVERY)
    for _ in range(2):
        sink.publish_letters(DELIVERY, [refused(3), refused(4)])
    assert [each.data for each in letters_in(nats, sink)] == [b'{"n": 3}', b'{"n": 4}']


def test_the_record_itself_is_not_taken_for_a_repeat_of_its_letter(nats: NatsServer) -> None:
    """A replay sends it with its own id, perhaps into the very stream that has the letter."""
    subject = f"o.{uuid.uuid4().hex}"
    sink = nats_sink(nats, subject=subject, create=False, dlq_subject=f"{subject}.dlq")
    add_stream(nats, sink.stream or "", [subject, f"{subject}.>"])
    sink.prepare(DELIVERY)
    [change] = versions(3, keys=1, rounds=1)
    sink.publish_letters(DELIVERY, [refused(3, event=change.row()["event_id"])])
    deliver(sink, [change])
    assert values(nats, sink) == ['{"n": 3}', change.value]


def test_a_subject_for_each_table(nats: NatsServer) -> None:
    root = uuid.uuid4().hex
    sink = nats_sink(nats, dlq_subject=f"dlq.{root}.${{source.schema}}.${{source.table}}")
    sink.prepare(DELIVERY)
    sink.publish_letters(DELIVERY, [refused(1), refused(2, table="my.items")])
    assert [each.subject for each in letters_in(nats, sink)] == [
        f"dlq.{root}.public.orders",
        f"dlq.{root}.public.my%2Eitems",
    ]


def test_a_value_that_the_stream_refuses_is_left_out(nats: NatsServer) -> None:
    name, subject = f"S{uuid.uuid4().hex}", f"dlq.{uuid.uuid4().hex}"
    add_stream(nats, name, [subject], max_msg_size=3000)
    sink = nats_sink(nats, stream=None, dlq_subject=subject)
    sink.publish_letters(DELIVERY, [refused(1), refused(2, value="x" * 5000), refused(3)])
    found = stream_of(nats, name)
    assert [each.data for each in found] == [b'{"n": 1}', b"", b'{"n": 3}']
    assert (found[1].headers or {})["dlq.value"] == "left out"


def test_a_value_that_the_server_refuses_is_left_out(sink: NatsSink, nats: NatsServer) -> None:
    sink.prepare(DELIVERY)
    sink.publish_letters(DELIVERY, [refused(1, value="x" * 1_048_576)])
    assert [each.data for each in letters_in(nats, sink)] == [b""]


def test_nobody_there_is_a_wait() -> None:
    sink = NatsSink.from_document(
        {"id": "bus", "url": NOBODY, "subject": "s", "dlq_subject": "d", "connect_timeout_secs": 0.5}
    )
    with pytest.raises(SinkError) as failure:
        sink.publish_letters(DELIVERY, [refused(1)])
    assert (failure.value.code, decide(failure.value)) == ("sink.unavailable", Action.RETRY)


def test_a_stream_that_is_missing_stops_the_sink(nats: NatsServer) -> None:
    sink = nats_sink(nats, stream=None, dlq_subject=f"dlq.{uuid.uuid4().hex}")
    for attempt in (sink.prepare, lambda delivery: sink.publish_letters(delivery, [refused(1)])):
        with pytest.raises(SinkError) as failure:
            attempt(DELIVERY)
        assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)
        assert "nats stream add" in failure.value.hint


@pytest.mark.parametrize("subject", ["", "s", "a b", "d.${after.id}", "$SYS.d"])
def test_subjects_that_cannot_be(subject: str) -> None:
    with pytest.raises(ValidationError):
        NatsSink.model_validate({"id": "bus", "url": NOBODY, "subject": "s", "dlq_subject": subject})


def test_the_doctor_looks_for_the_stream_too(sink: NatsSink) -> None:
    def states(of: NatsSink) -> list[tuple[str, str]]:
        return [(check.name, check.state) for check in of.check(Subject("sink bus"), DELIVERY)]

    looked = [("server", "ok"), ("stream", "ok"), ("dlq stream", "ok")]
    assert states(sink) == looked
    sink.prepare(DELIVERY)
    assert states(sink) == looked
    missing = sink.model_copy(update={"create_stream": None, "dlq_subject": f"dlq.{uuid.uuid4().hex}"})
    assert states(missing)[2] == ("dlq stream", "fail")
