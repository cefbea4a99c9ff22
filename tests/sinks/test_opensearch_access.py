"""How the sink reaches a cluster: logins, TLS, addresses, and what it is told there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.contracts import Subject
from tailrace.errors import Action, SinkError, decide
from tailrace.registry import SINKS
from tailrace.sinks.opensearch import ElasticsearchSink, OpenSearchSink
from tailrace.sinks.opensearch.documents import name_of
from tailrace.sinks.opensearch.indexes import seconds
from tailrace.spec.later import SINK
from tailrace.testing.servers import HttpEndpoint, OpenSearchServer
from tailrace.testing.servers.http import Rule
from tailrace.testing.suites.sinks import DELIVERY
from tests.capture.postgres.authority import Authority
from tests.sinks.search_documents import NOBODY, change, deliver, documents, new_name, sink_of, write
from tests.sinks.tls_front import TlsFront

FINE = '{"errors":false,"items":[]}'


@pytest.fixture
def told(endpoint: HttpEndpoint) -> Iterator[HttpEndpoint]:
    """A server that has no marks and no indices, and takes everything."""
    missing = [Rule(path, status=404, text="{}") for path in ("/tailrace-marks/_doc", "/tailrace-marks/_settings")]
    yield endpoint.answer(Rule("/_bulk", text=FINE), *missing)
    endpoint.answer(Rule("/"))


def sink_at(endpoint: HttpEndpoint, **options: Any) -> OpenSearchSink:
    """Its index is unknown there."""
    name = new_name()
    endpoint.answer(Rule(f"/{name}-orders/_settings", status=404, text="{}"))
    own = {"id": name, "urls": [endpoint.url], "index": name + "-${source.table}"}
    return OpenSearchSink.from_document({**own, **options})


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        ({"type": "basic", "username": "ü", "password": "p"}, "Basic " + base64.b64encode("ü:p".encode()).decode()),
        ({"type": "api_key", "key": "a2V5"}, "ApiKey a2V5"),
        ({"type": "bearer", "token": "t"}, "Bearer t"),
    ],
)
def test_every_request_has_the_login(told: HttpEndpoint, auth: dict[str, str], header: str) -> None:
    sink = sink_at(told, auth=auth)
    before = len(told.requests())
    sink.prepare(DELIVERY)
    write(sink, change(0, "c", 1, {}))
    mine = told.requests()[before:]
    assert {request.path.partition("?")[0] for request in mine} >= {"/_bulk", f"/{sink.id}-orders"}
    assert {request.headers.get("authorization") for request in mine} == {header}


def test_a_refused_login_stops_and_shows_nothing(told: HttpEndpoint) -> None:
    told.answer(Rule("/", status=401, text='{"error": {"type": "security_exception", "reason": "missing"}}'))
    sink = sink_at(told, auth={"type": "basic", "username": "u", "password": "hunter2"})
    told.answer(Rule("/", status=401, text='{"error": {"type": "security_exception", "reason": "missing"}}'))
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    assert (failure.value.code, decide(failure.value)) == ("sink.refused", Action.STOP)
    assert "security_exception: missing" in failure.value.message
    shown = repr(sink) + sink.model_dump_json() + repr(sink.access(DELIVERY)) + str(failure.value)
    assert "hunter2" not in shown
    assert [check.state for check in sink.check(Subject("sink"), DELIVERY)] == ["fail", *["skipped"] * 3]


def test_documents_that_the_cluster_has_no_room_for_are_sent_again(told: HttpEndpoint) -> None:
    """They alone, and without a conflict being anybody else's."""
    sink = sink_at(told)
    busy = {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "full"}}
    behind = {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "x"}}
    first = {"errors": True, "items": [{"index": {"status": 201}}, {"index": busy}, {"index": busy}]}
    second = {"errors": True, "items": [{"index": {"status": 200}}, {"index": behind}]}
    told.answer(
        Rule("/_bulk", text=json.dumps(first), contains=sink.id, times=1),
        Rule("/_bulk", text=json.dumps(second), contains=sink.id, times=1),
    )
    assert not write(sink, *(change(seq, "c", seq, {}) for seq in range(3))).rejected
    sent = [request.body.count('"index":') for request in told.requests("/_bulk") if sink.id in request.body]
    assert sent == [3, 2]


def test_an_answer_that_asks_for_time_gets_it(told: HttpEndpoint) -> None:
    sink = sink_at(told)
    told.answer(Rule("/_bulk", status=429, headers={"Retry-After": "17"}, text="{}", contains=sink.id))
    with pytest.raises(SinkError) as failure:
        write(sink, change(0, "c", 1, {}))
    assert (failure.value.code, failure.value.retry_after) == ("sink.unavailable", 17)


def test_a_request_that_is_refused_is_cut_down_to_the_record(told: HttpEndpoint) -> None:
    sink = sink_at(told)
    told.answer(
        Rule("/_bulk", status=413, text="too much", contains="poison" + sink.id),
        Rule("/_bulk", text=FINE, contains=sink.id),
    )
    rows = [change(seq, "c", seq, {"v": "poison" + sink.id if seq == 5 else ""}) for seq in range(9)]
    [refused] = write(sink, *rows).rejected
    assert (refused.error.code, refused.error.where) == ("sink.rejected", "public.orders at 0/5")


