from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.contracts import Check, Delivery, RecordSink, Subject, Written
from tailrace.errors import Action, ConfigError, SinkError, decide
from tailrace.sinks.http import HttpSink, writer
from tailrace.sinks.http.addresses import filled_url, problem_of_url
from tailrace.sinks.http.answers import Answer, meaning, retry_after
from tailrace.sinks.http.lanes import grouped
from tailrace.testing.servers import HttpEndpoint
from tailrace.testing.servers.http import Request, Rule
from tailrace.testing.servers.lifecycle import LocalServer
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
from tailrace.testing.waiting import eventually
from tests.capture.postgres.authority import Authority, Certificate

NOBODY = "http://127.0.0.1:1/nowhere"
POISON = "a text that nobody wants"


def a_path() -> str:
    return f"/{uuid.uuid4().hex[:12]}"


def sink_for(endpoint: HttpEndpoint, **options: Any) -> HttpSink:
    """With a path of its own, where poison is refused."""
    path = a_path()
    endpoint.answer(Rule(path, 422, contains=POISON, text="no such thing"))
    return HttpSink.from_document({"id": "hook", "url": f"{endpoint.url}{path}", **options})


def path_of(sink: HttpSink) -> str:
    return "/" + sink.url.get_secret_value().split("/")[3].partition("?")[0]


def taken(endpoint: HttpEndpoint, sink: HttpSink) -> list[Request]:
    return [request for request in endpoint.requests(path_of(sink)) if request.status == 200]


def values(requests: list[Request]) -> list[str]:
    """The records of all requests, however they came."""
    found: list[str] = []
    for request in requests:
        if request.headers["content-type"] == "application/x-ndjson":
            found += request.body.split("\n")[:-1]
        elif request.body.startswith("["):
            found += [json.dumps(each, ensure_ascii=False) for each in json.loads(request.body)]
        else:
            found.append(request.body)
    return found


class HttpSuite(ServerSinkSuite):
    repeats = "kept"
    poison = POISON

    @pytest.fixture
    def received(self, sink: HttpSink, endpoint: HttpEndpoint) -> Received:
        return lambda: values(taken(endpoint, sink))

    @pytest.fixture
    def server(self, endpoint: HttpEndpoint) -> HttpEndpoint:
        return endpoint

    @pytest.fixture
    def hasty(self, sink: HttpSink, monkeypatch: pytest.MonkeyPatch) -> HttpSink:
        monkeypatch.setattr(writer, "PATIENCE_S", 0.2)
        return sink.model_copy(update={"send_timeout_secs": 0.5, "batch_timeout_secs": 0.5})

    @pytest.fixture
    def unavailable(self, monkeypatch: pytest.MonkeyPatch) -> HttpSink:
        monkeypatch.setattr(writer, "PATIENCE_S", 0.2)
        return HttpSink.from_document({"id": "hook", "url": NOBODY, "connect_timeout_secs": 0.5})

    def test_a_server_that_says_nothing(
        self, sink: RecordSink, hasty: RecordSink, received: Received, server: LocalServer
    ) -> None:
        """It reads later what it was sent while it was frozen: HTTP has no way to take that back. Only what comes
        after is compared."""
        assert isinstance(hasty, HttpSink) and isinstance(server, HttpEndpoint)
        changes = versions(0, keys=2, rounds=20)
        hasty.prepare(DELIVERY)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert failure_of(hasty, changes).code == "sink.unavailable"
        finally:
            os.kill(server.pid, signal.SIGCONT)
        under_way = min(2, hasty.concurrency)
        eventually(lambda: len(server.requests(path_of(hasty))) == under_way, 10)
        late = len(received())
        deliver(sink, changes)
        self.has_all(received()[late:], changes)


class TestHttpSink(HttpSuite):
    @pytest.fixture
    def sink(self, endpoint: HttpEndpoint) -> HttpSink:
        return sink_for(endpoint)


class TestHttpArrays(HttpSuite):
    @pytest.fixture
    def sink(self, endpoint: HttpEndpoint) -> HttpSink:
        return sink_for(endpoint, batch_mode="array", batch_size=7)


