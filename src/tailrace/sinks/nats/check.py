"""What `tailrace doctor` looks at in NATS. Unlike the sink itself it creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nats.aio.client import Client
from nats.js.api import StreamConfig

from tailrace.contracts import Check, Delivery, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.nats.connection import ask
from tailrace.sinks.nats.streams import Streams
from tailrace.sinks.nats.window import take_hint

if TYPE_CHECKING:
    from tailrace.sinks.nats import NatsSink

Found = StreamConfig | TailraceError | None
"""A stream, or what came instead."""


def check_server(subject: Subject, sink: NatsSink, delivery: Delivery) -> Iterator[Check]:
    """Whether a server lets the sink in, and its stream is there or will be."""
    wanted = {"stream": sink.streams()}
    if (letters := sink.letter_streams()) is not None:
        wanted["dlq stream"] = letters

    async def look(client: Client) -> tuple[str, dict[str, Found]]:
        version = client.connected_server_version
        there = {what: await _found(streams, client) for what, streams in wanted.items()}
        return f"{version.major}.{version.minor}.{version.patch}", there

    try:
        version, found = ask(sink.access(delivery), look)
    except TailraceError as error:
        yield subject.failed("server", error)
        yield subject.skipped("stream", "the server does not answer")
        return
    yield subject.ok("server", f"NATS {version}")
    for what, streams in wanted.items():
        yield from _stream(subject, sink, what, streams, found[what])


async def _found(streams: Streams, client: Client) -> Found:
    try:
        return await streams.look(client)
    except TailraceError as error:
        return error


def _stream(subject: Subject, sink: NatsSink, what: str, streams: Streams, found: Found) -> Iterator[Check]:
    if isinstance(found, TailraceError):
        yield subject.failed(what, found)
    elif found is None and streams.new is not None:
        yield subject.ok(what, f"{streams.stream} will be created")
    elif found is None:
        wanted = take_hint(streams.stream, streams.subject.pattern)
        yield subject.fail(
            what, f"{streams.stream or 'no stream for the subject'} does not exist", f"make it: {wanted}"
        )
    elif problem := streams.problem(found):
        yield subject.fail(what, problem, f"`nats stream edit {found.name}`, or name another stream or subject")
    else:
        yield subject.ok(what, f"{found.name} takes {', '.join(found.subjects or [])}")
        for warning in streams.warnings(found, sink.repeat_s()):
            yield subject.warn("duplicate_window", warning, "make the stream's duplicate_window longer")
