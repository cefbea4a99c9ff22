from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.contracts import Span, Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.kinesis import KinesisSink
from tailrace.testing.servers import KinesisServer
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
from tests.capture.postgres.authority import Authority
from tests.sinks.kinesis_streams import LOGIN, NOBODY, OVER, KinesisProxy, client, kinesis_sink, records, values


class TestKinesisSink(ServerSinkSuite):
    repeats = "kept"
    poison = "x" * 1_048_577
    large = (1_000_000,)

    @pytest.fixture
    def server(self, kinesis: KinesisServer) -> KinesisServer:
        return kinesis

    @pytest.fixture
    def hasty(self, sink: KinesisSink) -> KinesisSink:
        return sink.model_copy(update={"send_timeout_secs": 2, "connect_timeout_secs": 2})

    @pytest.fixture
    def sink(self, kinesis: KinesisServer) -> KinesisSink:
        return kinesis_sink(kinesis)

    @pytest.fixture
    def received(self, sink: KinesisSink, kinesis: KinesisServer) -> Received:
        return lambda: values(kinesis, sink.stream_name)

    @pytest.fixture
    def unavailable(self) -> KinesisSink:
        document = {"id": "bus", "endpoint": NOBODY, "region": "us-east-1", **LOGIN, "stream_name": "s"}
        return KinesisSink.from_document({**document, "connect_timeout_secs": 0.5, "send_timeout_secs": 0.5})


@pytest.fixture
def sink(kinesis: KinesisServer) -> KinesisSink:
    return kinesis_sink(kinesis)


def test_the_partition_key_is_the_primary_key(sink: KinesisSink, kinesis: KinesisServer) -> None:
    changes = [Change(0, 7, 1, text="Größe 大きさ")]
    sink.prepare(DELIVERY)
    deliver(sink, changes)
    (record,) = records(kinesis, sink.stream_name)
    assert (record["PartitionKey"], record["Data"].decode()) == ('{"id": 7}', changes[0].value)


def with_columns(sink: KinesisSink, changes: list[Change], **said: list[str | None]) -> Iterator[pa.RecordBatch]:
    """What the writer gets behind processors that said something of the records' ways."""
    batch = batch_for(sink, changes)
    for name, column in said.items():
        batch = batch.append_column(name, pa.array(column, pa.string()))
    return iter([batch])


def test_a_key_of_its_own_a_long_one_and_none(kinesis: KinesisServer) -> None:
    sink = kinesis_sink(kinesis, partition_key="${after.n}")
    sink.prepare(DELIVERY)
    deliver(sink, [Change(0, 0, 5)])
    plain = sink.model_copy(update={"partition_key": None})
    changes = [Change(1, 0, 0), Change(2, 0, 1), Change(3, 0, 2)]
    batches = with_columns(plain, changes, record_key=["k" * 257, "ž" * 256, None])
    assert plain.open(DELIVERY, span_of(changes), 0).write(batches).rejected == ()
    keys = {json.loads(record["Data"])["seq"]: record["PartitionKey"] for record in records(kinesis, sink.stream_name)}
    assert (keys[0], keys[2], keys[3]) == ("5", "ž" * 256, changes[2].row()["event_id"])
    assert keys[1] == hashlib.sha256(b"k" * 257).hexdigest()


def test_streams_by_template_and_by_processors_are_made(kinesis: KinesisServer) -> None:
    prefix = uuid.uuid4().hex
    sink = kinesis_sink(kinesis, stream_name=f"{prefix}-${{source.table}}")
    sink.prepare(DELIVERY)
    deliver(sink, [Change(0, 0, 0), Change(1, 0, 1, table="items")])
    assert [json.loads(value)["n"] for value in values(kinesis, f"{prefix}-orders")] == [0]
    assert [json.loads(value)["n"] for value in values(kinesis, f"{prefix}-items")] == [1]

    fixed = kinesis_sink(kinesis)
    fixed.prepare(DELIVERY)
    changes = versions(0, keys=2, rounds=1)
    fixed.open(DELIVERY, span_of(changes), 0).write(with_columns(fixed, changes, stream=[f"{prefix}-theirs", None]))
    assert [json.loads(value)["id"] for value in values(kinesis, f"{prefix}-theirs")] == [0]
    assert [json.loads(value)["id"] for value in values(kinesis, fixed.stream_name)] == [1]