def send(sink: HttpSink, batch: pa.RecordBatch, delivery: Delivery = DELIVERY) -> Written:
    return sink.open(delivery, span_of(versions(0, 1, 1)), 0).write(iter([batch]))


def failure_of(sink: HttpSink, changes: list[Change] | None = None) -> SinkError:
    with pytest.raises(SinkError) as failure:
        send(sink, batch_for(sink, changes or versions(0, keys=1, rounds=1)))
    return failure.value


def with_texts(batch: pa.RecordBatch, **columns: list[str | None]) -> pa.RecordBatch:
    """The batch as it is behind processors that said these."""
    for name in ("record_url", "record_key", "record_headers"):
        own = batch.column("key").to_pylist() if name == "record_key" else [None] * batch.num_rows
        batch = batch.append_column(name, pa.array(columns.get(name, own), pa.string()))
    return batch


# What a request says.


def test_a_request_carries_the_record_its_id_and_its_type(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, method="PATCH", headers={"X-Source": "žluť", "x-table": "${source.table}"})
    change = Change(5, 1, 0, text="žluť 🚰 \u2028")
    deliver(sink, [change])
    (request,) = taken(endpoint, sink)
    assert (request.method, request.body) == ("PATCH", change.value)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == change.row()["event_id"]
    assert (request.headers["x-source"], request.headers["x-table"]) == ("žluť", "orders")
    assert "cookie" not in request.headers


@pytest.mark.parametrize(
    ("mode", "envelope", "expected"),
    [
        ("none", {"type": "cloudevents", "type_prefix": "com.shop"}, "application/cloudevents+json"),
        ("array", {"type": "cloudevents", "type_prefix": "com.shop"}, "application/cloudevents-batch+json"),
        ("array", {"type": "native"}, "application/json"),
        ("ndjson", {"type": "cloudevents", "type_prefix": "com.shop"}, "application/x-ndjson"),
    ],
)
def test_the_content_type_says_what_the_body_is(
    endpoint: HttpEndpoint, mode: str, envelope: dict[str, str], expected: str
) -> None:
    sink = sink_for(endpoint, batch_mode=mode, envelope=envelope)
    deliver(sink, versions(0, keys=2, rounds=2), tasks=1)
    assert {request.headers["content-type"] for request in taken(endpoint, sink)} == {expected}


def test_a_header_of_the_document_wins_over_ours(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, headers={"content-TYPE": "application/vnd.shop+json"})
    deliver(sink, versions(0, keys=1, rounds=1))
    assert taken(endpoint, sink)[0].headers["content-type"] == "application/vnd.shop+json"


def test_key_value_and_metadata(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, body="key_value", batch_mode=True)
    change = Change(7, 3, 1, table='or"ders')
    deliver(sink, [change], tasks=1)
    (request,) = taken(endpoint, sink)
    place = {"topic": 'shop-db.public.or"ders', "partition": 3, "offset": 7, "event_id": change.row()["event_id"]}
    assert json.loads(request.body) == [{"key": {"id": 3}, "value": json.loads(change.value), "metadata": place}]


@pytest.mark.parametrize(("key", "expected"), [('{"a": 1}', {"a": 1}), ("plain text", "plain text"), (None, None)])
def test_a_key_that_a_processor_said_may_be_any_text(endpoint: HttpEndpoint, key: str | None, expected: object) -> None:
    sink = sink_for(endpoint, body="key_value")
    send(sink, with_texts(batch_for(sink, [Change(0, 0, 0)]), record_key=[key]))
    assert json.loads(taken(endpoint, sink)[0].body)["key"] == expected


def test_a_record_with_line_breaks_is_one_line(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, batch_mode="ndjson")
    batch = batch_for(sink, versions(0, keys=2, rounds=1))
    values = pa.array(['{"a":\r\n 1}', '{"a": 2}'], pa.string())
    send(sink, batch.set_column(batch.schema.get_field_index("value"), "value", values))
    (request,) = taken(endpoint, sink)
    assert [json.loads(line) for line in request.body.split("\n")[:-1]] == [{"a": 1}, {"a": 2}]


