"""NATS JetStream, through nats-py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import ByteSize, Dsn, Duration, Model, Secret, Template
from tailrace.contracts import Check, Delivery, LetterRecord, LetterTemplate, RecordSink, Span, Subject
from tailrace.sinks.nats.check import check_server
from tailrace.sinks.nats.connection import Access, TlsFiles, ask
from tailrace.sinks.nats.letters import LetterSubject
from tailrace.sinks.nats.streams import RETRY_S, NewStream, Streams
from tailrace.sinks.nats.subjects import SubjectTemplate, checked_template, subject_template
from tailrace.sinks.nats.writer import NatsWriter

_SCHEMES = ("nats", "tls")


class Tls(Model):
    """TLS of every connection. A server that offers none is refused."""

    root_cert: Annotated[Path | None, Field(description="Certificate authorities to trust. Absent: the system's.")] = (
        None
    )
    cert: Annotated[Path | None, Field(description="Client certificate.")] = None
    key: Annotated[Path | None, Field(description="Key of the client certificate. Absent: it is in `cert`.")] = None
    verify: Annotated[bool, Field(description="Whether the server must prove who it is.")] = True
    handshake_first: Annotated[
        bool,
        Field(description="Whether TLS begins before the server says anything, as its `handshake_first` asks for."),
    ] = False


class CreateStream(Model):
    """How the stream is made if it is missing. One that is there is left as it is."""

    subjects: Annotated[
        tuple[str, ...],
        Field(description="What it takes. Absent: what the sink publishes to.", examples=[["orders.>"]]),
    ] = ()
    replicas: Annotated[int, Field(ge=1, le=5, description="On how many servers it is kept.")] = 1
    storage: Annotated[Literal["file", "memory"], Field(description="Where it is kept.")] = "file"
    max_age: Annotated[
        Duration | None, Field(description="How long messages stay. Absent: for ever.", examples=["7d"])
    ] = None
    max_bytes: Annotated[
        ByteSize | None,
        Field(gt=0, description="The size at which the oldest messages go. Absent: none.", examples=["10GiB"]),
    ] = None
    duplicate_window: Annotated[
        Duration, Field(description="How long it remembers ids, which is how long it absorbs repeats.")
    ] = timedelta(minutes=2)


def _reachable(url: Dsn) -> Dsn:
    for server in url.get_secret_value().split(","):
        scheme, there, host = server.strip().partition("://")
        if not (host if there else scheme) or (there and scheme not in _SCHEMES):
            message = "each server is `nats://HOST:PORT` or `tls://HOST:PORT`"
            hint = "write one or more, with commas between them"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
    return url


class NatsSink(RecordSink):
    """Publishes one message per change to a JetStream stream, and is done when the stream has acknowledged each.

    Delivery is at least once. `Nats-Msg-Id` is the event id, which is the same in every repeat: the stream absorbs a
    repeat that comes within its `duplicate_window`, be it of a request or of a whole batch after a crash. A later one
    is in the stream twice, with the same id, and consumers drop what they know; the status warns of a window that is
    shorter than the time a failed batch may take to come again. Where the window ends in the middle of a repeat, the
    stream would take an older change of a row and absorb its newer ones: the sink waits until it forgets the rest too.
    A stream remembers ids whatever the subject: two sinks that publish the same changes need a stream each.

    Changes of one row are in order in the stream, also where acknowledgements are lost or the stream refuses a message
    for a moment: a row has one message on its way at a time, while up to 1024 of others are. With a `key` of its own,
    equal keys are in order too. Inserts into a table without a key are in order only as long as nothing fails; its
    other changes, and truncates, wait for all before them and hold up all behind them.

    The headers of a message are `Nats-Msg-Id`, `df-key` (the key, where there is one), `Nats-Expected-Stream` with
    `stream`, and those that processors said. A value that fills a hole of `subject` stays within its token: white
    space, control characters and `. * > % $` are percent-encoded. A change whose `subject` cannot be filled, or that
    no stream takes, is `sink.unroutable`; one larger than the server's `max_payload`, or with a header that cannot be
    sent as it is, `sink.rejected`. Without `create_stream` the stream must be there and take the subject.
    """

    url: Annotated[
        Dsn,
        AfterValidator(_reachable),
        Field(
            description="The servers of one cluster, with commas between them. `tls://` asks for TLS.",
            examples=["nats://nats-1:4222,nats://nats-2:4222"],
        ),
    ]
    subject: Annotated[
        Template,
        AfterValidator(checked_template),
        Field(description="The subject of each message.", examples=["orders.${source.table}"]),
    ]
    key: Annotated[
        Template | None,
        Field(
            description="The key in the header `df-key`. Absent: the row's primary key, as JSON text.",
            examples=["${after.customer_id}"],
        ),
    ] = None
    stream: Annotated[
        str | None,
        Field(
            pattern=r"^[^\s.*>/\\]+$",
            description="The stream that must take the messages. Absent: any that takes the subject.",
            examples=["ORDERS"],
        ),
    ] = None
    create_stream: Annotated[
        CreateStream | None, Field(description="How `stream` is made if it is missing; absent: it is not.")
    ] = None
    dlq_subject: Annotated[
        LetterTemplate | None,
        AfterValidator(lambda text: text if text is None else checked_template(text)),
        Field(
            description="The subject that gets each new dead letter too, with headers that say why. It needs `journal` "
            "and a stream that takes it: with `create_stream` that is `STREAM_DLQ`, made like it. Absent: none does.",
            examples=["dlq.orders.${source.table}"],
        ),
    ] = None
    send_timeout_secs: Annotated[
        float, Field(gt=0, description="Seconds without an acknowledgement after which the batch is tried again.")
    ] = 5
    batch_timeout_secs: Annotated[
        float, Field(gt=0, description="Seconds that a task's part of a batch may take before it is tried again.")
    ] = 30
    connect_timeout_secs: Annotated[
        float, Field(gt=0, description="Seconds that connecting, and a question about a stream, may take.")
    ] = 10
    username: Annotated[str | None, Field(min_length=1, description="User name; goes with `password`.")] = None
    password: Annotated[Secret | None, Field(description="Its password.")] = None
    token: Annotated[Secret | None, Field(description="A token, instead of user and password.")] = None
    nkey_file: Annotated[Path | None, Field(description="A file with the seed of an nkey, instead.")] = None
    credentials_file: Annotated[Path | None, Field(description="A file with a JWT and its nkey, instead.")] = None
    tls: Annotated[Tls | None, Field(description="TLS options. Absent: TLS as the server and `url` say.")] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        logins = [self.username or self.password, self.token, self.nkey_file, self.credentials_file]
        if sum(each is not None for each in logins) > 1:
            raise _contradiction("there are several logins", "use one of username, token, nkey_file, credentials_file")
        if (self.username is None) != (self.password is None):
            raise _contradiction("`username` and `password` go together", "give both, or neither")
        if self.create_stream is not None and self.stream is None:
            raise _contradiction("`create_stream` needs the name of the stream", "add `stream`")
        if self.dlq_subject == self.subject:
            raise _contradiction(
                "`dlq_subject` is a subject of its own", f"use another one, such as dlq.{self.subject}"
            )
        return self

    def columns(self) -> tuple[str, ...]:
        return ("event_id", "op", "schema", "table", "key", "position")

    def routes(self) -> dict[str, str]:
        holes = self._subject().holes()
        return holes if self.key is None else {**holes, "record_key": self.key}

    def routed(self) -> dict[str, str]:
        return {"subject": "subject", "record_key": "key", "record_headers": "headers"}

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        yield from check_server(subject, self, delivery)

    def prepare(self, delivery: Delivery) -> None:
        for streams in (self.streams(), self.letter_streams()):
            if streams is not None:
                ask(self.access(delivery), streams.ensure, delivery.ending)

    def warnings(self, delivery: Delivery) -> tuple[str, ...]:
        found = ask(self.access(delivery), self.streams().look, delivery.ending)
        return () if found is None else self.streams().warnings(found, self.repeat_s())

    def open(self, delivery: Delivery, span: Span, task: int) -> NatsWriter:
        return NatsWriter(
            access=self.access(delivery),
            span=span,
            subject=self._subject(),
            stream=self.stream,
            patience=self.send_timeout_secs,
            seconds=self.batch_timeout_secs,
            ending=delivery.ending,
        )

    def publishes_letters(self) -> bool:
        return self.dlq_subject is not None

    def publish_letters(self, delivery: Delivery, letters: Sequence[LetterRecord]) -> None:
        assert self.dlq_subject is not None
        subject = LetterSubject(self.id, self.dlq_subject, self._destination, self.send_timeout_secs)
        ask(self.access(delivery), lambda client: subject.publish(client, letters), delivery.ending)

    def _destination(self, letter: LetterRecord) -> str | None:
        """The subject that the letter's record was for."""
        row, subject = letter.row, self._subject()
        known = subject.static is not None or subject.holes().keys() <= row.keys()
        said: str | None = row.get("subject")
        return said or (subject.filled(row) if known else None)

    def access(self, delivery: Delivery) -> Access:
        """Servers and login, secrets in the clear."""
        secrets = {"password": self.password, "token": self.token}
        files = {"nkeys_seed": self.nkey_file, "user_credentials": self.credentials_file}
        login = {name: secret.get_secret_value() for name, secret in secrets.items() if secret is not None}
        login |= {name: str(path) for name, path in files.items() if path is not None}
        if self.username is not None:
            login["user"] = self.username
        return Access(
            sink=self.id,
            name=f"tailrace-{delivery.pipeline}-{self.id}",
            servers=tuple(server.strip() for server in self.url.get_secret_value().split(",")),
            login=tuple(sorted(login.items())),
            tls=None
            if self.tls is None
            else TlsFiles(self.tls.root_cert, self.tls.cert, self.tls.key, self.tls.verify, self.tls.handshake_first),
            patience=self.connect_timeout_secs,
        )

    def streams(self) -> Streams:
        """What it wants of the server's streams."""
        return Streams(self.id, self._subject(), self.stream, _new_stream(self.create_stream))

    def letter_streams(self) -> Streams | None:
        """What it wants of them for dead letters."""
        if self.dlq_subject is None:
            return None
        make = _new_stream(self.create_stream)
        name = None if make is None else f"{self.stream}_DLQ"
        template = subject_template(self.dlq_subject)
        return Streams(self.id, template, name, None if make is None else replace(make, subjects=()))

    def repeat_s(self) -> float:
        """Seconds after which a batch that failed comes again at the latest, unless something is down for longer."""
        return self.batch_timeout_secs + (self.retry.max_wait_seconds or RETRY_S) + self.connect_timeout_secs

    def _subject(self) -> SubjectTemplate:
        return subject_template(self.subject)


def _new_stream(make: CreateStream | None) -> NewStream | None:
    if make is None:
        return None
    return NewStream(
        subjects=make.subjects,
        replicas=make.replicas,
        memory=make.storage == "memory",
        max_age=0 if make.max_age is None else make.max_age.total_seconds(),
        max_bytes=-1 if make.max_bytes is None else make.max_bytes,
        duplicate_window=make.duplicate_window.total_seconds(),
    )


def _contradiction(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
