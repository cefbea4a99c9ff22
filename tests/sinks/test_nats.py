from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.contracts import RecordSink, Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.nats import CreateStream, NatsSink
from tailrace.spec import load_pipelines
from tailrace.testing.servers import NatsServer
from tailrace.testing.suites.sinks import (
    DELIVERY,
    Change,
    Received,
    ServerSinkSuite,
    batch_for,
    deliver,
    span_of,
    versions,
    write,
)
from tests.sinks.nats_streams import NOBODY, add_stream, messages, nats_sink, stream_of, values


class TestNatsSink(ServerSinkSuite):
    repeats = "absorbed"
    poison = "x" * 1_048_577
    large = (1_000_000,)  # by default; see test_nats_trouble for more

    @pytest.fixture
    def server(self, nats: NatsServer) -> NatsServer:
        return nats

    @pytest.fixture
    def hasty(self, sink: NatsSink) -> NatsSink:
        return sink.model_copy(update={"send_timeout_secs": 0.5, "connect_timeout_secs": 2})

    @pytest.fixture
    def sink(self, nats: NatsServer) -> NatsSink:
        return nats_sink(nats)

    @pytest.fixture
    def received(self, sink: NatsSink, nats: NatsServer) -> Received:
        return lambda: values(nats, sink)

    @pytest.fixture
    def unavailable(self) -> NatsSink:
        return NatsSink.from_document({"id": "bus", "url": NOBODY, "subject": "anything"})

    def test_the_mark_is_honest(self, sink: RecordSink) -> None:
        """The stream absorbs what comes again soon, so the sink keeps no mark."""
        sink.prepare(DELIVERY)
        deliver(sink, versions(0, keys=5, rounds=4))
        assert sink.mark(DELIVERY, "log-1") == 0


FAN_OUT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders-fan-out, tenant: acme}
spec:
  source: {type: postgres, config: {id: orders, dsn: "postgresql://h/shop", tables: [shop.orders]}}
  sinks:
    - type: nats
      config:
        id: serverless-nats
        url: ${NATS_URL}
        subject: orders.events
        stream: ORDERS
        envelope:
          type: cloudevents
          type_prefix: "com.acme.orders"
        encoding: json
        required: false          # Best-effort