def test_large_values_go_alone(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, batch_mode="array", concurrency=1)
    changes = [Change(0, 0, 0), Change(1, 0, 1, text="ž" * 5_000_000), Change(2, 0, 2)]
    deliver(sink, changes, tasks=1)
    assert [len(json.loads(request.body)) for request in taken(endpoint, sink)] == [1, 1, 1]
    assert values(taken(endpoint, sink)) == [change.value for change in changes]


def test_batches_are_full_and_bounded(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, batch_mode="array", batch_size=10)
    send(sink, batch_for(sink, versions(0, keys=25, rounds=1)))
    assert sorted(len(json.loads(request.body)) for request in taken(endpoint, sink)) == [8, 8, 9]


def test_the_same_records_have_the_same_id_in_a_repeat(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, batch_mode="array", batch_size=2)
    for _ in range(2):
        deliver(sink, versions(0, keys=1, rounds=5), tasks=1)
    keys = [request.headers["idempotency-key"] for request in taken(endpoint, sink)]
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3


# URLs.


def test_values_fill_the_url_and_stay_in_their_segment(endpoint: HttpEndpoint) -> None:
    path = a_path()
    url = f"{endpoint.url}{path}/${{source.table}}/${{key.id}}?op=${{op}}&tag=a%20b"
    sink = HttpSink.from_document({"id": "hook", "url": url, "method": "PUT"})
    deliver(sink, [Change(0, 7, 0, table="größe/?#@:%2e&=")], tasks=1)
    (request,) = endpoint.requests(path)
    assert request.path == f"{path}/gr%C3%B6%C3%9Fe%2F%3F%23%40%3A%252e%26%3D/7?op=c&tag=a%20b"


@pytest.mark.parametrize("table", ["..", ".", "a/../b", "..\\b", "", "../admin"])
def test_a_value_cannot_leave_its_folder(endpoint: HttpEndpoint, table: str) -> None:
    path = a_path()
    sink = HttpSink.from_document({"id": "hook", "url": f"{endpoint.url}{path}/${{source.table}}"})
    written = send(sink, batch_for(sink, [Change(0, 0, 0), Change(1, 0, 1, table=table), Change(2, 0, 2)]))
    assert [each.error.code for each in written.rejected] == ["sink.unroutable"]
    assert f"public.{table} at 0/1" in str(written.rejected[0].error)
    assert [request.path for request in endpoint.requests(path)] == [f"{path}/orders"] * 2


def test_a_change_that_cannot_fill_the_url_is_unroutable_and_a_header_is_left_out(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, headers={"X-Total": "${after.total}"})
    deliver(sink, [Change(0, 0, 0)])
    assert "x-total" not in taken(endpoint, sink)[0].headers
    sink = HttpSink.from_document({"id": "hook", "url": f"{endpoint.url}/x/${{after.total}}?token=hidden"})
    (refused,) = send(sink, batch_for(sink, [Change(3, 0, 0)])).rejected
    assert (refused.error.code, refused.row.num_rows) == ("sink.unroutable", 1)
    assert "${after.total}" in refused.error.message
    assert "hidden" not in str(refused.error)


def test_a_value_cannot_add_a_header(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, headers={"X-Table": "${source.table}"})
    batch = batch_for(sink, [Change(0, 0, 0, table="a\r\nX-Admin: 1"), Change(1, 0, 1)])
    (refused,) = send(sink, batch).rejected
    assert refused.error.code == "sink.unroutable"
    assert [request.headers["x-table"] for request in taken(endpoint, sink)] == ["orders"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "host/x",
        "http://",
        "http://user:pass@host/x",
        "https://${source.table}.example.com/x",
        "https://example.com${source.table}/x",
        "https://example.com:${source.table}/",
        "${source.table}",
        "https://example.com/x#part",
        "https://example.com/a b",
        "https://example.com/a/../b",
        "https://example.com:99999/",
        "https://example.com/${source.tabel}",
    ],
)
def test_a_url_whose_host_is_not_plain_is_refused(url: str) -> None:
    with pytest.raises(ValidationError) as failure:
        HttpSink.from_document({"id": "hook", "url": url})
    assert "pass" not in str(failure.value)


@pytest.mark.parametrize("url", ["http://[::1]:8080/x", "HTTPS://Example.com?x=1", "http://10.0.0.1", "http://a_b/x"])
def test_private_addresses_and_plain_hosts_are_fine(url: str) -> None:
    assert problem_of_url(url) is None
    assert filled_url((url,), {}) == url


