"""What `tailrace doctor` looks at: whether the endpoint answers, and lets us in. It sends no record."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx

from tailrace.contracts import Check, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.http.addresses import literal, shown
from tailrace.sinks.http.answers import trouble
from tailrace.sinks.http.connection import context_for, reach

if TYPE_CHECKING:
    from tailrace.sinks.http import HttpSink

PATIENCE_S = 5.0


def check_endpoint(subject: Subject, sink: HttpSink) -> Iterator[Check]:
    """Connects; then asks for OPTIONS, which is to change nothing, where all records go to one URL."""
    try:
        reach(sink.origin(), sink.tls, PATIENCE_S, sink.id)
    except TailraceError as error:
        yield subject.failed("endpoint", error)
        yield subject.skipped("login", "the endpoint cannot be reached")
        return
    yield subject.ok("endpoint", str(sink.origin()))
    yield _login(subject, sink)


def _login(subject: Subject, sink: HttpSink) -> Check:
    url = literal(sink.url_parts())
    if url is None:
        return subject.ok("login", "not tried: each record has a URL of its own")
    try:
        with httpx.Client(verify=context_for(sink.tls), trust_env=False, timeout=PATIENCE_S) as client:
            headers = httpx.Headers(sink.static_headers(), encoding="utf-8")
            answer = client.options(url, headers=headers, auth=sink.login() or httpx.USE_CLIENT_DEFAULT)
    except httpx.HTTPError as error:
        return subject.failed("login", trouble(error, f"OPTIONS {shown(url)}", sink.id))
    said = f"OPTIONS {shown(url)} answered {answer.status_code}"
    match answer.status_code:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN | HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return subject.fail("login", said, "check the sink's auth, headers and signature")
        case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return subject.warn("login", said, "see the endpoint's own log")
        case _:
            return subject.ok("login", said)