"""


def test_the_document_of_a_fan_out_works_as_it_is(nats: NatsServer, tmp_path: Path) -> None:
    document = tmp_path / "fan-out.yaml"
    document.write_text(FAN_OUT)
    (pipeline,) = load_pipelines([document], {"NATS_URL": nats.url})
    sink = pipeline.sinks[0]
    assert isinstance(sink, NatsSink)
    with pytest.raises(SinkError, match="the stream ORDERS does not exist"):
        sink.prepare(DELIVERY)
    add_stream(nats, "ORDERS", ["orders.>"])
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=2, rounds=2))
    assert len(messages(nats, sink)) == 4


@pytest.fixture
def sink(nats: NatsServer) -> NatsSink:
    return nats_sink(nats)


def test_a_message_has_id_key_and_value(sink: NatsSink, nats: NatsServer) -> None:
    changes = [Change(0, 7, 1, text="Größe 大きさ")]
    sink.prepare(DELIVERY)
    deliver(sink, changes)
    (message,) = messages(nats, sink)
    assert message.data.decode() == changes[0].value
    assert message.subject == sink.subject
    assert message.headers == {
        "Nats-Msg-Id": changes[0].row()["event_id"],
        "Nats-Expected-Stream": sink.stream,
        "df-key": '{"id": 7}',
    }


def test_a_key_of_its_own_and_none(sink: NatsSink, nats: NatsServer) -> None:
    own = sink.model_copy(update={"key": "${after.n}"})
    own.prepare(DELIVERY)
    deliver(own, [Change(0, 0, 5)])
    deliver(own.model_copy(update={"key": "${before.n}"}), [Change(1, 0, 5)])
    assert [(message.headers or {}).get("df-key") for message in messages(nats, own)] == ["5", None]


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("plain", "plain"),
        ("a.b", "a%2Eb"),
        ("a b\tc", "a%20b%09c"),
        ("*", "%2A"),
        (">", "%3E"),
        ("100%", "100%25"),
        ("$JS", "%24JS"),
        ("Straße大", "Straße大"),
        ("two\r\nlines", "two%0D%0Alines"),
    ],
)
def test_a_value_stays_within_its_token(nats: NatsServer, value: str, token: str) -> None:
    prefix = uuid.uuid4().hex
    sink = nats_sink(nats, subject=f"{prefix}.${{source.table}}.x-${{source.schema}}", subjects=(f"{prefix}.>",))
    sink.prepare(DELIVERY)
    deliver(sink, [Change(0, 0, 0, table=value, schema=value)])
    assert [message.subject for message in messages(nats, sink)] == [f"{prefix}.{token}.x-{token}"]


@pytest.mark.parametrize("column", ["nowhere", "empty"])
def test_a_change_without_a_subject_is_set_aside_and_all_others_go_on(nats: NatsServer, column: str) -> None:
    prefix = uuid.uuid4().hex
    sink = nats_sink(nats, subject=f"{prefix}.${{after.{column}}}", subjects=(f"{prefix}.*",))
    sink.prepare(DELIVERY)
    batch = batch_for(sink, [Change(0, 0, 0), Change(1, 1, 0)])
    at = batch.schema.get_field_index("subject_1")
    batch = batch.set_column(at, "subject_1", pa.array([None if column == "nowhere" else "", "there"]))
    written = sink.open(DELIVERY, span_of([Change(0, 0, 0)]), 0).write(iter([batch]))
    (rejected,) = written.rejected
    assert (rejected.error.code, rejected.error.where) == ("sink.unroutable", "public.orders at 0/0")
    assert f"${{after.{column}}}" in rejected.error.message
    assert [message.subject for message in messages(nats, sink)] == [f"{prefix}.there"]


def with_columns(sink: NatsSink, changes: list[Change], **said: list[str | None]) -> Iterator[pa.RecordBatch]:
    """What the writer gets behind processors that said something of the records' ways."""
    batch = batch_for(sink, changes)
    for name, column in said.items():
        batch = batch.append_column(name, pa.array(column, pa.string()))
    return iter([batch])