# What processors say.


def test_a_processor_says_url_key_and_headers(endpoint: HttpEndpoint) -> None:
    sink, path = sink_for(endpoint, headers={"X-A": "1"}), a_path()
    batch = with_texts(
        batch_for(sink, versions(0, keys=2, rounds=1)),
        record_url=[f"{endpoint.url}{path}/there", None],
        record_headers=['{"X-A": "2", "X-N": 7}', None],
    )
    assert send(sink, batch).rejected == ()
    (there,) = endpoint.requests(path)
    assert (there.path, there.headers["x-a"], there.headers["x-n"]) == (f"{path}/there", "2", "7")
    assert [request.headers["x-a"] for request in taken(endpoint, sink)] == ["1"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "https://elsewhere.example/x", "/x", "http://u:p@127.0.0.1/x", "http://[", "a\nb"]
)
def test_a_processor_cannot_send_records_and_logins_elsewhere(endpoint: HttpEndpoint, url: str) -> None:
    sink = sink_for(endpoint)
    batch = with_texts(batch_for(sink, versions(0, keys=1, rounds=2)), record_url=[url, None])
    (refused,) = send(sink, batch).rejected
    assert refused.error.code == "sink.unroutable"
    assert len(taken(endpoint, sink)) == 1


def test_unless_the_sink_allows_it(endpoint: HttpEndpoint) -> None:
    path = a_path()
    sink = HttpSink.from_document({"id": "hook", "url": NOBODY, "origins": [endpoint.url]})
    batch = with_texts(batch_for(sink, versions(0, keys=1, rounds=1)), record_url=[f"{endpoint.url}{path}"])
    assert send(sink, batch).rejected == ()
    assert len(endpoint.requests(path)) == 1


@pytest.mark.parametrize(
    "headers", ['{"Host": "x"}', '{"X A": "1"}', '{"X-A": "1\\r\\nX-B: 2"}', '{"Content-Length": "1"}']
)
def test_a_processors_header_that_cannot_be_sent_is_the_records_fault(endpoint: HttpEndpoint, headers: str) -> None:
    sink = sink_for(endpoint)
    batch = with_texts(batch_for(sink, versions(0, keys=1, rounds=2)), record_headers=[headers, None])
    assert [each.error.code for each in send(sink, batch).rejected] == ["sink.rejected"]
    assert len(taken(endpoint, sink)) == 1


# Order and concurrency.


def test_keys_go_at_the_same_time_and_each_in_order(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, concurrency=4)
    endpoint.answer(Rule(path_of(sink), stall_s=0.02))
    deliver(sink, versions(0, keys=8, rounds=6), tasks=1)
    by_key: dict[int, list[Request]] = defaultdict(list)
    for request in sorted(taken(endpoint, sink), key=lambda request: request.began):
        by_key[json.loads(request.body)["id"]].append(request)
    for mine in by_key.values():
        assert [json.loads(request.body)["n"] for request in mine] == list(range(6))
        assert all(one.ended <= next_.began for one, next_ in itertools.pairwise(mine))
    assert most_at_once(taken(endpoint, sink)) == 4


def most_at_once(requests: list[Request]) -> int:
    steps = sorted([(each.began, 1) for each in requests] + [(each.ended, -1) for each in requests])
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def test_nothing_is_under_way_beside_a_truncate(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, concurrency=4)
    endpoint.answer(Rule(path_of(sink), stall_s=0.02))
    batch = batch_for(sink, versions(0, keys=9, rounds=1))
    ops = pa.array([*"cccc", "t", *"cccc"])
    keys: Any = pa.array(
        [None if op == "t" else key for op, key in zip(ops.to_pylist(), batch["key"].to_pylist(), strict=True)]
    )
    send(sink, batch.set_column(1, "op", ops).set_column(batch.schema.get_field_index("key"), "key", keys))
    requests = {json.loads(request.body)["seq"]: request for request in taken(endpoint, sink)}
    assert max(requests[seq].ended for seq in range(4)) <= requests[4].began
    assert requests[4].ended <= min(requests[seq].began for seq in range(5, 9))


