"""Streams: whether there is one for the sink's subjects, what it is like, and making the one that is missing."""

from __future__ import annotations

from dataclasses import dataclass

from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from tailrace.sinks.nats.connection import refused
from tailrace.sinks.nats.subjects import SubjectTemplate, covers, meets
from tailrace.sinks.nats.window import take_hint

_NAME_TAKEN = 10058
RETRY_S = 60.0
"""The longest wait between two attempts, unless the sink's `retry` says another."""


@dataclass(frozen=True)
class NewStream:
    """A stream to make, in the server's own terms; seconds, and -1 for no bound."""

    subjects: tuple[str, ...]
    replicas: int
    memory: bool
    max_age: float
    max_bytes: int
    duplicate_window: float


@dataclass(frozen=True)
class Streams:
    """What a sink wants of a server's streams."""

    sink: str
    subject: SubjectTemplate
    stream: str | None
    new: NewStream | None

    async def ensure(self, client: Client) -> StreamConfig:
        """The stream that takes the sink's records, made if it is missing and may be made."""
        found = await self.look(client)
        if found is None and self.new is not None:
            found = await self._make(client, self.new)
        if found is None:
            what = f"the stream {self.stream} does not exist" if self.stream else "no stream takes the sink's subject"
            raise refused(what, f"make it: {take_hint(self.stream, self.subject.pattern)}", self.sink)
        self._check(found)
        return found

    async def look(self, client: Client) -> StreamConfig | None:
        """The stream as it is; None where there is none."""
        context = client.jetstream(timeout=client.options["connect_timeout"])
        try:
            name = self.stream or await context.find_stream_name_by_subject(self.subject.pattern)
            return (await context.stream_info(name)).config
        except NotFoundError:
            return None

    def problem(self, found: StreamConfig) -> str:
        """Why the stream cannot have the sink's records."""
        if found.no_ack:
            return f"the stream {found.name} does not acknowledge (no_ack)"
        takes = found.subjects or []
        enough = covers if self.subject.static is not None else meets
        if not any(enough(taken, self.subject.pattern) for taken in takes):
            return f"the stream {found.name} takes {', '.join(takes) or 'no subjects'}, not `{self.subject.text}`"
        return ""

    def warnings(self, found: StreamConfig, repeat: float) -> tuple[str, ...]:
        """`repeat`: the seconds after which a batch may come again, while nothing is down for long."""
        if found.duplicate_window >= repeat:
            return ()
        return (
            f"the stream {found.name} remembers ids for {found.duplicate_window:g} s (duplicate_window), and a batch "
            f"that failed may come again {repeat:g} s later: its records are in the stream twice then. Make the window "
            f"longer: nats stream edit {found.name} --dupe-window {repeat:g}s",
        )

    def _check(self, found: StreamConfig) -> None:
        if problem := self.problem(found):
            hint = f"`nats stream edit {found.name}`, or name another stream or subject"
            raise refused(problem, hint, self.sink)

    async def _make(self, client: Client, new: NewStream) -> StreamConfig:
        context = client.jetstream(timeout=client.options["connect_timeout"])
        config = StreamConfig(
            name=self.stream,
            subjects=list(new.subjects or (self.subject.pattern,)),
            num_replicas=new.replicas,
            storage=StorageType.MEMORY if new.memory else StorageType.FILE,
            max_age=new.max_age,
            max_bytes=new.max_bytes,
            duplicate_window=new.duplicate_window,
        )
        try:
            return (await context.add_stream(config)).config
        except APIError as error:
            if error.err_code != _NAME_TAKEN:
                raise
            return (await context.stream_info(self.stream or "")).config
