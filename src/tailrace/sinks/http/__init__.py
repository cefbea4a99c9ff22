"""HTTP: records as requests to an endpoint, one by one or in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Literal

import httpx
import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import MIB, ByteSize, CloudEventsEnvelope, Model, Secret, parse_template
from tailrace.config.template import Expansion, Reference
from tailrace.contracts import Check, Delivery, RecordSink, Span, Subject
from tailrace.sinks.http import bodies
from tailrace.sinks.http.addresses import (
    HttpUrl,
    Origin,
    Parts,
    as_template,
    checked_header,
    checked_url,
    filled_text,
    filled_url,
    is_origin,
    literal,
    origin_of,
    problem_of_header,
    references,
    shown,
)
from tailrace.sinks.http.bodies import Batching, Shape
from tailrace.sinks.http.check import check_endpoint
from tailrace.sinks.http.connection import HttpTls, context_for, reach
from tailrace.sinks.http.logins import BasicAuth, BearerAuth, Sent
from tailrace.sinks.http.writer import HttpWriter, Place


def _url(url: HttpUrl) -> HttpUrl:
    checked_url(url.get_secret_value())
    return url


def _headers(headers: dict[str, Secret]) -> dict[str, Secret]:
    for name, template in headers.items():
        checked_header(name, template.get_secret_value())
    return headers


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for each in origins:
        if not is_origin(each):
            context = {"hint": "write it as https://host or https://host:port"}
            raise PydanticCustomError("config.invalid_value", "not an origin", context)
    return origins


def _batching(value: object) -> object:
    """Truth values are what others call it."""
    return {True: "array", False: "none"}[value] if isinstance(value, bool) else value


_DELIVERED_BY = "tailrace"


class Signature(Model):
    """`HEADER: t=SECONDS,v1=HEX`: the HMAC of the time of sending, a dot and the body, for the endpoint to check."""

    secret: Annotated[Sent, Field(description="The key, which the endpoint has too; never shown.")]
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$", description="The header that carries the signature.")] = (
        "X-Tailrace-Signature"
    )
    algorithm: Annotated[Literal["sha256", "sha512"], Field(description="The hash of the HMAC.")] = "sha256"


class HttpSink(RecordSink):
    """Sends each change as a request, or several in one, and counts an answer of 2xx as delivered.

    Delivery is at least once. A batch that comes again after a crash or an outage repeats requests that the
    endpoint had answered; each carries the header `Idempotency-Key`, the event's id (of several: a hash of their
    ids), which is the same in a repeat of the same records, so that an endpoint that remembers it absorbs the
    repeat. An endpoint should answer 2xx for what it has already.

    A request starts when the one before of its key was answered, in a task that has all changes of the key; up to
    `concurrency` keys are under way. Behind processors the key is what they said. Changes without a key are in
    order for each table, and nothing is under way beside a truncate. After a failed batch all connections are
    closed. HTTP has no way to take a request back: one that timed out may still reach the endpoint late, behind its
    repeat and what followed. Where that matters, the endpoint must compare positions or know ids again.

    400, 409, 411, 412, 413, 414, 422 and 431 refuse a record (`sink.rejected`), as do 404 and 410 where the URL is
    made of its values; in a batch it is found by halving, and all others go on. 408, 421, 423, 425, 429, 5xx (but 501
    and 505), time-outs and broken connections are retried: within the task while others get through, else as the
    whole batch, after a back-off that is as long as `Retry-After` says, up to 10 minutes. Anything else (401, 403, 405,
    a redirect, a certificate that does not fit) stops the sink with `sink.refused`. Redirects are not followed, and
    proxies that the environment names are not used.

    A change that cannot fill `url` is `sink.unroutable`. Values stand percent-encoded in it, and name neither another
    host nor another folder. A header that a change cannot fill is left out.
    """

    url: Annotated[
        HttpUrl,
        Expansion.TEMPLATE,
        Field(
            description="Where requests go. `${…}` may stand behind the host, in the path and the query, for values "
            "that each change fills. Queries are never shown.",
            examples=["https://api.example.com/orders/${key.id}"],
        ),
        AfterValidator(_url),
    ]
    method: Annotated[Literal["POST", "PUT", "PATCH"], Field(description="The method of requests.")] = "POST"
    headers: Annotated[
        dict[str, Annotated[Secret, Expansion.TEMPLATE]],
        Field(
            description="Headers of every request, such as an API key; `${…}` for values that each change fills. They "
            "are never shown.",
            examples=[{"X-Source": "tailrace"}],
        ),
        AfterValidator(_headers),
    ] = Field(default_factory=dict)
    body: Annotated[
        Shape,
        Field(
            description="What a record is. `envelope`: the envelope. `key_value`: `key`, `value` (the envelope) and "
            "`metadata` (`topic`: source, schema and table; `partition`, `offset`: the place in the log; `event_id`)."
        ),
    ] = "envelope"
    batch_mode: Annotated[
        Batching,
        BeforeValidator(_batching),
        Field(
            description="`none`: a request for each record. `array`: a JSON array of records. `ndjson`: records in "
            "lines. `true` is `array`, `false` is `none`.",
            examples=["array"],
        ),
    ] = "none"
    batch_size: Annotated[int, Field(ge=1, description="Records of a request, at most, with a `batch_mode`.")] = 500
    batch_bytes: Annotated[
        ByteSize, Field(gt=0, description="Bytes of records in a request, at most; a larger record is alone.")
    ] = MIB
    concurrency: Annotated[
        int, Field(ge=1, le=256, description="Requests under way at the same time, in each task of a batch.")
    ] = 8
    max_events: Annotated[
        int,
        Field(
            ge=1,
            description="Changes of a batch, at most: what is sent again if the endpoint fails in the middle. Where it "
            "has a rate limit, no more than that allows in its time. A larger transaction is one batch.",
        ),
    ] = 10_000
    auth: Annotated[
        BearerAuth | BasicAuth | None, Field(description="The login of every request.", discriminator="type")
    ] = None
    signature: Annotated[Signature | None, Field(description="How requests are signed.")] = None
    idempotency_header: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9-]+$", description="The header with what a repeat is known by; null: none."),
    ] = "Idempotency-Key"
    tls: Annotated[HttpTls, Field(description="TLS options, for https.")] = HttpTls()
    origins: Annotated[
        tuple[str, ...],
        Field(
            description="Further hosts that processors may send records to, with this sink's headers and login.",
            examples=[["https://eu.example.com"]],
        ),
        AfterValidator(_origins),
    ] = ()
    send_timeout_secs: Annotated[
        float, Field(gt=0, le=600, description="Seconds after which a request for one record is given up.")
    ] = 10
    batch_timeout_secs: Annotated[float, Field(gt=0, le=600, description="The same for a request with several.")] = 30
    connect_timeout_secs: Annotated[
        float, Field(gt=0, le=600, description="Seconds after which a connection is given up.")
    ] = 5

    @model_validator(mode="after")
    def _one_of_each_header(self) -> HttpSink:
        ours = [self.signature.header] if self.signature else []
        ours += ["Authorization"] if self.auth else []
        ours += [self.idempotency_header] if self.idempotency_header else []
        names = [name.lower() for name in (*self.headers, *ours)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            context = {"name": twice, "hint": "leave it out of headers, or rename the other"}
            raise PydanticCustomError("config.invalid_value", "the header `{name}` is set twice", context)
        return self

    def columns(self) -> tuple[str, ...]:
        placed = ("lane",) if self.body == "key_value" else ()
        return ("seq", "op", "schema", "table", "key", "position", "event_id", *placed)

    def routes(self) -> dict[str, str]:
        return {f"hole_{number}": as_template(hole) for number, hole in enumerate(self._holes())}

    def routed(self) -> dict[str, str]:
        return {"record_url": "url", "record_key": "key", "record_headers": "headers"}

    def batch_events(self) -> int:
        return self.max_events

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_endpoint(subject, self)

    def prepare(self, delivery: Delivery) -> None:
        context_for(self.tls)
        reach(self.origin(), self.tls, self.connect_timeout_secs, self.id)

    def open(self, delivery: Delivery, span: Span, task: int) -> HttpWriter:
        return HttpWriter(self, delivery)

    # What a writer asks for.

    def identity(self) -> str:
        """What a client is known by in its process."""
        files = [str(each) for each in (self.tls.root_cert, self.tls.cert, self.tls.key)]
        return json.dumps([self.id, *files, self.tls.verify, self.connect_timeout_secs, self.concurrency])

    def url_parts(self) -> Parts:
        return _parsed(self.url.get_secret_value())

    def origin(self) -> Origin:
        return origin_of(self.url.get_secret_value())

    def allowed_origins(self) -> frozenset[Origin]:
        return frozenset({self.origin(), *map(origin_of, self.origins)})

    def place(self, filling: Sequence[str | None]) -> Place | str:
        """Where records with these values in the templates' holes go; a text says why nowhere."""
        values = dict(zip(self._holes(), filling, strict=True))
        parts = self.url_parts()
        url = filled_url(parts, values)
        if url is None:
            return f"the change gives no URL for `{_shown(parts)}`"
        found = {name: filled_text(each, values) for name, each in self._header_parts().items()}
        headers = {name: value for name, value in found.items() if value is not None}
        bad = next((name for name, value in headers.items() if problem_of_header(name, value)), None)
        if bad is not None:
            return f"the change's value for the header `{bad}` has a line break or another control character"
        return Place(url, tuple(headers.items()), names_record=_names_record(parts))

    def content(self, rows: pa.RecordBatch, delivery: Delivery) -> bytes:
        """The body of a request with these rows."""
        return bodies.joined(bodies.records(rows, self.body, delivery.source), self.batch_mode)

    def request_headers(self, content: bytes, event_ids: Sequence[str], now: int) -> dict[str, str]:
        """The headers that do not depend on where a request goes."""
        cloudevents = isinstance(self.envelope, CloudEventsEnvelope)
        headers = {
            "Accept-Encoding": "identity",
            "Content-Type": bodies.content_type(self.batch_mode, self.body, cloudevents=cloudevents),
            "User-Agent": _DELIVERED_BY,
        }
        if self.idempotency_header is not None:
            headers[self.idempotency_header] = bodies.idempotency_key(event_ids)
        if self.signature is not None:
            secret, algorithm = self.signature.secret.get_secret_value(), self.signature.algorithm
            headers[self.signature.header] = bodies.signature(secret, algorithm, now, content)
        return headers

    def request_timeout(self) -> float:
        return self.send_timeout_secs if self.batch_mode == "none" else self.batch_timeout_secs

    def static_headers(self) -> dict[str, str]:
        """Those that every request has."""
        found = {name: literal(parts) for name, parts in self._header_parts().items()}
        return {name: value for name, value in found.items() if value is not None}

    def login(self) -> httpx.Auth | None:
        return None if self.auth is None else self.auth.login()

    def _header_parts(self) -> dict[str, Parts]:
        return {name: _parsed(each.get_secret_value()) for name, each in self.headers.items()}

    def _holes(self) -> tuple[Reference, ...]:
        return references([self.url_parts(), *self._header_parts().values()])


@cache
def _parsed(template: str) -> Parts:
    return parse_template(template)


def _names_record(parts: Parts) -> bool:
    return any(isinstance(part, Reference) and part.path[0] in ("key", "before", "after") for part in parts)


def _shown(parts: Parts) -> str:
    return shown("".join(part if isinstance(part, str) else as_template(part) for part in parts))
