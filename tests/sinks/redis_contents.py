"""What a Redis server has, for tests that wrote it."""

from __future__ import annotations

import uuid
from typing import Any

from redis import Redis

from tailrace.sinks.redis import RedisSink
from tailrace.testing.servers import RedisServer

NOBODY = "redis://127.0.0.1:1"


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
