"""The servers of `sinks`: a class for each, with our sink, a loop of the server's own client, and a count.

A further one is a class here and a place in `TARGETS`.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.client import HTTPConnection
from typing import ClassVar, NamedTuple, Self

import httpx
import nats
from nats.js import JetStreamContext
from redis import Redis

from tailrace.contracts import RecordSink
from tailrace.errors import SetupError
from tailrace.sinks.http import HttpSink
from tailrace.sinks.nats import NatsSink
from tailrace.sinks.opensearch import OpenSearchSink
from tailrace.sinks.redis import RedisSink
from tailrace.testing.servers import HttpEndpoint, NatsServer, OpenSearchServer, RedisServer
from tailrace.testing.servers.lifecycle import LocalServer

AT_ONCE = 1_000
"""Entries of one round trip of the Redis loop, and messages that the NATS loop has under way."""
OF_A_REQUEST = 500
"""Records of an HTTP request, of both sides."""


class Record(NamedTuple):
    """A record as our sinks render it."""

    event_id: str
    key: str
    value: str

    @classmethod
    def of(cls, line: str) -> Self:
        told = json.loads(line)
        row = told["after"] or told["before"]
        return cls(told["event_id"], json.dumps({"id": row["id"]}), line)


class Target(ABC):
    """A server, and the two sides that write to it, each to a place of its own."""

    name: ClassVar[str]
    server: LocalServer

    @abstractmethod
    def sink(self, place: str) -> RecordSink: ...

    @abstractmethod
    def loop(self, place: str, records: Sequence[Record]) -> None:
        """Send the records, and return when the server has acknowledged all."""

    @abstractmethod
    def count(self, place: str) -> int:
        """How many records are there."""


class RedisTarget(Target):
    name = "redis streams"

    def __init__(self) -> None:
        self.server = self._redis = RedisServer()

    def sink(self, place: str) -> RecordSink:
        return RedisSink.from_document({"id": "redis", "uri": self._redis.uri, "stream": place})

    def loop(self, place: str, records: Sequence[Record]) -> None:
        with Redis(port=self._redis.port) as client:
            for some in batches(records, AT_ONCE):
                pipeline = client.pipeline(transaction=False)
                for name, key, value in some:
                    entry = {"event_id": name, "idempotency_key": name, "df-event": value, "df-key": key}
                    pipeline.xadd(place, entry)
                pipeline.execute()

    def count(self, place: str) -> int:
        with Redis(port=self._redis.port) as client:
            return int(client.xlen(place))


class NatsTarget(Target):
    name = "nats"

    def __init__(self) -> None:
        self.server = self._nats = NatsServer()

    def sink(self, place: str) -> RecordSink:
        stream = {"stream": place, "create_stream": {}}
        return NatsSink.from_document({"id": "nats", "url": self._nats.url, "subject": f"{place}.events", **stream})

    def loop(self, place: str, records: Sequence[Record]) -> None:
        asyncio.run(self._publish(place, records))

    def count(self, place: str) -> int:
        return asyncio.run(self._messages(place))

    async def _publish(self, place: str, records: Sequence[Record]) -> None:
        client = await nats.connect(self._nats.url)
        stream = client.jetstream()
        await stream.add_stream(name=place, subjects=[f"{place}.>"])
        for some in batches(records, AT_ONCE):
            await asyncio.gather(*(_acknowledged(stream, place, each) for each in some))
        await client.close()

    async def _messages(self, place: str) -> int:
        client = await nats.connect(self._nats.url)
        try:
            return int((await client.jetstream().stream_info(place)).state.messages)
        finally:
            await client.close()


async def _acknowledged(stream: JetStreamContext, place: str, record: Record) -> None:
    headers = {"Nats-Msg-Id": record.event_id, "df-key": record.key}
    await stream.publish(f"{place}.events", record.value.encode(), headers=headers)


class HttpTarget(Target):
    name = "http batches"

    def __init__(self) -> None:
        self.server = self._endpoint = HttpEndpoint()

    def sink(self, place: str) -> RecordSink:
        batch = {"batch_mode": "array", "batch_size": OF_A_REQUEST}
        return HttpSink.from_document({"id": "http", "url": f"{self._endpoint.url}/{place}/records", **batch})

    def loop(self, place: str, records: Sequence[Record]) -> None:
        connection = HTTPConnection("127.0.0.1", self._endpoint.port)
        for some in batches(records, OF_A_REQUEST):
            body = f"[{','.join(each.value for each in some)}]"
            connection.request("POST", f"/{place}/records", body.encode(), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != HTTPStatus.OK:
                raise SetupError("benchmark.refused", f"the endpoint answered {answer.status}", hint="see its log")
        connection.close()

    def count(self, place: str) -> int:
        return sum(len(json.loads(each.body)) for each in self._endpoint.requests(f"/{place}/"))


class OpenSearchTarget(Target):
    """The loop posts what `_bulk` takes: no client is quicker than that."""

    name = "opensearch"

    def __init__(self) -> None:
        self.server = self._search = OpenSearchServer()

    def sink(self, place: str) -> RecordSink:
        where = {"urls": [self._search.url], "index": place, "mode": "events", "batch_size": OF_A_REQUEST}
        return OpenSearchSink.from_document({"id": "search", **where, "mapping": _AS_TEXT})

    def loop(self, place: str, records: Sequence[Record]) -> None:
        with httpx.Client(base_url=self._search.url, trust_env=False, timeout=60) as client:
            client.put(f"/{place}", json={"mappings": _AS_TEXT}).raise_for_status()
            for some in batches(records, OF_A_REQUEST):
                lines = (f'{{"create":{{"_id":"{each.event_id}"}}}}\n{each.value}\n' for each in some)
                kind = {"Content-Type": "application/x-ndjson"}
                answer = client.post(f"/{place}/_bulk", content="".join(lines), headers=kind)
                answer.raise_for_status()
                if answer.json()["errors"]:
                    raise SetupError("benchmark.refused", "the server refused documents", hint="see its log")

    def count(self, place: str) -> int:
        with httpx.Client(base_url=self._search.url, trust_env=False, timeout=60) as client:
            client.post(f"/{place}/_refresh").raise_for_status()
            return int(client.get(f"/{place}/_count").json()["count"])


_AS_TEXT = {"dynamic": False}
"""Mappings that index no member: what is measured is the way there."""

TARGETS: tuple[Callable[[], Target], ...] = (RedisTarget, NatsTarget, HttpTarget, OpenSearchTarget)


def batches(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    for first in range(0, len(records), size):
        yield records[first : first + size]