def test_one_key_stays_in_order_over_several_urls(endpoint: HttpEndpoint) -> None:
    path = a_path()
    url = f"{endpoint.url}{path}/${{source.table}}"
    sink = HttpSink.from_document({"id": "hook", "url": url, "batch_mode": "array"})
    changes = [replace(each, table=("a", "b")[each.n % 2]) for each in versions(0, keys=3, rounds=6)]
    send(sink, batch_for(sink, changes))
    requests = endpoint.requests(path)
    seen = {
        key: [each["n"] for request in requests for each in json.loads(request.body) if each["id"] == key]
        for key in range(3)
    }
    assert seen == {key: list(range(6)) for key in range(3)}
    for request in requests:
        tables = {changes[each["seq"]].table for each in json.loads(request.body)}
        assert tables == {request.path.rpartition("/")[2]}


def test_rows_of_other_keys_may_pass_those_of_one_key_do_not() -> None:
    assert list(grouped("abab", "kmkm", [1] * 4, rows=9, size=9)) == [[0, 2], [1, 3]]
    assert list(grouped("abab", "kkmm", [1] * 4, rows=9, size=9)) == [[0], [1], [2], [3]]
    assert list(grouped("aaaa", "kkkk", [1] * 4, rows=3, size=9)) == [[0, 1, 2], [3]]
    assert list(grouped("aaaa", "kkkk", [1, 9, 1, 1], rows=3, size=4)) == [[0], [1], [2, 3]]
    assert list(grouped("aba", [None, None, "k"], [1] * 3, rows=9, size=9)) == [[0], [1], [2]]


# What follows from answers.


@pytest.mark.parametrize(
    ("statuses", "answer"),
    [
        ((200, 201, 202, 204, 207), Answer.DELIVERED),
        ((400, 409, 411, 412, 413, 414, 422, 431), Answer.REJECTED),
        ((408, 421, 423, 425, 429, 500, 502, 503, 504, 507, 599), Answer.WAIT),
        ((301, 302, 307, 308, 304, 401, 402, 403, 404, 405, 406, 407, 410, 415, 418, 501, 505, 999), Answer.REFUSED),
    ],
)
def test_the_table_of_statuses(statuses: tuple[int, ...], answer: Answer) -> None:
    assert {meaning(status, names_record=False) for status in statuses} == {answer}


@pytest.mark.parametrize("status", [404, 410])
def test_not_to_be_found_is_about_the_record_where_the_url_is_made_of_it(endpoint: HttpEndpoint, status: int) -> None:
    path = a_path()
    endpoint.answer(Rule(f"{path}/1", status))
    for part, expected in (("${key.id}", "sink.rejected"), ("1", "sink.refused")):
        sink = HttpSink.from_document({"id": "hook", "url": f"{endpoint.url}{path}/{part}"})
        with pytest.raises(SinkError) as failure:
            write(sink, [Change(0, 1, 0)], tasks=2)
        assert failure.value.code == expected


@pytest.mark.parametrize("status", [401, 403, 405, 501])
def test_a_wrong_set_up_stops_the_sink(endpoint: HttpEndpoint, status: int) -> None:
    sink = sink_for(endpoint)
    endpoint.answer(Rule(path_of(sink), status, text="go away\n, token=abc"))
    error = failure_of(sink)
    assert (error.code, decide(error)) == ("sink.refused", Action.STOP)
    assert f"answered {status}" in error.message
    assert "go away , token=***" in error.message
    assert error.hint


def test_a_redirect_is_not_followed_and_nothing_secret_is_shown(endpoint: HttpEndpoint) -> None:
    elsewhere = a_path()
    sink = sink_for(endpoint, auth={"type": "bearer", "token": "t0ken"})
    sink = sink.model_copy(update={"url": type(sink.url)(sink.url.get_secret_value() + "?sig=s3cret")})
    endpoint.answer(Rule(path_of(sink), 307, {"Location": f"{endpoint.url}{elsewhere}?code=c0de"}))
    error = failure_of(sink)
    assert error.code == "sink.refused"
    assert elsewhere in error.hint
    assert endpoint.requests(elsewhere) == []
    assert not re.search("t0ken|s3cret|c0de", json.dumps(error.as_dict()) + repr(sink))


