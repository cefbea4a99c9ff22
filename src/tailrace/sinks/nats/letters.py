"""The subject for dead letters: each is published there too, and acknowledged by its stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from tailrace.contracts import LetterRecord
from tailrace.sinks.nats.connection import refused, unavailable
from tailrace.sinks.nats.subjects import escaped
from tailrace.sinks.nats.window import TOO_LARGE, take_hint

_ROOM = len("NATS/1.0\r\n\r\n")


@dataclass(frozen=True)
class LetterSubject:
    """Of one sink. `destination` says which subject a letter's record was for, `patience` how many seconds an
    acknowledgement may take."""

    sink: str
    template: str
    destination: Callable[[LetterRecord], str | None]
    patience: float

    async def publish(self, client: Client, letters: Sequence[LetterRecord]) -> None:
        """Return when a stream has each, one after another. One that is too large goes without its value."""
        context = client.jetstream(timeout=self.patience)
        for each in letters:
            subject, value = each.filled(self.template, escaped), (each.value or "").encode()
            headers = self._headers(each, whole=each.value is not None)
            try:
                if not (
                    _size(headers, value) <= client.max_payload and await self._put(context, subject, value, headers)
                ):
                    await self._put(context, subject, b"", self._headers(each, whole=False))
            except (NoStreamResponseError, NoRespondersError):
                await self._nobody_takes(context, subject)

    def _headers(self, each: LetterRecord, *, whole: bool) -> dict[str, str]:
        """A stream remembers ids whatever the subject: a letter's is another one than its record's, which a replay
        sends."""
        own = {"Nats-Msg-Id": f"dlq-{each.pipeline}-{each.letter.sink}-{each.letter.event_id}"}
        key = {} if each.key is None else {"df-key": " ".join(each.key.split())}
        return {**own, **key, **each.headers(self.destination(each), whole=whole)}

    async def _put(self, context: JetStreamContext, subject: str, value: bytes, headers: dict[str, str]) -> bool:
        """Whether the stream's bound let it in."""
        try:
            await context.publish(subject, value, headers=headers)
        except APIError as error:
            if error.err_code != TOO_LARGE or not value:
                raise
            return False
        return True

    async def _nobody_takes(self, context: JetStreamContext, subject: str) -> None:
        """A stream without a leader for a moment and one that is not there look the same to who publishes."""
        try:
            await context.find_stream_name_by_subject(subject)
        except NotFoundError:
            raise refused(
                f"no stream takes `{subject}`, of dead letters", take_hint(None, subject), self.sink
            ) from None
        raise unavailable(f"the stream of `{subject}` does not answer", self.sink, "check that it has a leader")


def _size(headers: dict[str, str], value: bytes) -> int:
    return len(value) + _ROOM + sum(len(f"{name}: {text}\r\n".encode()) for name, text in headers.items())
