from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from redis import Redis
from tailrace.config import Dsn
from tailrace.contracts import Span
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.redis import RedisSink, connection, writer
from tailrace.sinks.redis.scripts import ADD_ENTRIES
from tailrace.testing.servers import RedisServer
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

NOBODY = "redis://127.0.0.1:1"
Entry = dict[str, str]


def name() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def sink_of(server: RedisServer, **options: Any) -> RedisSink:
    return RedisSink.from_document({"id": "cache", "uri": server.uri, **options})


def client_of(server: RedisServer) -> Redis:
    return Redis(port=server.port, decode_responses=True)


def entries(server: RedisServer, stream: str) -> list[Entry]:
    with client_of(server) as client:
        found: Any = client.xrange(stream)
    return [fields for _, fields in found]


def records(server: RedisServer, stream: str) -> list[str]:
    return [entry["df-event"] for entry in entries(server, stream)]


class TestRedisSink(ServerSinkSuite):
    repeats = "absorbed"
    poison = "x" * (16 * 1024 * 1024 + 1)

    @pytest.fixture
    def sink(self, redis: RedisServer) -> RedisSink:
        return sink_of(redis, id=name(), stream=name())

    @pytest.fixture
    def received(self, sink: RedisSink, redis: RedisServer) -> Received:
        return lambda: records(redis, sink.stream or "")

    @pytest.fixture
    def unavailable(self) -> RedisSink:
        return RedisSink(id="cache", uri=Dsn(NOBODY), stream="anything", connect_timeout_secs=0.5)