@pytest.mark.parametrize("mode", ["array", "ndjson"])
def test_a_refused_batch_is_searched_and_everything_else_delivered_in_order(endpoint: HttpEndpoint, mode: str) -> None:
    sink = sink_for(endpoint, batch_mode=mode)
    changes = versions(0, keys=2, rounds=20)
    poisoned = {3, 17, 18}
    changes = [replace(each, text=POISON) if each.seq in poisoned else each for each in changes]
    written = send(sink, batch_for(sink, changes))
    assert {each.row["seq"][0].as_py() for each in written.rejected} == poisoned
    assert all(
        "422 Unprocessable" in each.error.message and "no such thing" in each.error.message for each in written.rejected
    )
    assert values(taken(endpoint, sink)) == [each.value for each in changes if each.seq not in poisoned]


def test_a_body_that_is_too_large_is_halved(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, batch_mode="array")
    endpoint.answer(Rule(path_of(sink), 413, larger_than=300))
    changes = [Change(seq, 0, seq, text="x" * (400 if seq == 5 else 10)) for seq in range(12)]
    written = send(sink, batch_for(sink, changes))
    assert [each.row["seq"][0].as_py() for each in written.rejected] == [5]
    assert values(taken(endpoint, sink)) == [each.value for each in changes if each.seq != 5]


@pytest.mark.parametrize("status", [429, 503, 500, 0])
def test_what_passes_quickly_is_not_noticed(endpoint: HttpEndpoint, status: int) -> None:
    sink = sink_for(endpoint)
    headers = {"Retry-After": "0"} if status == 429 else {}
    endpoint.answer(Rule(path_of(sink), status, headers, times=2))
    changes = versions(0, keys=1, rounds=3)
    assert send(sink, batch_for(sink, changes)).rejected == ()
    assert values(taken(endpoint, sink)) == [change.value for change in changes]


def test_a_rate_limit_is_kept_for_as_long_as_somebody_gets_through(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, concurrency=2)
    path = path_of(sink)
    endpoint.answer(
        *(Rule(path, 429, {"Retry-After": "1"}, contains=f'"seq": {seq},', times=1) for seq in range(0, 8, 2))
    )
    changes = versions(0, keys=2, rounds=4)
    began = time.monotonic()
    assert send(sink, batch_for(sink, changes)).rejected == ()
    assert time.monotonic() - began > 3.9, "four waits of a second, longer than a task has patience without progress"
    assert len(taken(endpoint, sink)) == 8