def test_what_processors_say_is_honoured(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    sink = nats_sink(nats, subject=f"{prefix}.mine", subjects=(f"{prefix}.>",))
    sink.prepare(DELIVERY)
    changes = versions(0, keys=2, rounds=1)
    said = with_columns(
        sink,
        changes,
        subject=[f"{prefix}.theirs", None],
        record_key=["k", None],
        record_headers=['{"team": "ž", "n": 1}', None],
    )
    assert sink.open(DELIVERY, span_of(changes), 0).write(said).rejected == ()
    theirs, mine = messages(nats, sink)
    assert (theirs.subject, mine.subject) == (f"{prefix}.theirs", f"{prefix}.mine")
    assert theirs.headers is not None and mine.headers is not None
    assert (theirs.headers["df-key"], theirs.headers["team"], theirs.headers["n"]) == ("k", "ž", "1")
    assert mine.headers.keys() == {"Nats-Msg-Id", "Nats-Expected-Stream"}


@pytest.mark.parametrize(
    ("said", "code", "word"),
    [
        ({"record_key": "a\nb"}, "sink.rejected", "df-key"),
        ({"record_key": " a"}, "sink.rejected", "white space"),
        ({"record_headers": '{"x": "a\\r\\nb"}'}, "sink.rejected", "`x`"),
        ({"record_headers": '{"a b": "c"}'}, "sink.rejected", "a b"),
        ({"record_headers": '{"Nats-Rollup": "all"}'}, "sink.rejected", "Nats-Rollup"),
        ({"subject": "a b"}, "sink.unroutable", "white space"),
        ({"subject": "a.*"}, "sink.unroutable", "wildcard"),
        ({"subject": "a..b"}, "sink.unroutable", "empty token"),
        ({"subject": "$JS.API.STREAM.DELETE.X"}, "sink.unroutable", "server"),
        ({"subject": "a" * 2000}, "sink.unroutable", "1024"),
    ],
)
def test_what_cannot_be_sent_as_it_is_is_refused_by_name(
    sink: NatsSink, nats: NatsServer, said: dict[str, str], code: str, word: str
) -> None:
    sink.prepare(DELIVERY)
    changes = versions(0, keys=2, rounds=1)
    columns: dict[str, list[str | None]] = {name: [value, None] for name, value in said.items()}
    written = sink.open(DELIVERY, span_of(changes), 0).write(with_columns(sink, changes, **columns))
    (rejected,) = written.rejected
    assert (rejected.error.code, rejected.error.where) == (code, "public.orders at 0/0")
    assert word in rejected.error.message
    assert values(nats, sink) == [changes[1].value]


def test_a_subject_that_no_stream_takes_names_the_command(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    sink = nats_sink(nats, subject=f"{prefix}.${{source.table}}", subjects=(f"{prefix}.orders",), stream=None)
    add_stream(nats, f"S{prefix}", [f"{prefix}.orders"])
    sink.prepare(DELIVERY)
    changes = [Change(0, 0, 0), Change(1, 0, 1, table="items"), Change(2, 0, 2)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    (rejected,) = written.rejected
    assert rejected.error.code == "sink.unroutable"
    assert f"{prefix}.items" in rejected.error.message
    assert "nats stream add" in rejected.error.hint
    assert [json.loads(message.data)["n"] for message in stream_of(nats, f"S{prefix}")] == [0, 2]


def test_a_subject_of_another_stream_is_not_delivered_there(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    add_stream(nats, f"T{prefix}", [f"{prefix}.items"])
    sink = nats_sink(nats, subject=f"{prefix}.${{source.table}}", subjects=(f"{prefix}.orders",))
    sink.prepare(DELIVERY)
    with pytest.raises(SinkError, match="another stream") as failure:
        write(sink, [Change(0, 0, 0, table="items")], tasks=1)
    assert failure.value.code == "sink.unroutable"
    assert stream_of(nats, f"T{prefix}") == []


def test_a_record_that_only_the_stream_refuses_is_named(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    add_stream(nats, f"S{prefix}", [prefix], max_msg_size=1000)
    sink = nats_sink(nats, subject=prefix, stream=f"S{prefix}", create=False)
    sink.prepare(DELIVERY)
    changes = [Change(0, 0, 0), Change(1, 0, 1, text="x" * 2000), Change(2, 0, 2)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    (rejected,) = written.rejected
    assert (rejected.error.code, rejected.error.where) == ("sink.rejected", "public.orders at 0/1")
    assert [json.loads(value)["n"] for value in values(nats, sink)] == [0, 2]


def test_a_full_stream_is_a_wait_and_nothing_passes_what_it_refused(nats: NatsServer) -> None:
    """It refuses the large one and has room for the small one behind it."""
    prefix = uuid.uuid4().hex
    add_stream(nats, f"S{prefix}", [prefix], max_bytes=3000, discard="new")
    sink = nats_sink(nats, subject=prefix, stream=f"S{prefix}", create=False)
    sink.prepare(DELIVERY)
    with pytest.raises(SinkError) as failure:
        write(sink, [Change(0, 0, 0), Change(1, 0, 1, text="x" * 5000), Change(2, 0, 2)], tasks=1)
    assert failure.value.code == "sink.unavailable"
    assert decide(failure.value) is Action.RETRY
    assert [json.loads(value)["n"] for value in values(nats, sink)] == [0]


def test_the_stream_is_made_as_asked_and_left_as_it_is(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    make = {"subjects": [f"{prefix}.>"], "storage": "memory", "max_age": "1h", "max_bytes": "1MiB"}
    document = {"id": "bus", "url": nats.url, "subject": f"{prefix}.a", "stream": f"S{prefix}"}
    sink = NatsSink.from_document({**document, "create_stream": {**make, "duplicate_window": "10m", "replicas": 1}})
    sink.prepare(DELIVERY)
    NatsSink.from_document({**document, "create_stream": {"storage": "file"}}).prepare(DELIVERY)
    config = add_stream(nats, f"S{prefix}", None)
    assert (config.subjects, config.storage, config.num_replicas) == ([f"{prefix}.>"], "memory", 1)
    assert (config.max_age, config.max_bytes, config.duplicate_window) == (3600, 1024**2, 600)


def test_a_stream_that_the_server_will_not_make_is_refused(nats: NatsServer) -> None:
    sink = nats_sink(nats)
    sink = sink.model_copy(update={"create_stream": CreateStream(replicas=3)})
    with pytest.raises(SinkError, match="replicas > 1 not supported") as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.refused"


def test_a_missing_stream_stops_and_names_the_command(nats: NatsServer) -> None:
    for sink in (
        nats_sink(nats, subject="nowhere.at.all", stream="NOWHERE", create=False),
        nats_sink(nats, subject="nowhere.at.all", stream=None),
    ):
        with pytest.raises(SinkError) as failure:
            sink.prepare(DELIVERY)
        assert failure.value.code == "sink.refused"
        assert decide(failure.value) is Action.STOP
        assert f"nats stream add {sink.stream or 'NAME'} --subjects 'nowhere.at.all'" in failure.value.hint


def test_a_stream_that_does_not_take_the_subject_stops(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    add_stream(nats, f"S{prefix}", [f"{prefix}.orders.*"])
    for subject, fits in [
        (f"{prefix}.orders.new", True),
        (f"{prefix}.${{source.table}}.new", True),
        (f"{prefix}.orders", False),
        (f"{prefix}.orders.a.b", False),
        (f"{prefix}.items.${{source.table}}", False),
    ]:
        sink = nats_sink(nats, subject=subject, stream=f"S{prefix}", create=False)
        if fits:
            sink.prepare(DELIVERY)
            continue
        with pytest.raises(SinkError, match=f"takes {prefix}.orders") as failure:
            sink.prepare(DELIVERY)
        assert failure.value.code == "sink.refused"


def test_a_stream_that_does_not_acknowledge_stops(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    add_stream(nats, f"S{prefix}", [prefix], no_ack=True)
    with pytest.raises(SinkError, match="no_ack"):
        nats_sink(nats, subject=prefix, stream=f"S{prefix}", create=False).prepare(DELIVERY)


def test_a_short_duplicate_window_is_warned_of(nats: NatsServer) -> None:
    prefix = uuid.uuid4().hex
    add_stream(nats, f"S{prefix}", [prefix], duplicate_window=30)
    sink = nats_sink(nats, subject=prefix, stream=f"S{prefix}", create=False)
    (warning,) = sink.warnings(DELIVERY)
    assert "30 s" in warning and "--dupe-window 100s" in warning
    patient = nats_sink(nats, subject=prefix, stream=f"S{prefix}", create=False, retry={"max_wait_seconds": 600})
    assert "--dupe-window 640s" in patient.warnings(DELIVERY)[0]
    add_stream(nats, f"T{prefix}", [f"{prefix}.t"])
    assert nats_sink(nats, subject=f"{prefix}.t", stream=f"T{prefix}", create=False).warnings(DELIVERY) == ()


def test_the_doctor_looks_and_makes_nothing(nats: NatsServer) -> None:
    about = Subject("sink bus")
    sink = nats_sink(nats)

    def states(of: NatsSink) -> list[tuple[str, str, str]]:
        return [(check.name, check.state, check.detail) for check in of.check(about, DELIVERY)]

    assert states(sink) == [("server", "ok", "NATS 2.15.1"), ("stream", "ok", f"{sink.stream} will be created")]
    missing = sink.model_copy(update={"create_stream": None})
    assert states(missing)[1] == ("stream", "fail", f"{sink.stream} does not exist")
    sink.prepare(DELIVERY)
    assert states(missing)[1] == ("stream", "ok", f"{sink.stream} takes {sink.subject}")
    elsewhere = missing.model_copy(update={"subject": "elsewhere"})
    assert states(elsewhere)[1][:2] == ("stream", "fail")
    add_stream(nats, f"W{sink.stream}", [f"{sink.subject}.w"], duplicate_window=1)
    short = missing.model_copy(update={"subject": f"{sink.subject}.w", "stream": f"W{sink.stream}"})
    assert [state for _, state, _ in states(short)] == ["ok", "ok", "warn"]
    away = NatsSink.from_document({"id": "bus", "url": NOBODY, "subject": "a"})
    assert [state for _, state, _ in states(away)] == ["fail", "skipped"]
