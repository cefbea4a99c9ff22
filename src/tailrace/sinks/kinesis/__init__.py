"""Amazon Kinesis Data Streams, through boto3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import MIB, ByteSize, Model, Secret, Template, parse_template
from tailrace.contracts import Check, Delivery, RecordSink, Span, Subject
from tailrace.errors import TailraceError
from tailrace.sinks.kinesis.client import Access, Streams
from tailrace.sinks.kinesis.writer import KinesisWriter


class Tls(Model):
    """TLS of every connection. Whether there is any, `endpoint` says."""

    root_cert: Annotated[Path | None, Field(description="Certificate authorities to trust. Absent: boto3's own.")] = (
        None
    )
    cert: Annotated[Path | None, Field(description="Client certificate.")] = None
    key: Annotated[Path | None, Field(description="Key of the client certificate. Absent: it is in `cert`.")] = None
    verify: Annotated[bool, Field(description="Whether the endpoint must prove who it is.")] = True


class CreateStreams(Model):
    """How missing streams are made."""

    shards: Annotated[int, Field(ge=0, description="Shards of each; 0: capacity on demand.")] = 0


class KinesisSink(RecordSink):
    """Puts one record per change, up to 500 in a call, and is done when Kinesis has stored each.

    Delivery is at least once, and Kinesis absorbs no repeat: a batch that is delivered again after a crash or an outage
    is in the stream twice, in the same order, and consumers drop the event ids they know (`native` and `cloudevents`
    envelopes have them).

    Records with equal keys are in order, in one shard: a call carries a key once, since Kinesis promises no order
    within a call and may store any part of it. What it does not store is put again, before all later records of its
    key; a stream that throttles slows the sink down, and only one that stores nothing for `send_timeout_secs` has the
    batch tried again. A row that changes all the time costs a call per change. A call without an answer is given up
    with its connection; what Kinesis should still make of it later, nothing can prevent.

    The partition key is the row's primary key as JSON text, or what `partition_key` says; of one longer than 256
    characters it is the SHA-256. A record without a key (a table that has none, a truncate, a logical message, a
    template with a hole that the change cannot fill) goes to any shard. A change whose `stream_name` cannot be filled,
    or names a stream that is missing and not made, is `sink.unroutable`; a record that is too large `sink.rejected`.
    """

    stream_name: Annotated[
        Template,
        Field(min_length=1, description="The stream of each record.", examples=["shop-${source.table}"]),
    ]
    partition_key: Annotated[
        Template | None,
        Field(
            description="The partition key. Absent: the row's primary key, as JSON text.",
            examples=["${after.customer_id}"],
        ),
    ] = None
    region: Annotated[
        str | None,
        Field(min_length=1, description="The region. Absent: what the environment says.", examples=["eu-central-1"]),
    ] = None
    endpoint: Annotated[
        str | None,
        Field(
            pattern=r"^https?://",
            description="The service's URL. Absent: the region's.",
            examples=["https://vpce-1.kinesis.eu-central-1.vpce.amazonaws.com"],
        ),
    ] = None
    access_key_id: Annotated[
        Secret | None, Field(description="Goes with `secret_access_key`. Absent: the environment's credentials.")
    ] = None
    secret_access_key: Annotated[Secret | None, Field(description="The secret of `access_key_id`.")] = None
    session_token: Annotated[Secret | None, Field(description="The token of temporary credentials.")] = None
    create_streams: Annotated[
        CreateStreams | None, Field(description="How missing streams are made; absent: they are not.")
    ] = None
    batch_size: Annotated[int, Field(ge=1, le=500, description="Records in a call, at most.")] = 500
    max_record_bytes: Annotated[
        ByteSize,
        Field(
            ge=1,
            le=10 * MIB,
            description="The largest record with its key. More than 1 MiB needs a stream that was set so.",
        ),
    ] = 1 * MIB
    send_timeout_secs: Annotated[
        float,
        Field(
            gt=0,
            description="Seconds without an answer, or in which nothing is stored, until the batch is tried again.",
        ),
    ] = 30
    connect_timeout_secs: Annotated[float, Field(gt=0, description="Seconds that connecting may take.")] = 5
    tls: Annotated[Tls | None, Field(description="TLS options. Absent: boto3's own.")] = None

    @model_validator(mode="after")
    def _has_a_whole_login(self) -> Self:
        given = [self.access_key_id is not None, self.secret_access_key is not None]
        if given[0] != given[1] or (self.session_token is not None and not given[0]):
            message = "`access_key_id` and `secret_access_key` go together"
            hint = "give both, or neither; `session_token` only with them"
            raise PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
        return self

    def columns(self) -> tuple[str, ...]:
        return ("event_id", "schema", "table", "key", "position")

    def routes(self) -> dict[str, str]:
        routes = {} if self.static_stream() is not None else {"stream": self.stream_name}
        return routes if self.partition_key is None else {**routes, "record_key": self.partition_key}

    def routed(self) -> dict[str, str]:
        return {"stream": "stream", "record_key": "partition_key"}

    def static_stream(self) -> str | None:
        """The stream, where every record goes to the same one."""
        match parse_template(self.stream_name):
            case (str(name),):
                return name
            case _:
                return None

    def check(self, subject: Subject, delivery: Delivery) -> Iterator[Check]:
        name, streams = self.static_stream(), self._streams(delivery)
        try:
            status = None
            if name is None:
                streams.look()
            else:
                status = streams.status(name)
        except TailraceError as error:
            yield subject.failed("service", error)
            yield subject.skipped("stream", "the service does not answer")
            return
        yield subject.ok("service", self.endpoint or f"Kinesis in {self.region or 'the region of the environment'}")
        made = self.create_streams is not None
        if name is None:
            yield subject.ok("stream", f"{self.stream_name}, {'' if made else 'not '}created when missing")
        elif status is None and not made:
            yield subject.fail("stream", f"{name} does not exist", "make it, or give the sink `create_streams`")
        else:
            yield subject.ok("stream", f"{name} will be created" if status is None else f"{name} is {status}")

    def prepare(self, delivery: Delivery) -> None:
        name, streams = self.static_stream(), self._streams(delivery)
        if name is None:
            streams.look()
        else:
            streams.ensure(name)

    def open(self, delivery: Delivery, span: Span, task: int) -> KinesisWriter:
        return KinesisWriter(
            access=self.access(),
            streams=self._streams(delivery),
            stream=self.static_stream(),
            template=self.stream_name,
            most=self.batch_size,
            largest=self.max_record_bytes,
            ending=delivery.ending,
        )

    def access(self) -> Access:
        """Where the service is and the login, secrets in the clear."""
        tls = self.tls or Tls()
        login = None
        if self.access_key_id is not None and self.secret_access_key is not None:
            token = None if self.session_token is None else self.session_token.get_secret_value()
            login = self.access_key_id.get_secret_value(), self.secret_access_key.get_secret_value(), token
        return Access(
            sink=self.id,
            region=self.region,
            endpoint=self.endpoint,
            login=login,
            root_cert=tls.root_cert,
            cert=tls.cert,
            key=tls.key,
            verify=tls.verify,
            patience=self.send_timeout_secs,
            connect_patience=self.connect_timeout_secs,
        )

    def _streams(self, delivery: Delivery) -> Streams:
        make = self.create_streams
        return Streams(self.access(), None if make is None else make.shards, delivery.ending)