def test_a_long_wait_is_the_drivers_and_the_error_says_how_long(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint)
    endpoint.answer(Rule(path_of(sink), 503, {"Retry-After": "120"}))
    began = time.monotonic()
    error = failure_of(sink, versions(0, keys=6, rounds=2))
    assert time.monotonic() - began < 3
    assert (error.code, error.retry_after) == ("sink.unavailable", 120)
    assert decide(error) is Action.RETRY
    assert pickle.loads(pickle.dumps(error)).retry_after == 120


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        (" 1.5 ", 1.5),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0),
        ("soon", None),
        ("-1", None),
        ("9" * 400, None),
        (None, None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


def test_a_run_that_ends_does_not_wait(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint)
    endpoint.answer(Rule(path_of(sink), 503))
    began = time.monotonic()
    with pytest.raises(SinkError):
        send(sink, batch_for(sink, versions(0, 1, 1)), replace(DELIVERY, ending=lambda: True))
    assert time.monotonic() - began < 1


# An endpoint that is away.


def test_an_endpoint_that_hangs_is_unavailable_and_nothing_follows(endpoint: HttpEndpoint) -> None:
    """It answers late, when the connection is closed; nothing of the given-up batch comes behind."""
    sink = sink_for(endpoint, send_timeout_secs=0.3, concurrency=2)
    endpoint.answer(Rule(path_of(sink), stall_s=1.0))
    error = failure_of(sink, versions(0, keys=2, rounds=5))
    assert error.code == "sink.unavailable"
    assert "may have got the request" in error.message
    eventually(lambda: len(endpoint.requests(path_of(sink))) == 2, 10)
    assert {json.loads(request.body)["n"] for request in endpoint.requests(path_of(sink))} == {0}


def test_a_frozen_and_a_killed_endpoint_are_waits_and_work_again_later() -> None:
    with HttpEndpoint() as endpoint:
        sink = HttpSink.from_document({"id": "hook", "url": f"{endpoint.url}/x", "send_timeout_secs": 0.5})
        deliver(sink, versions(0, keys=2, rounds=2))
        os.kill(endpoint.pid, signal.SIGSTOP)
        assert failure_of(sink, versions(4, keys=2, rounds=2)).code == "sink.unavailable"
        os.kill(endpoint.pid, signal.SIGCONT)
        deliver(sink, versions(8, keys=2, rounds=2))
        endpoint.kill()
        assert failure_of(sink, versions(12, keys=1, rounds=1)).code == "sink.unavailable"
        endpoint.start()
        deliver(sink, versions(16, keys=2, rounds=2))
        seqs = [json.loads(request.body)["seq"] for request in endpoint.requests()]
    assert {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19} <= set(seqs)
    assert 12 not in seqs


def test_a_connection_that_the_endpoint_closed_meanwhile_is_made_anew() -> None:
    with HttpEndpoint() as endpoint:
        sink = HttpSink.from_document({"id": "hook", "url": f"{endpoint.url}/x"})
        deliver(sink, versions(0, keys=1, rounds=2))
        endpoint.restart()
        deliver(sink, versions(2, keys=1, rounds=2))
        assert [json.loads(request.body)["seq"] for request in endpoint.requests()] == [0, 1, 2, 3]


def test_connections_are_used_again(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, concurrency=1)
    for start in (0, 5):
        deliver(sink, versions(start, keys=1, rounds=5), tasks=1)
    assert len({request.client for request in taken(endpoint, sink)}) == 1


# Logins, TLS.


def test_bearer_basic_and_headers_log_in(endpoint: HttpEndpoint) -> None:
    for options, header in (
        ({"auth": {"type": "bearer", "token": "t0ken"}}, ("authorization", "Bearer t0ken")),
        ({"auth": {"type": "basic", "username": "ann", "password": "p:w"}}, ("authorization", "Basic YW5uOnA6dw==")),
        ({"headers": {"X-API-Key": "k3y"}}, ("x-api-key", "k3y")),
    ):
        sink = sink_for(endpoint, **options)
        endpoint.answer(Rule(path_of(sink), 401, lacks=header))
        deliver(sink, versions(0, keys=1, rounds=1))
        assert [request.status for request in endpoint.requests(path_of(sink))] == [200]
        assert not re.search(r"t0ken|p:w|k3y", repr(sink) + sink.model_dump_json())


def test_a_wrong_token_stops_the_sink(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, auth={"type": "bearer", "token": "wr0ng"})
    endpoint.answer(Rule(path_of(sink), 401, lacks=("authorization", "Bearer t0ken")))
    error = failure_of(sink)
    assert error.code == "sink.refused"
    assert "auth" in error.hint
    assert "wr0ng" not in str(error.as_dict())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def client_certificate(authority: Authority) -> Certificate:
    return authority.sign("client")


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[HttpEndpoint]:
    """An endpoint with TLS that wants a certificate of its clients."""
    mine = authority.sign("server", "IP:127.0.0.1")
    with HttpEndpoint(cert=mine.cert, key=mine.key, client_ca=authority.root) as server:
        yield server


def tls_sink(server: HttpEndpoint, **tls: object) -> HttpSink:
    told = {name: str(value) if isinstance(value, Path) else value for name, value in tls.items()}
    return HttpSink.from_document({"id": "hook", "url": f"{server.url}{a_path()}", "tls": told})


def test_tls_with_certificates_of_both_sides(
    secure: HttpEndpoint, authority: Authority, client_certificate: Certificate
) -> None:
    sink = tls_sink(secure, root_cert=authority.root, cert=client_certificate.cert, key=client_certificate.key)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=3, rounds=2))
    assert len(taken(secure, sink)) == 6
    trusting = tls_sink(secure, verify=False, cert=client_certificate.cert, key=client_certificate.key)
    deliver(trusting, versions(0, keys=1, rounds=1))
    assert len(taken(secure, trusting)) == 1


