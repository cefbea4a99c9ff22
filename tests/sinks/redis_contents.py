"""What a Redis server has, for tests that wrote it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from redis import Redis

from tailrace.sinks.redis import RedisSink
from tailrace.testing.servers import RedisServer

NOBODY = "redis://127.0.0.1:1"
PAGE = 5_000


def new_name() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def sink_of(server: RedisServer, **options: Any) -> RedisSink:
    """A sink with marks of its own."""
    return RedisSink.from_document({"id": new_name(), "uri": server.uri, **options})


def client_of(server: RedisServer) -> Redis:
    return Redis(port=server.port, decode_responses=True)


def entries(server: RedisServer, stream: str) -> list[dict[str, str]]:
    with client_of(server) as client:
        found: Any = client.xrange(stream)
    return [fields for _, fields in found]


def records(server: RedisServer, stream: str) -> list[str]:
    return [entry["df-event"] for entry in entries(server, stream)]


def events_of(server: RedisServer, stream: str) -> Iterator[dict[str, Any]]:
    """The events of a stream, however long it is."""
    with client_of(server) as client:
        start = "-"
        while True:
            page: Any = client.xrange(stream, min=start, count=PAGE)
            for _, fields in page:
                event = json.loads(fields["df-event"])
                assert fields["event_id"] == event["event_id"]
                yield event
            if len(page) < PAGE:
                return
            start = f"({page[-1][0]}"