@pytest.mark.parametrize(
    ("table", "word"), [("a b", "no name of a stream"), ("x" * 129, "no name"), ("gone", "gone does not exist")]
)
def test_a_change_without_a_stream_is_set_aside_and_all_others_go_on(
    kinesis: KinesisServer, table: str, word: str
) -> None:
    prefix = uuid.uuid4().hex
    client(kinesis).create_stream(StreamName=f"{prefix}-orders", ShardCount=1)
    sink = kinesis_sink(kinesis, stream_name=f"{prefix}-${{source.table}}", create_streams=None)
    sink.prepare(DELIVERY)
    changes = [Change(0, 0, 0), Change(1, 0, 1, table=table), Change(2, 0, 2)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    (rejected,) = written.rejected
    assert (rejected.error.code, rejected.error.where) == ("sink.unroutable", f"public.{table} at 0/1")
    assert word in rejected.error.message
    assert [json.loads(value)["n"] for value in values(kinesis, f"{prefix}-orders")] == [0, 2]


def of_key(value: str) -> int:
    return int(json.loads(value)["id"])


def version(value: str) -> int:
    return int(json.loads(value)["n"])


def by_key(found: list[str]) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for value in found:
        rows.setdefault(of_key(value), []).append(version(value))
    return rows


def test_what_is_throttled_is_put_again_and_not_overtaken(kinesis: KinesisServer) -> None:
    """A part of each call fails, as on a shard with too little capacity: every third record, the first time."""
    tried: Counter[str] = Counter()

    def refuse(value: str) -> dict[str, str] | None:
        tried[value] += 1
        return OVER if tried[value] == 1 and int(json.loads(value)["seq"]) % 3 == 0 else None

    with KinesisProxy(kinesis, refuse) as proxy:
        sink = kinesis_sink(kinesis, endpoint=proxy.endpoint)
        sink.prepare(DELIVERY)
        deliver(sink, versions(0, keys=7, rounds=10))
    assert by_key(values(kinesis, sink.stream_name)) == {key: list(range(10)) for key in range(7)}
    assert all(len(call) == len(set(map(of_key, call))) for call in proxy.calls)
    assert max(map(len, proxy.calls)) > 1


def test_one_hot_row_does_not_hold_up_the_others(kinesis: KinesisServer) -> None:
    changes = [Change(n, 0 if n % 2 else n, n) for n in range(60)]
    with KinesisProxy(kinesis, lambda value: None) as proxy:
        sink = kinesis_sink(kinesis, endpoint=proxy.endpoint)
        sink.prepare(DELIVERY)
        sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    assert [len(call) for call in proxy.calls] == [30, *[1] * 30]
    assert by_key(values(kinesis, sink.stream_name))[0] == [0, *range(1, 60, 2)]


def test_a_stream_that_takes_nothing_is_a_wait(kinesis: KinesisServer) -> None:
    changes = versions(0, keys=3, rounds=4)
    with KinesisProxy(kinesis, lambda value: OVER if of_key(value) == 1 and version(value) == 2 else None) as proxy:
        sink = kinesis_sink(kinesis, endpoint=proxy.endpoint, send_timeout_secs=0.5)
        sink.prepare(DELIVERY)
        with pytest.raises(SinkError, match="ProvisionedThroughputExceeded") as failure:
            write(sink, changes, tasks=1)
        assert failure.value.code == "sink.unavailable"
        assert by_key(values(kinesis, sink.stream_name))[1] == [0, 1]
        proxy.refuse = lambda value: None
        deliver(sink, changes)
    assert by_key(values(kinesis, sink.stream_name))[1] == [0, 1, 0, 1, 2, 3]


def test_an_answer_that_is_lost_repeats_the_batch_in_order(kinesis: KinesisServer) -> None:
    with KinesisProxy(kinesis, lambda value: None) as proxy:
        sink = kinesis_sink(kinesis, endpoint=proxy.endpoint)
        sink.prepare(DELIVERY)
        proxy.missing_answers = 1
        changes = versions(0, keys=3, rounds=3)
        with pytest.raises(SinkError) as failure:
            write(sink, changes, tasks=1)
        assert failure.value.code == "sink.unavailable"
        deliver(sink, changes)
    assert by_key(values(kinesis, sink.stream_name)) == {key: [0, 0, 1, 2] for key in range(3)}


def test_calls_keep_to_the_limits(kinesis: KinesisServer) -> None:
    with KinesisProxy(kinesis, lambda value: None) as proxy:
        sink = kinesis_sink(kinesis, endpoint=proxy.endpoint)
        sink.prepare(DELIVERY)
        many = [Change(n, n, 0) for n in range(1100)]
        sink.open(DELIVERY, span_of(many), 0).write(iter([batch_for(sink, many)]))
        assert [len(call) for call in proxy.calls] == [500, 500, 100]
        proxy.calls.clear()
        large = [Change(2000 + n, n, 1, text="x" * 1_048_000) for n in range(12)]
        deliver(sink, large, tasks=1)
        assert all(sum(map(len, call)) <= 5 * 2**20 for call in proxy.calls)
        assert len(proxy.calls) <= 4
        few = sink.model_copy(update={"batch_size": 2})
        proxy.calls.clear()
        deliver(few, [Change(3000 + n, n, 2) for n in range(4)], tasks=1)
        assert [len(call) for call in proxy.calls] == [2, 2]
    found = by_key(values(kinesis, sink.stream_name))
    assert len(found) == 1100
    assert (found[0], found[11], found[12]) == ([0, 1, 2], [0, 1], [0])


def test_a_record_that_only_the_service_refuses_is_found(kinesis: KinesisServer) -> None:
    """`max_record_bytes` is larger than what the stream takes; a call with such a record is refused as a whole."""
    sink = kinesis_sink(kinesis, max_record_bytes="2MiB")
    sink.prepare(DELIVERY)
    changes = [Change(n, n % 5, n, text="x" * (1_100_000 if n == 3 else 10)) for n in range(10)]
    written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
    (rejected,) = written.rejected
    assert (rejected.error.code, rejected.error.where) == ("sink.rejected", "public.orders at 0/3")
    assert by_key(values(kinesis, sink.stream_name)) == {0: [0, 5], 1: [1, 6], 2: [2, 7], 3: [8], 4: [4, 9]}


def test_a_missing_stream_stops_and_names_the_command(kinesis: KinesisServer) -> None:
    sink = kinesis_sink(kinesis, create_streams=None)
    for attempt in (lambda: sink.prepare(DELIVERY), lambda: write(sink, versions(0, 1, 1))):
        with pytest.raises(SinkError) as failure:
            attempt()
        assert failure.value.code == "sink.refused"
        assert decide(failure.value) is Action.STOP
        assert f"create-stream --stream-name {sink.stream_name}" in failure.value.hint


def test_streams_are_made_as_asked(kinesis: KinesisServer) -> None:
    asked = client(kinesis)
    for make, mode, shards in (({"shards": 3}, "PROVISIONED", 3), ({}, "ON_DEMAND", 4)):
        sink = kinesis_sink(kinesis, create_streams=make)
        sink.prepare(DELIVERY)
        sink.prepare(DELIVERY)
        found = asked.describe_stream_summary(StreamName=sink.stream_name)["StreamDescriptionSummary"]
        assert (found["StreamModeDetails"]["StreamMode"], found["OpenShardCount"]) == (mode, shards)


def states(sink: KinesisSink) -> list[tuple[str, str]]:
    return [(check.name, check.state) for check in sink.check(Subject("sink bus"), DELIVERY)]


def test_the_doctor_looks_and_makes_nothing(sink: KinesisSink, kinesis: KinesisServer) -> None:
    both = [("service", "ok"), ("stream", "ok")]
    assert states(sink) == both
    missing = sink.model_copy(update={"create_streams": None})
    assert states(missing) == [("service", "ok"), ("stream", "fail")]
    sink.prepare(DELIVERY)
    assert states(missing) == both
    assert states(kinesis_sink(kinesis, stream_name="x-${source.table}")) == both
    away = kinesis_sink(kinesis, endpoint=NOBODY, connect_timeout_secs=0.5)
    assert states(away) == [("service", "fail"), ("stream", "skipped")]


@pytest.fixture(scope="module")
def own() -> Iterator[KinesisServer]:
    with KinesisServer() as server:
        yield server


def test_wrong_credentials_stop(own: KinesisServer) -> None:
    """Of a user that may do everything with streams, and of nobody."""
    iam = boto3.client(
        "iam", endpoint_url=own.endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    iam.create_user(UserName="cdc")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "kinesis:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="cdc", PolicyName="all", PolicyDocument=json.dumps(allowed))
    key = iam.create_access_key(UserName="cdc")["AccessKey"]
    right = {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}
    sink = kinesis_sink(own, **right)
    with checking(own):
        sink.prepare(DELIVERY)
        deliver(sink, versions(0, keys=2, rounds=2))
        assert [state for _, state in states(sink)] == ["ok", "ok"]
        for wrong in (LOGIN, {**right, "secret_access_key": "wrong-one"}):
            refuses(kinesis_sink(own, stream_name=sink.stream_name, **wrong))


def refuses(stranger: KinesisSink) -> None:
    for attempt in (lambda: stranger.prepare(DELIVERY), lambda: write(stranger, versions(0, 1, 1))):
        with pytest.raises(SinkError) as failure:
            attempt()
        assert failure.value.code == "sink.refused"
        assert "wrong-one" not in str(failure.value)
    assert states(stranger)[0] == ("service", "fail")


@contextmanager
def checking(server: KinesisServer) -> Iterator[None]:
    """The server looks at signatures and permissions meanwhile."""

    def unchecked(calls: bytes) -> None:
        url, plain = f"{server.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urlopen(Request(url, data=calls, headers=plain, method="POST")).close()

    unchecked(b"0")
    yield
    unchecked(b"inf")


def test_no_credentials_stop(kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    for without in ({"access_key_id": None, "secret_access_key": None}, {"region": None}):
        with pytest.raises(SinkError) as failure:
            kinesis_sink(kinesis, **without).prepare(DELIVERY)
        assert failure.value.code == "sink.refused"


def test_tls(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    mine = authority.sign("server", "IP:127.0.0.1")
    with KinesisServer(certificate=(mine.cert, mine.key)) as server:
        for good in ({"root_cert": str(authority.root)}, {"verify": False}):
            sink = kinesis_sink(server, tls=good)
            sink.prepare(DELIVERY)
            deliver(sink, versions(0, keys=2, rounds=2))
        for bad in ({"root_cert": str(other.root)}, {}, {"root_cert": str(tmp_path / "missing.pem")}):
            with pytest.raises(SinkError) as failure:
                kinesis_sink(server, tls=bad).prepare(DELIVERY)
            assert failure.value.code == "sink.refused"
            assert "missing.pem" in str(failure.value) or "certificate verify failed" in str(failure.value)


def test_a_frozen_service_is_a_wait(own: KinesisServer) -> None:
    patient = kinesis_sink(own, send_timeout_secs=30)
    patient.prepare(DELIVERY)
    deliver(patient, versions(0, keys=2, rounds=1))
    sink = patient.model_copy(update={"send_timeout_secs": 0.5})
    os.kill(own.pid, signal.SIGSTOP)
    try:
        for attempt in (lambda: sink.prepare(DELIVERY), lambda: write(sink, versions(2, keys=1, rounds=1))):
            with pytest.raises(SinkError) as failure:
                attempt()
            assert failure.value.code == "sink.unavailable"
    finally:
        os.kill(own.pid, signal.SIGCONT)
    deliver(patient, versions(4, keys=1, rounds=3))
    assert by_key(values(own, sink.stream_name))[0][-3:] == [0, 1, 2]


def test_a_run_that_ends_does_not_wait_for_a_stream_that_takes_nothing(kinesis: KinesisServer) -> None:
    with KinesisProxy(kinesis, lambda value: OVER) as proxy:
        sink = kinesis_sink(kinesis, endpoint=proxy.endpoint, send_timeout_secs=3600)
        sink.prepare(DELIVERY)
        ending, since = replace(DELIVERY, ending=lambda: True), time.monotonic()
        with pytest.raises(SinkError) as failure:
            sink.open(ending, Span("log", 0, 1), 0).write(iter([batch_for(sink, versions(0, 1, 1))]))
        assert failure.value.code == "sink.unavailable"
        assert time.monotonic() - since < 20


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"secret_access_key": None}, "go together"),
        ({"access_key_id": None, "secret_access_key": None, "session_token": "t"}, "go together"),
        ({"endpoint": "kinesis.local"}, "match"),
        ({"batch_size": 501}, "500"),
        ({"max_record_bytes": "11MiB"}, "10485760"),
    ],
)
def test_what_cannot_work_is_refused_at_once(document: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        KinesisSink.from_document({"id": "bus", "stream_name": "s", **LOGIN, **document})


def test_secrets_reach_the_client_and_nothing_else() -> None:
    sink = KinesisSink.from_document({"id": "bus", "stream_name": "s", **LOGIN, "session_token": "hunter3"})
    assert sink.access().login == ("AKIA", "hunter2", "hunter3")
    shown = [repr(sink), sink.model_dump_json(), repr(sink.access()), repr(sink.open(DELIVERY, Span("l", 0, 1), 0))]
    assert "hunter" not in "".join(shown)
