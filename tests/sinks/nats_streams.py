"""Sinks and streams of the NATS tests, and what is in a stream."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats as client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy, StreamConfig

from tailrace.sinks.nats import NatsSink
from tailrace.testing.servers import NatsServer

NOBODY = "nats://127.0.0.1:1"

T = TypeVar("T")


def nats_sink(
    server: NatsServer,
    *,
    subject: str | None = None,
    subjects: tuple[str, ...] = (),
    stream: str | None = "",
    create: bool = True,
    **more: Any,
) -> NatsSink:
    """A sink with a stream of its own; `stream=None`: it names none."""
    name = f"S{uuid.uuid4().hex}" if stream == "" else stream
    document = {"id": "bus", "url": server.url, "subject": subject or f"s.{uuid.uuid4().hex}", **more}
    if name is not None:
        document["stream"] = name
        if create:
            document["create_stream"] = {"subjects": list(subjects)}
    return NatsSink.from_document(document)


def asked(server: NatsServer, question: Callable[[JetStreamContext], Awaitable[T]], **login: Any) -> T:
    async def ask() -> T:
        connection = await client.connect(server.url, **login)
        try:
            return await question(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(ask())


def add_stream(server: NatsServer, name: str, subjects: list[str] | None, **config: Any) -> StreamConfig:
    """Make a stream; without subjects: what the one that is there is like."""

    async def add(context: JetStreamContext) -> StreamConfig:
        if subjects is not None:
            await context.add_stream(name=name, subjects=subjects, **config)
        return (await context.stream_info(name)).config

    return asked(server, add)


def stream_of(server: NatsServer, name: str, **login: Any) -> list[Msg]:
    """Everything in the stream, in its order."""

    async def read(context: JetStreamContext) -> list[Msg]:
        count = (await context.stream_info(name)).state.messages
        reader = await context.subscribe(">", stream=name, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL)
        return [await reader.next_msg(timeout=10) for _ in range(count)]

    return asked(server, read, **login)


def messages(server: NatsServer, sink: NatsSink) -> list[Msg]:
    assert sink.stream is not None
    return stream_of(server, sink.stream)


def values(server: NatsServer, sink: NatsSink) -> list[str]:
    return [message.data.decode() for message in messages(server, sink)]