def test_a_record_that_the_clusters_memory_never_has_room_for_is_refused(told: HttpEndpoint) -> None:
    sink = sink_at(told)
    sizes = "coordinating_operation_bytes=41943289, max_coordinating_and_primary_bytes=26843545"
    error = {"type": "rejected_execution_exception", "reason": f"rejected [all_bytes=0, {sizes}]"}
    told.answer(Rule("/_bulk", status=429, text=json.dumps({"error": error}), contains=sink.id))
    [refused] = write(sink, change(0, "c", 1, {})).rejected
    assert refused.error.code == "sink.rejected"


def test_the_next_address_is_taken(opensearch: OpenSearchServer) -> None:
    sink = sink_of(opensearch, urls=[NOBODY, opensearch.url])
    with pytest.raises(SinkError) as failure:
        sink.prepare(DELIVERY)
    assert decide(failure.value) is Action.RETRY
    sink.prepare(DELIVERY)
    deliver(sink, change(0, "c", 1, {"id": 1}))
    assert documents(opensearch, f"{sink.id}-orders") == {"1": {"id": 1}}


def test_tls_with_certificates_on_both_sides(opensearch: OpenSearchServer, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "tls", "authority"), Authority(tmp_path / "other", "stranger")
    client = authority.sign("client")
    files = {"root_cert": str(authority.root), "cert": str(client.cert), "key": str(client.key)}
    with TlsFront(opensearch.port, authority, authority.sign("server", "IP:127.0.0.1")) as front:
        urls = [f"https://127.0.0.1:{front.port}"]
        sink = sink_of(opensearch, urls=urls, tls=files)
        sink.prepare(DELIVERY)
        deliver(sink, change(0, "c", 1, {"id": 1}))
        assert documents(opensearch, f"{sink.id}-orders") == {"1": {"id": 1}}
        for wrong in ({}, {**files, "root_cert": str(stranger.root)}, {"root_cert": str(authority.root)}):
            with pytest.raises(SinkError) as failure:
                sink_of(opensearch, urls=urls, tls=wrong).prepare(DELIVERY)
            assert decide(failure.value) is Action.STOP or wrong == {"root_cert": str(authority.root)}
        trusting = sink_of(opensearch, urls=urls, tls={**files, "root_cert": str(stranger.root), "verify": False})
        trusting.prepare(DELIVERY)


class TestDocument:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"index": "shop"}, "several tables"),
            ({"index": "shop-${after.region}"}, "after.region"),
            ({"document_id": "${event_id}"}, "event_id"),
            ({"urls": ["http://u:p@h"]}, "address"),
            ({"urls": ["http://h?x=1"]}, "query"),
            ({"mode": "events", "soft_delete": True}, "`soft_delete`"),
            ({"mode": "events", "document_id": "${key.id}"}, "`document_id`"),
            ({"gc_deletes": "10s", "retry": {"max_wait_seconds": 60}}, "`gc_deletes`"),
            ({"mark_index": "Marks"}, "capital"),
            ({"truncates": "delete", "soft_delete": True}, "real deletes"),
            ({"truncates": "delete", "index": "${source.table}-${key.id}"}, "index of each table"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options: dict[str, Any], word: str) -> None:
        with pytest.raises(ValidationError) as failure:
            OpenSearchSink.from_document({"id": "s", "urls": ["http://h"], "index": "i-${source.table}", **options})
        [error] = failure.value.errors()
        assert word in error["msg"]
        assert error["ctx"]["hint"]

    def test_the_other_name(self) -> None:
        assert SINKS.load("elasticsearch") is ElasticsearchSink
        assert SINKS.load("opensearch") is OpenSearchSink
        assert "unverified" in (ElasticsearchSink.__doc__ or "")
        assert "json" in SINK["elasticsearch"]["encoding"]

    def test_what_a_mode_needs(self) -> None:
        mirror = OpenSearchSink.from_document({"id": "s", "urls": ["http://h"], "index": "i-${source.table}"})
        events = OpenSearchSink.from_document({"id": "s", "urls": ["http://h"], "index": "i", "mode": "events"})
        assert (mirror.keeps, mirror.wants_value(), mirror.routes()) == ("state", False, {"index": mirror.index})
        assert (events.keeps, events.wants_value(), events.routes()) == ("events", True, {})
        assert mirror.routed() == {"index": "index", "document_id": "key"}

    @pytest.mark.parametrize(
        ("key", "name"),
        [
            ('{"id": 1}', "1"),
            ('{"id": "1"}', "1"),
            ('{"id": "ž \\" /"}', 'ž " /'),
            ('{"a": 1, "b": "x"}', '[1,"x"]'),
            ('{"id": [1]}', "[1]"),
            ('{"id": 1.00000000000000000010}', "1.00000000000000000010"),
            ('{"a": 1.00000000000000000010, "b": 2}', "[1.00000000000000000010,2]"),
            ('{"id": true}', "true"),
            ("said", "said"),
            ("7", "7"),
        ],
    )
    def test_ids_of_keys(self, key: str, name: str) -> None:
        assert name_of(key) == name

    @pytest.mark.parametrize(
        ("text", "found"), [("60s", 60), ("1h", 3600), ("500ms", 0.5), ("1.5m", 90), ("-1", -0.001)]
    )
    def test_times_as_the_server_spells_them(self, text: str, found: float) -> None:
        assert seconds(text) == found
