"""Many records on their way at once, in order per key: what may be sent, and what became of what was."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from tailrace.contracts import Span
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.nats.connection import PASSING, nats_error, refused, unavailable

_MOST = 1024
_MOST_BYTES = 8 * 1024 * 1024

TOO_LARGE = 10054
"""What a stream says of a message that is larger than its bound."""
_OTHER_STREAM = 10060


@dataclass(frozen=True, slots=True)
class Record:
    """A message to be. Records with an equal one of their `keys` are in order; one that is `alone` is in order with all
    others."""

    row: int
    subject: str
    value: bytes
    headers: dict[str, str]
    keys: tuple[Hashable, ...]
    alone: bool
    where: str


@dataclass
class Past:
    """The newest sequence numbers that this process stored for spans before the one it is at, by stream.

    A record that is absorbed as a repeat of something older than these would be found behind changes that come after
    it: that is so where an old part of the log comes again, and its end is still remembered by the server."""

    span: Span = field(default_factory=lambda: Span("", 0, 0))
    newest: dict[str, int] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)

    def enter(self, span: Span) -> None:
        if span.log_id != self.span.log_id or span.start < self.span.start:
            self.newest, self.before = {}, {}
        elif span.start >= self.span.end:
            self.before = dict(self.newest)
        self.span = span


class Window:
    """Sends over one connection. A key has one record on its way at most: whatever becomes of it, none of its later
    ones is stored already. The first failure that is not a record's own ends it for good."""

    def __init__(self, client: Client, sink: str, stream: str | None, past: Past, dynamic: bool) -> None:
        self._client, self._sink, self._stream, self._past, self._dynamic = client, sink, stream, past, dynamic
        self._inbox = client.new_inbox()
        self._on_way: dict[int, Record] = {}
        self._keys: set[Hashable] = set()
        self._bytes = 0
        self._alone = False
        self._number = 0
        self._refused: list[tuple[int, SinkError]] = []
        self._stored: dict[Hashable, tuple[str, int]] = {}
        self._floor: dict[str, int] = {}
        self._waiter: asyncio.Future[None] | None = None
        self.failure: SinkError | None = None
        self.heard = time.monotonic()

    async def open(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._hear)

    def begin(self) -> None:
        """A part of a batch begins."""
        self._stored, self._floor = {}, dict(self._past.before)

    async def send(self, records: Sequence[Record]) -> list[tuple[int, SinkError]]:
        """Return when each record is stored or refused for what it is: those, by their rows."""
        for record in records:
            while self.failure is None and not self._may_go(record):
                await self._change()
            await self._publish(record)
        while self.failure is None and self._on_way:
            await self._change()
        self._raise_failure()
        refused_ones, self._refused = self._refused, []
        return refused_ones

    def fail(self, error: SinkError) -> None:
        """End it. What caused it is kept, what follows from it is not."""
        self.failure = self.failure or error
        self._wake()

    def listen(self) -> None:
        """From now on somebody waits for answers."""
        self.heard = time.monotonic()

    def idle(self) -> float:
        """Seconds since the server last answered."""
        return time.monotonic() - self.heard

    def _may_go(self, record: Record) -> bool:
        if not self._on_way:
            return True
        if record.alone or self._alone:
            return False
        full = len(self._on_way) >= _MOST or self._bytes + len(record.value) > _MOST_BYTES
        return not full and self._keys.isdisjoint(record.keys)

    async def _publish(self, record: Record) -> None:
        self._raise_failure()
        self._number += 1
        self._on_way[self._number] = record
        self._keys.update(record.keys)
        self._bytes += len(record.value)
        self._alone = record.alone
        try:
            await self._client.publish(record.subject, record.value, f"{self._inbox}.{self._number}", record.headers)
        except Exception as error:
            self.fail(nats_error(error, self._sink))
            self._raise_failure()

    async def _hear(self, answer: Msg) -> None:
        number = int(answer.subject.rpartition(".")[2])
        record = self._on_way.get(number)
        if record is None or self.failure is not None:
            return
        self.listen()
        try:
            await self._judge(record, answer)
        except SinkError as error:
            if decide(error) is not Action.SET_ASIDE:
                self.fail(error)
                return
            self._refused.append((record.row, error))
        del self._on_way[number]
        self._keys.difference_update(record.keys)
        self._bytes -= len(record.value)
        self._wake()

    async def _judge(self, record: Record, answer: Msg) -> None:
        """Note that the record is stored, or raise what the answer says against it."""
        if not answer.data:
            raise await self._nobody_takes(record)
        told: dict[str, Any] = json.loads(answer.data)
        if error := told.get("error"):
            raise self._error(record, error)
        stream, sequence = str(told["stream"]), int(told["seq"])
        if not told.get("duplicate"):
            self._past.newest[stream] = sequence
        elif sequence < self._least(record, stream):
            raise self._reordered(stream)
        for key in record.keys:
            self._stored[key] = stream, sequence
        if record.alone:
            self._floor[stream] = sequence

    def _least(self, record: Record, stream: str) -> int:
        """The sequence number behind which the record belongs."""
        known = [self._stored[key] for key in record.keys if key in self._stored]
        if record.alone:
            known += self._stored.values()
        return max([self._floor.get(stream, 0), *(sequence for where, sequence in known if where == stream)])

    def _reordered(self, stream: str) -> SinkError:
        return unavailable(
            f"the stream {stream} has forgotten the beginning of a repeat, and not yet its end: going on now would "
            "leave older changes behind newer ones",
            self._sink,
            "nothing: within its duplicate_window the stream forgets the rest; to wait less, make that shorter",
        )

    async def _nobody_takes(self, record: Record) -> SinkError:
        """A stream that has no leader for a moment and one that is not there look the same to who publishes."""
        try:
            await self._client.jetstream().find_stream_name_by_subject(record.subject)
        except NotFoundError:
            return self._unroutable(record, f"no stream takes `{record.subject}`")
        except Exception as error:
            return nats_error(error, self._sink)
        return unavailable(
            f"the stream of `{record.subject}` does not answer", self._sink, "check that it has a leader"
        )

    def _unroutable(self, record: Record, text: str) -> SinkError:
        hint = take_hint(self._stream, record.subject)
        if self._dynamic:
            return SinkError("sink.unroutable", text, hint=hint, where=record.where)
        return refused(text, hint, self._sink)

    def _error(self, record: Record, error: dict[str, Any]) -> SinkError:
        text, status, number = str(error.get("description")), error.get("code"), error.get("err_code")
        if number == TOO_LARGE:
            hint = "raise the stream's max_msg_size, or leave large columns out"
            return SinkError("sink.rejected", f"the stream refuses it: {text}", hint=hint, where=record.where)
        if number == _OTHER_STREAM:
            return self._unroutable(record, f"`{record.subject}` goes to another stream than {self._stream}")
        if status in PASSING:
            hint = "make room in it, or wait until it has a leader"
            return unavailable(f"the stream cannot take more now: {text}", self._sink, hint)
        return refused(f"the stream refuses it: {text}", "see its message, and `nats stream info`", record.where)

    async def _change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def take_hint(stream: str | None, subject: str) -> str:
    """The command after which a stream takes the subject."""
    return f"`nats stream add {stream or 'NAME'} --subjects '{subject}'` (or `edit`), or give the sink `create_stream`"
