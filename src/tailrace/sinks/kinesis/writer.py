"""The task's half of the Kinesis sink: Arrow batches to calls of PutRecords, each key once in a call."""

from __future__ import annotations

import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from tailrace.config import MIB
from tailrace.contracts import Rejected, Written, never
from tailrace.errors import SinkError
from tailrace.sinks.kinesis.client import (
    LAST_WAIT_S,
    MISSING,
    OF_CONTENT,
    Access,
    Streams,
    client_for,
    code_of,
    discard,
    kinesis_error,
    missing,
    unavailable,
)

_CALL_BYTES = 5 * MIB
_LONGEST_KEY = 256
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """`order`: records with an equal one are in order."""

    row: int
    value: bytes
    key: str
    order: Hashable
    where: str

    @property
    def size(self) -> int:
        return len(self.value) + len(self.key.encode())


class Waiting:
    """Records that are to be sent: of each `order` the first is ready, the others are behind it."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._behind: dict[Hashable, deque[Record]] = {}
        self._ready: deque[Record] = deque()
        for record in records:
            if record.order in self._behind:
                self._behind[record.order].append(record)
            else:
                self._behind[record.order] = deque()
                self._ready.append(record)

    def __bool__(self) -> bool:
        return bool(self._ready)

    def take(self, most: int, most_bytes: int) -> list[Record]:
        """What one call can carry; at least one."""
        taken = [self._ready.popleft()]
        size = taken[0].size
        while self._ready and len(taken) < most and size + self._ready[0].size <= most_bytes:
            taken.append(self._ready.popleft())
            size += taken[-1].size
        return taken

    def done(self, record: Record) -> None:
        """It is stored, or refused: the next of its order is ready."""
        behind = self._behind[record.order]
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[record.order]

    def back(self, records: list[Record]) -> None:
        """They are not stored: they are ready again, before all others."""
        self._ready.extendleft(reversed(records))


@dataclass
class KinesisWriter:
    """Returns when every record that is not refused is stored. Throttling slows it down; what ends it is `patience`
    seconds in which nothing is stored."""

    access: Access
    streams: Streams
    stream: str | None
    template: str
    most: int
    largest: int
    ending: Callable[[], bool] = never
    _pause: float = field(default=_FIRST_PAUSE_S, init=False)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rejected: list[Rejected] = []
        try:
            for batch in batches:
                refused = sorted(self._deliver(batch), key=lambda one: one[0])
                rejected += [Rejected(batch.slice(row, 1), error) for row, error in refused]
        except BaseException:
            discard(self.access)
            raise
        return Written(rejected=tuple(rejected))

    def _deliver(self, batch: pa.RecordBatch) -> Iterator[tuple[int, SinkError]]:
        """Yields the refused, by their rows."""
        by_stream: dict[str, list[Record]] = {}
        for row, fields in enumerate(batch.to_pylist()):
            try:
                stream, record = self._record(row, fields)
            except SinkError as error:
                yield row, error
            else:
                by_stream.setdefault(stream, []).append(record)
        for stream, records in by_stream.items():
            yield from self._send(stream, Waiting(records))

    def _record(self, row: int, fields: dict[str, Any]) -> tuple[str, Record]:
        """The stream and what goes there. Raises `SinkError` for what cannot."""
        where = "{schema}.{table} at {position}".format(**fields)
        stream = fields.get("stream") or self.stream or ""
        if not _NAME.fullmatch(stream):
            text = (
                f"{stream!r} is no name of a stream" if stream else f"the change gives no stream for `{self.template}`"
            )
            hint = "a name has up to 128 letters, digits and `_.-`; use a column that every change of the table has"
            raise SinkError("sink.unroutable", text, hint=hint, where=where)
        said = fields["record_key"] if "record_key" in fields else fields["key"]
        own = (fields["schema"], fields["table"], said) if said == fields["key"] else said
        key = _partition_key(said or fields["event_id"])
        record = Record(row, fields["value"].encode(), key, own if said else fields["event_id"], where)
        if record.size > self.largest:
            text = f"the record has {record.size} bytes with its key; max_record_bytes is {self.largest}"
            hint = "leave large columns out, or raise it together with the stream's own limit (10 MiB at most)"
            raise SinkError("sink.rejected", text, hint=hint, where=where)
        return stream, record

    def _send(self, stream: str, waiting: Waiting) -> Iterator[tuple[int, SinkError]]:
        stored = time.monotonic()
        while waiting:
            call = waiting.take(self.most, max(_CALL_BYTES, self.largest))
            before, reason = len(call), ""
            for outcome in self._put(stream, call):
                reason = outcome.reason or reason
                waiting.back(outcome.again)
                before -= len(outcome.again)
                for record in outcome.done:
                    waiting.done(record)
                yield from ((record.row, error) for record, error in outcome.refused)
            if before:
                stored, self._pause = time.monotonic(), max(_FIRST_PAUSE_S, self._pause / 2)
            if reason:
                self._rest(stream, reason, time.monotonic() - stored)

    def _rest(self, stream: str, reason: str, idle: float) -> None:
        """Wait a little before what was throttled is sent again."""
        if idle > self.access.patience or (idle > LAST_WAIT_S and self.ending()):
            text = f"the stream {stream} took nothing for {idle:.0f} seconds: {reason}"
            raise unavailable(text, self.access.sink, "give it more shards, or capacity on demand")
        time.sleep(self._pause)
        self._pause = min(_LONGEST_PAUSE_S, self._pause * 2)

    def _put(self, stream: str, call: list[Record]) -> Iterator[_Outcome]:
        """One call; in halves where Kinesis refuses it for what it carries, of which nothing is stored then."""
        entries = [{"Data": record.value, "PartitionKey": record.key} for record in call]
        try:
            answer = client_for(self.access).put_records(StreamName=stream, Records=entries)
        except ClientError as error:
            if code_of(error) == MISSING:
                yield self._without_stream(stream, call)
            elif code_of(error) not in OF_CONTENT:
                raise kinesis_error(error, self.access.sink) from None
            elif len(call) == 1:
                hint = "leave large columns out, or change the stream so that it takes it"
                text = f"Kinesis refuses it: {error.response['Error'].get('Message', '')}"
                refused = SinkError("sink.rejected", text, hint=hint, where=call[0].where)
                yield _Outcome(done=call, refused=[(call[0], refused)])
            else:
                yield from self._put(stream, call[: len(call) // 2])
                yield from self._put(stream, call[len(call) // 2 :])
            return
        except BotoCoreError as error:
            raise kinesis_error(error, self.access.sink) from None
        yield _outcome(call, answer["Records"])

    def _without_stream(self, stream: str, call: list[Record]) -> _Outcome:
        """Make it; or, where it is the change that names it, refuse the records."""
        if self.streams.shards is not None:
            self.streams.ensure(stream)
            return _Outcome(again=call, reason="it was just made")
        if stream == self.stream:
            raise missing(stream, self.access.sink)
        lost = missing(stream, "")
        refused = [
            (each, SinkError("sink.unroutable", lost.message, hint=lost.hint, where=each.where)) for each in call
        ]
        return _Outcome(done=call, refused=refused)


@dataclass(frozen=True)
class _Outcome:
    """What became of the records of a call. The `refused` are among those that are `done`."""

    done: list[Record] = field(default_factory=list)
    again: list[Record] = field(default_factory=list)
    refused: list[tuple[Record, SinkError]] = field(default_factory=list)
    reason: str = ""


def _outcome(call: list[Record], answers: list[dict[str, Any]]) -> _Outcome:
    failed = [bool(answer.get("ErrorCode")) for answer in answers]
    reasons = [
        f"{answer['ErrorCode']}: {answer.get('ErrorMessage', '')}" for answer in answers if answer.get("ErrorCode")
    ]
    return _Outcome(
        done=[record for record, again in zip(call, failed, strict=True) if not again],
        again=[record for record, again in zip(call, failed, strict=True) if again],
        reason=reasons[0] if reasons else "",
    )


def _partition_key(text: str) -> str:
    """Kinesis takes 256 characters; a longer key is its hash, the same each time."""
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()
