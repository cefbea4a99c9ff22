"""The task's half of the HTTP sink: rows to requests, several at a time, in order per key."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.backoff import Backoff
from tailrace.contracts import Delivery, Rejected, Written
from tailrace.errors import Action, SinkError, decide
from tailrace.sinks.http.addresses import Origin, origin_of, problem_of_header, problem_of_url, shown
from tailrace.sinks.http.answers import failure, trouble
from tailrace.sinks.http.connection import client_for, discard
from tailrace.sinks.http.lanes import chunks, grouped, key_name, lanes
from tailrace.sinks.isolate import isolated

if TYPE_CHECKING:
    from tailrace.sinks.http import HttpSink

PATIENCE_S = 3.0
"""How long a task that gets nothing through tries again by itself, before the whole batch is put off."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 1.0
_CHUNK_ROWS = 4096
_READ_BYTES = 65_536
_SHOWN_BYTES = 1_000


@dataclass(frozen=True)
class Place:
    """Where a request goes: its URL, and the headers that are its own. `names_record`: the URL is made of a record's
    values, so that not to be found is about the record."""

    url: str
    headers: tuple[tuple[str, str], ...]
    names_record: bool


class _Stopped(Exception):
    """Another lane failed."""


@dataclass
class HttpWriter:
    """Sends every row, and returns when each has its answer."""

    sink: HttpSink
    delivery: Delivery
    _stop: threading.Event = field(default_factory=threading.Event)
    _progressed: float = 0.0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        rejected: list[Rejected] = []
        try:
            with ThreadPoolExecutor(self.sink.concurrency) as pool:
                for batch in batches:
                    for chunk in chunks(batch, max(_CHUNK_ROWS, self._most_rows)):
                        rejected += self._deliver(chunk, pool)
        except BaseException:
            discard(self.sink.identity())
            raise
        return Written(rejected=tuple(rejected))

    @property
    def _most_rows(self) -> int:
        """Of a request."""
        return 1 if self.sink.batch_mode == "none" else self.sink.batch_size

    def _deliver(self, chunk: pa.RecordBatch, pool: ThreadPoolExecutor) -> list[Rejected]:
        """Send the chunk, in parts that do not wait for each other, and wait for them all, also where one fails."""
        useful = -(-chunk.num_rows // self._most_rows)
        parts = lanes(chunk, min(self.sink.concurrency, useful))
        self._progressed = time.monotonic()
        if len(parts) == 1:
            return list(self._send_lane(parts[0]))
        waiting = [pool.submit(self._lane, part) for part in parts]
        failures = [error for each in waiting if (error := each.exception()) and not isinstance(error, _Stopped)]
        if failures:
            raise next((error for error in failures if decide(error) is not Action.RETRY), failures[0])
        return [refused for each in waiting for refused in each.result()]

    def _lane(self, part: pa.RecordBatch) -> list[Rejected]:
        try:
            return list(self._send_lane(part))
        except BaseException:
            self._stop.set()
            raise

    def _send_lane(self, part: pa.RecordBatch) -> Iterator[Rejected]:
        places: list[Place] = []
        kept: list[int] = []
        for row, place in enumerate(self._places(part)):
            if isinstance(place, SinkError):
                yield Rejected(part.slice(row, 1), place)
                continue
            places.append(place)
            kept.append(row)
        part = part if len(kept) == part.num_rows else part.take(pa.array(kept, pa.int64()))
        keys = part.column(key_name(part)).to_pylist()
        values: Any = part.column("value")
        sizes = pc.fill_null(pc.binary_length(values), 0).to_pylist()
        for rows in grouped(places, keys, sizes, rows=self._most_rows, size=self.sink.batch_bytes):
            yield from isolated(_rows_of(part, rows), partial(self._send, places[rows[0]]))

    def _places(self, part: pa.RecordBatch) -> Iterable[Place | SinkError]:
        """Where each row goes, or why it goes nowhere."""
        holes = [part.column(name).to_pylist() for name in self.sink.routes()]
        values = zip(*holes, strict=True) if holes else iter([()] * part.num_rows)
        known: dict[tuple[str | None, ...], Place | str] = {}
        said = [_texts(part, name) for name in ("record_url", "record_headers")]
        for row, (filling, url, headers) in enumerate(zip(values, *said, strict=True)):
            if filling not in known:
                known[filling] = self.sink.place(filling)
            yield self._place(part, row, known[filling], url, headers)

    def _place(
        self, part: pa.RecordBatch, row: int, own: Place | str, url: str | None, headers: str | None
    ) -> Place | SinkError:
        """What the sink's templates say, but for what a processor said."""
        if url is not None:
            problem = problem_of_url(url) or self._foreign(origin_of(url))
            if problem:
                return _unroutable(f"a processor's URL cannot be used: {problem}", _place_of(part, row))
            mine = own.headers if isinstance(own, Place) else ()
            own = Place(url, mine, names_record=True)
        if isinstance(own, str):
            return _unroutable(own, _place_of(part, row))
        if headers is None:
            return own
        more = {name: str(value) for name, value in json.loads(headers).items() if value is not None}
        return _with_headers(own, more, _place_of(part, row))

    def _foreign(self, origin: Origin) -> str | None:
        allowed = self.sink.allowed_origins()
        return None if origin in allowed else f"{origin} is not the sink's own; name it in `origins` to allow it"

    def _send(self, place: Place, rows: pa.RecordBatch) -> None:
        """Deliver all of the rows, or raise. What heals is tried again for as long as somebody gets through."""
        waits = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S, 0.2)
        content = self.sink.content(rows, self.delivery)
        while True:
            if self._stop.is_set():
                raise _Stopped
            error = self._attempt(place, content, rows)
            if error is None:
                self._progressed = time.monotonic()
                return
            wait = waits.next() if error.retry_after is None else error.retry_after
            late = time.monotonic() + wait > self._progressed + PATIENCE_S
            if decide(error) is not Action.RETRY or late or self.delivery.ending():
                raise error
            self._stop.wait(wait)

    def _attempt(self, place: Place, content: bytes, rows: pa.RecordBatch) -> SinkError | None:
        sink, where = self.sink, _place_of(rows, 0, rows.num_rows - 1)
        ids: list[str] = rows.to_pydict()["event_id"]
        told = sink.request_headers(content, ids, int(time.time()))
        headers = _merged(told, dict(place.headers))
        seconds = sink.request_timeout()
        timeout = httpx.Timeout(seconds, connect=sink.connect_timeout_secs)
        client, login = client_for(sink.identity(), sink.tls, sink.concurrency), sink.login()
        until = time.monotonic() + seconds
        try:
            with client.stream(
                sink.method, place.url, content=content, headers=headers, auth=login, timeout=timeout
            ) as response:
                text = _beginning(response, until)
                return failure(response, text, names_record=place.names_record, where=where)
        except httpx.HTTPError as error:
            found = trouble(error, f"{sink.method} {shown(place.url)}", where)
            if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
                raise found from error  # it may have arrived: no repeat before it must be
            return found


