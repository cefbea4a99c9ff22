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


def check_server(subject: Subject, sink: NatsSink, delivery: Delivery) -> Iterator[Check]:
    """Whether a server lets the sink in, and its stream is there or will be."""
    streams = sink.streams()

    async def look(client: Client) -> tuple[str, StreamConfig | TailraceError | None]:
        try:
            found: StreamConfig | TailraceError | None = await streams.look(client)
        except TailraceError as error:
            found = error
        version = client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}", found

    try:
        version, found = ask(sink.access(delivery), look)
    except TailraceError as error:
        yield subject.failed("server", error)
        yield subject.skipped("stream", "the server does not answer")
        return
    yield subject.ok("server", f"NATS {version}")
    yield from _stream(subject, sink, streams, found)


def _stream(
    subject: Subject, sink: NatsSink, streams: Streams, found: StreamConfig | TailraceError | None
) -> Iterator[Check]:
    if isinstance(found, TailraceError):
        yield subject.failed("stream", found)
    elif found is None and sink.create_stream is not None:
        yield subject.ok("stream", f"{sink.stream} will be created")
    elif found is None:
        wanted = take_hint(sink.stream, streams.subject.pattern)
        yield subject.fail(
            "stream", f"{sink.stream or 'no stream for the subject'} does not exist", f"make it: {wanted}"
        )
    elif problem := streams.problem(found):
        yield subject.fail("stream", problem, f"`nats stream edit {found.name}`, or name another stream or subject")
    else:
        yield subject.ok("stream", f"{found.name} takes {', '.join(found.subjects or [])}")
        for warning in streams.warnings(found, sink.repeat_s()):
            yield subject.warn("duplicate_window", warning, "make the stream's duplicate_window longer")
