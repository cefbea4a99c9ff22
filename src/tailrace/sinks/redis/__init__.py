"""Redis and Valkey: changes as entries of streams, or rows as keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Dsn, Duration, Reference, Secret, Template, parse_template
from tailrace.contracts import Check, Delivery, RecordSink, Span, Subject
from tailrace.sinks.redis.address import Access, Address, SentinelLogin, Tls, parse_address
from tailrace.sinks.redis.check import check_servers
from tailrace.sinks.redis.connection import connected
from tailrace.sinks.redis.entries import Entries
from tailrace.sinks.redis.rows import Rows
from tailrace.sinks.redis.writer import Form, RedisWriter

_TRIMS = {"approximate": "~", "exact": "="}
_NEEDED = {"stream": "stream"}
_ONLY_STREAMS = ("stream", "maxlen")
_ONLY_KEYS = ("ttl",)
LAST_WAIT_S = 2.0
"""How long a run that ends still waits for a server that says nothing."""


def _checked_uri(uri: Dsn) -> Dsn:
    parse_address(uri.get_secret_value())
    return uri


class RedisSink(RecordSink):
    """Adds one entry per change to a stream, or keeps one key per row.

    A repeat adds nothing. Entries are added by a script in the server, which moves the sink's mark in that stream in
    the same step and skips what is below it: delivery is exactly once, whatever dies at whatever moment, as far as the
    server keeps what it acknowledged. It does with `appendonly yes` and `appendfsync always`. Otherwise a crash of the
    server loses its last writes, marks and entries alike; so may a failover, because replicas follow asynchronously:
    changes that were acknowledged and not yet copied are lost. All go through one task, in the order of the log.

    An entry has the fields `event_id`, `idempotency_key` (the same), `df-event` (the record), `df-key` (its key, where
    it has one) and those that processors say as headers.

    With `mode: set` or `hset` a key holds the newest version of its row, and a delete deletes it; with `del` every
    change of a row deletes its key. Marks keep a repeat from going back in time here too. A key never holds half a row:
    where the source did not send a large value that did not change, `hset` keeps the field it has, and where there is
    none, as with `set` of a row, the key is deleted. A truncate does not name its rows: see `truncates`.

    A record that is refused keeps no other back. Where the sink stops for it and a later attempt can write it, it is
    added then, once; a key has the newest version of its row in any case. The same goes for dead letters that are
    delivered again.

    Marks are keys whose names begin with `tailrace:`. A `key` or `stream` that a change cannot fill is
    `sink.unroutable`; a text larger than the server takes is `sink.rejected`.
    """

    uri: Annotated[
        Dsn,
        Field(
            description="`redis://[user:password@]host[:port][/database]`, `rediss://` for TLS; hosts of a cluster are "
            "joined with commas. `redis+sentinel://host:port,host:port/service[/database]`: the master that Sentinels "
            "know by that name; `rediss+sentinel://` with TLS.",
            examples=["redis://localhost:6379"],
        ),
        AfterValidator(_checked_uri),
    ]
    mode: Annotated[
        Literal["stream", "set", "hset", "del"],
        Field(
            description="`stream`: entries of a stream. `set`: a key's text is the row; `hset`: a key's fields are its "
            "columns; `del`: the key of a changed row is deleted."
        ),
    ] = "stream"
    stream: Annotated[
        Template | None,
        Field(min_length=1, description="With `mode: stream`: the stream of each record.", examples=["orders:cache"]),
    ] = None
    key: Annotated[
        Template | None,
        Field(
            min_length=1,
            description="With `mode: stream`: the record's key; absent: the row's primary key, as JSON text. Else: "
            "the key that a row has in Redis; of columns it may name those of the row's key, which deletes have too.",
            examples=["orders:${key.id}"],
        ),
    ] = None
    value: Annotated[
        Literal["row", "record"],
        Field(description="With `mode: set`: the row as JSON, or the record in its envelope."),
    ] = "row"
    ttl: Annotated[
        Duration | None, Field(description="With `set` and `hset`: how long a key lives. Absent: for ever.")
    ] = None
    truncates: Annotated[
        Literal["refuse", "keep"],
        Field(
            description="With `set`, `hset` and `del`: `refuse` a truncate, for somebody to see to the keys of its "
            "rows; or `keep` these, as a `ttl` may allow."
        ),
    ] = "refuse"
    maxlen: Annotated[
        int | None, Field(ge=1, description="With `stream`: most entries of a stream; older ones go. Absent: all stay.")
    ] = None
    trim: Annotated[
        Literal["approximate", "exact"],
        Field(description="How `maxlen` is kept: `approximate` leaves a few more, which is quicker."),
    ] = "approximate"
    cluster: Annotated[bool, Field(description="Whether the hosts are members of a cluster.")] = False
    username: Annotated[str | None, Field(description="User of ACL, instead of one in `uri`.")] = None
    password: Annotated[Secret | None, Field(description="Password, instead of one in `uri`.")] = None
    sentinel: Annotated[SentinelLogin | None, Field(description="Login of the Sentinels themselves.")] = None
    tls: Annotated[Tls, Field(description="TLS options.")] = Tls()
    send_timeout_secs: Annotated[
        float, Field(gt=0, description="Seconds without an answer after which the batch is tried again.")
    ] = 5
    batch_timeout_secs: Annotated[
        float,
        Field(gt=0, description="Seconds after which a batch lets others work. It goes on from where it is."),
    ] = 30
    connect_timeout_secs: Annotated[float, Field(gt=0, description="Seconds that connecting may take.")] = 10

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        streams = self.mode == "stream"
        needed = _NEEDED.get(self.mode, "key")
        if getattr(self, needed) is None:
            raise _refused(f"`mode: {self.mode}` needs `{needed}`", f"add `{needed}`")
        for name in _ONLY_KEYS if streams else _ONLY_STREAMS:
            if getattr(self, name) is not None:
                raise _refused(f"`{name}` means nothing with `mode: {self.mode}`", f"leave out `{name}`")
        if not streams:
            _refuse_unsteady(self.key or "")
        return self

    @model_validator(mode="after")
    def _fits_its_servers(self) -> Self:
        address = self.address
        if self.cluster and (address.service is not None or address.database):
            raise _refused("a cluster has neither Sentinels nor databases", "write redis://HOST:PORT,HOST:PORT")
        if len(address.hosts) > 1 and not self.cluster and address.service is None:
            raise _refused("the URI names several hosts", "set `cluster: true`, or begin it with redis+sentinel://")
        if self.sentinel is not None and address.service is None:
            raise _refused("`sentinel` is for Sentinels", "begin the URI with redis+sentinel://, or leave it out")
        if self.tls != Tls() and not address.encrypted:
            raise _refused("`tls` is for connections with TLS", "begin the URI with rediss")
        if (self.username or self.password) and (address.username or address.password):
            raise _refused("a login is in `uri` and beside it", "say it once")
        return self

    @property
    def address(self) -> Address:
        """What `uri` says."""
        return parse_address(self.uri.get_secret_value())

    @property
    def keeps(self) -> Literal["events", "state"]:  # type: ignore[override]
        return "events" if self.mode == "stream" else "state"

    def columns(self) -> tuple[str, ...]:
        common = ("seq", "schema", "table", "key", "position", "event_id")
        return common if self.mode == "stream" else (*common, "op", "after", "unchanged")

    def wants_value(self) -> bool:
        return self.mode == "stream" or (self.mode == "set" and self.value == "record")

    def routes(self) -> dict[str, str]:
        routes = {"stream": self.stream} if self.stream is not None and self.static_stream() is None else {}
        return routes if self.key is None else {**routes, "record_key": self.key}

    def routed(self) -> dict[str, str]:
        if self.mode == "stream":
            return {"stream": "stream", "record_key": "key", "record_headers": "headers"}
        return {"record_key": "key"}

    def tasks(self) -> int:
        return 1

    def static_stream(self) -> str | None:
        """The stream, where every record goes to the same one."""
        match parse_template(self.stream or ""):
            case (str(name),):
                return name
            case _:
                return None

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_servers(subject, self, delivery)

    def prepare(self, delivery: Delivery) -> None:
        with connected(self.access(delivery), self.id) as servers:
            for master in servers.masters():
                master.ping()

    def mark(self, delivery: Delivery, log_id: str) -> int:
        with connected(self.access(delivery), self.id) as servers:
            [mark] = servers.numbers([self._mark(delivery, log_id)])
            return mark

    def open(self, delivery: Delivery, span: Span, task: int) -> RedisWriter:
        mark = self._mark(delivery, span.log_id)
        form = self._form(mark.removeprefix("tailrace:"))
        refused, patience = _refused_key(mark), self.batch_timeout_secs
        return RedisWriter(self.id, self.access(delivery), form, refused, patience, letters=bool(span.letters))

    def commit(self, delivery: Delivery, span: Span, receipts: list[str]) -> None:
        if span.letters:
            return
        with connected(self.access(delivery), self.id) as servers:
            mark = self._mark(delivery, span.log_id)
            servers.finish(mark, span.end, _refused_key(mark))

    def access(self, delivery: Delivery) -> Access:
        """How the servers are reached."""
        address = self.address
        login = (self.username or address.username, _plain(self.password) or address.password)
        watch = (None, None) if self.sentinel is None else (self.sentinel.username, _plain(self.sentinel.password))
        most = LAST_WAIT_S if delivery.ending() else float("inf")
        times = (min(self.connect_timeout_secs, most), min(self.send_timeout_secs, most))
        return Access(address, self.cluster, login, watch, self.tls, *times)

    def _mark(self, delivery: Delivery, log_id: str) -> str:
        """The key of the mark that `commit` moves. Those of streams and slots have names of their own."""
        return f"tailrace:{delivery.pipeline}/{self.id}/{log_id}"

    def _form(self, owner: str) -> Form:
        if self.mode == "stream":
            trim = ("", 0) if self.maxlen is None else (_TRIMS[self.trim], self.maxlen)
            return Entries(owner, self.static_stream(), self.stream or "", trim)
        text: Literal["after", "value"] = "value" if self.wants_value() else "after"
        ttl = 0 if self.ttl is None else max(1, int(self.ttl.total_seconds() * 1000))
        return Rows(owner, self.mode, self.key or "", text, ttl, self.truncates == "refuse")


def _refused_key(mark: str) -> str:
    return f"{mark}:refused"


def _refuse_unsteady(template: str) -> None:
    """A row's key in Redis must be the same for all its changes, the delete included."""
    for part in parse_template(template):
        match part:
            case Reference(("before" | "after" as image, name, *_)):
                hint = f"use `${{key.{name}}}`, if it is in the table's key"
                raise _refused(f"not every change has `{image}.{name}`: a delete would miss its key", hint)
            case Reference(("op" | "event_id", *_) as path):
                raise _refused(f"`{path[0]}` tells no row from another", "use `${key.COLUMN}`")
            case _:
                pass


def _plain(secret: Secret | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