def _beginning(response: httpx.Response, until: float) -> str:
    """The start of an answer's body. It is read to its end where that is near, so that the connection can be used
    again; else it is hung up."""
    found = b""
    for piece in response.iter_raw():
        found += piece
        if len(found) > _READ_BYTES or time.monotonic() > until:
            break
    return found[:_SHOWN_BYTES].decode(errors="replace")


def _merged(*headers: Mapping[str, str]) -> httpx.Headers:
    """The later win, however their names are spelled."""
    found = {name.lower(): (name.encode(), value.encode()) for each in headers for name, value in each.items()}
    return httpx.Headers(list(found.values()))


def _with_headers(place: Place, more: Mapping[str, str], where: str) -> Place | SinkError:
    for name, value in more.items():
        problem = problem_of_header(name, value)
        if problem:
            hint = "let the processor say another header"
            return SinkError("sink.rejected", f"the header `{name}` cannot be sent: {problem}", hint=hint, where=where)
    return Place(place.url, (*place.headers, *more.items()), place.names_record)


def _unroutable(message: str, where: str) -> SinkError:
    hint = "use a column that every change of the table has, with plain values, or leave the table out"
    return SinkError("sink.unroutable", message, hint=hint, where=where)


def _rows_of(part: pa.RecordBatch, rows: list[int]) -> pa.RecordBatch:
    if rows[-1] - rows[0] == len(rows) - 1:
        return part.slice(rows[0], len(rows))
    return part.take(pa.array(rows, pa.int64()))


def _texts(part: pa.RecordBatch, name: str) -> list[str | None]:
    """A column that is there behind processors only."""
    column: Any = part.column(name) if name in part.schema.names else None
    return [None] * part.num_rows if column is None else column.to_pylist()


def _place_of(batch: pa.RecordBatch, row: int, more: int = 0) -> str:
    """`schema.table at position`, for errors."""
    names = (batch.column(name)[row].as_py() for name in ("schema", "table", "position"))
    return "{}.{} at {}".format(*names) + (f" and {more} more" if more else "")