def test_a_certificate_that_does_not_fit_stops_the_sink(
    secure: HttpEndpoint, authority: Authority, client_certificate: Certificate, tmp_path: Path
) -> None:
    mine = {"cert": client_certificate.cert, "key": client_certificate.key}
    others = Authority(tmp_path, "others")
    stranger = tls_sink(secure, root_cert=others.root, **mine)
    with pytest.raises(SinkError) as failure:
        stranger.prepare(DELIVERY)
    assert (failure.value.code, "certificate verify failed" in failure.value.message) == ("sink.refused", True)
    assert failure_of(stranger).code == "sink.refused"
    assert failure_of(tls_sink(secure, root_cert=authority.root)).code == "sink.refused", (
        "without a certificate of ours"
    )
    renamed = tls_sink(secure, root_cert=authority.root, **mine)
    renamed = renamed.model_copy(
        update={"url": type(renamed.url)(renamed.url.get_secret_value().replace("127.0.0.1", "localhost"))}
    )
    assert failure_of(renamed).code == "sink.refused", "a name that the certificate does not have"


def test_tls_files_that_cannot_be_used_are_an_error_of_the_document(endpoint: HttpEndpoint, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for tls in ({"root_cert": str(tmp_path / "none.pem")}, {"root_cert": str(tmp_path / "empty.pem")}):
        sink = sink_for(endpoint, tls=tls)
        with pytest.raises(ConfigError) as failure:
            sink.prepare(DELIVERY)
        assert failure.value.code == "config.bad_tls"


# Documents.


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"Authorization": "x"}, "auth": {"type": "bearer", "token": "t"}},
        {"headers": {"idempotency-key": "x"}},
        {"headers": {"X A": "x"}},
        {"headers": {"Host": "x"}},
        {"headers": {"X-A": "a\nb"}},
        {"auth": {"type": "bearer", "token": "t\n"}},
        {"auth": {"type": "bearer", "token": ""}},
        {"auth": {"type": "digest", "token": "x"}},
        {"auth": {"type": "basic", "username": "a:b", "password": "x"}},
        {"tls": {"key": "/x"}},
        {"origins": ["https://example.com/path"]},
        {"origins": ["example.com"]},
        {"batch_mode": "lines"},
        {"method": "DELETE"},
        {"concurrency": 0},
        {"retries": 3},
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpSink.from_document({"id": "hook", "url": NOBODY, **options})


def test_truth_values_say_batch_mode_too() -> None:
    sinks = [HttpSink.from_document({"id": "h", "url": NOBODY, "batch_mode": mode}) for mode in (True, False)]
    assert [sink.batch_mode for sink in sinks] == ["array", "none"]
    assert sinks[0].batch_events() == 10_000


# The doctor.


def checks(sink: HttpSink) -> dict[str, tuple[str, str]]:
    found: list[Check] = list(sink.check(Subject("hook"), DELIVERY))
    return {each.name: (each.state, each.detail) for each in found}


def test_the_doctor_connects_and_asks_to_be_let_in(endpoint: HttpEndpoint) -> None:
    sink = sink_for(endpoint, auth={"type": "bearer", "token": "t0ken"})
    assert {name: state for name, (state, _) in checks(sink).items()} == {"endpoint": "ok", "login": "ok"}
    assert [request.method for request in endpoint.requests(path_of(sink))] == ["OPTIONS"]
    endpoint.answer(Rule(path_of(sink), 403, lacks=("authorization", "Bearer other")))
    assert checks(sink)["login"][0] == "fail"
    endpoint.answer(Rule(path_of(sink), 500))
    assert checks(sink)["login"][0] == "warn"


def test_the_doctor_says_who_cannot_be_reached() -> None:
    found = checks(HttpSink.from_document({"id": "hook", "url": NOBODY}))
    assert {name: state for name, (state, _) in found.items()} == {"endpoint": "fail", "login": "skipped"}
    assert "http://127.0.0.1:1" in found["endpoint"][1]
    made = HttpSink.from_document({"id": "hook", "url": "http://nobody.invalid/x"})
    assert checks(made)["endpoint"][0] == "fail"
