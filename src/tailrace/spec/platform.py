"""The platform document: where pipelines run, apart from what they do. Everything is optional."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tailrace.backoff import Backoff
from tailrace.config import GIB, MIB, ByteSize, Dsn, Duration, Model, Secret
from tailrace.contracts import SinkRetry
from tailrace.control.place import SCHEMES


class SparkSettings(Model):
    """The Spark session."""

    master: Annotated[str, Field(description="Spark's master.", examples=["local[4]", "spark://host:7077", "yarn"])] = (
        "local[*]"
    )
    driver_memory: Annotated[
        str | None,
        Field(
            pattern=r"^[1-9]\d*[kmgt]$",
            description="Heap of the driver. Absent: Spark's own.",
            examples=["2g"],
        ),
    ] = None
    conf: Annotated[
        dict[str, str],
        Field(
            description="Further Spark settings; they win over Tailrace's own.",
            examples=[{"spark.sql.session.timeZone": "UTC"}],
        ),
    ] = Field(default_factory=dict)

    @field_validator("conf")
    @classmethod
    def _no_speculation(cls, conf: dict[str, str]) -> dict[str, str]:
        if conf.get("spark.speculation", "false").lower() != "false":
            raise PydanticCustomError(
                "config.invalid_value",
                "spark.speculation would run a delivery twice at the same time and break the order of keys",
                {"hint": "leave spark.speculation out"},
            )
        return conf


class RetentionBounds(Model):
    """How much of a log is kept. What a required sink has not read yet is kept in any case (Law 5)."""

    max_bytes: Annotated[ByteSize, Field(ge=1, description="How large the log may be.", examples=["100GiB"])] = 10 * GIB
    max_age: Annotated[Duration, Field(description="How old its changes may be.", examples=["36h"])] = timedelta(days=7)


class LogSettings(Model):
    """The change log of each source."""

    retention: Annotated[RetentionBounds, Field(description="How much is kept.")] = RetentionBounds()
    segment_bytes: Annotated[
        ByteSize, Field(ge=1 * MIB, description="Size of a segment file, at most.", examples=["128MB"])
    ] = 64_000_000
    group_commit: Annotated[
        Duration, Field(description="How long a change may wait to be synced with others.", examples=["20ms"])
    ] = timedelta(milliseconds=50)


class TapSettings(Model):
    """The process that reads a source."""

    memory_bytes: Annotated[
        ByteSize,
        Field(
            ge=1 * MIB,
            description="Memory for changes that are being read; a transaction that needs more goes through the disk.",
            examples=["256MiB"],
        ),
    ] = 64 * MIB


class Retry(Model):
    """How long to wait before the next attempt, after an error that may pass by itself. The wait grows from `initial`
    up to `max`. There is no last attempt, unless a sink's own `retry` says so."""

    initial: Annotated[Duration, Field(description="The first wait.", examples=["500ms"])] = timedelta(seconds=1)
    max: Annotated[Duration, Field(description="The longest wait.", examples=["5m"])] = timedelta(seconds=60)
    multiplier: Annotated[
        float, Field(ge=1, description="What each wait is multiplied by for the next.", examples=[1.5])
    ] = 2.0
    jitter: Annotated[
        float, Field(ge=0, le=1, description="How much of each wait is random, as a share of it.", examples=[0.1])
    ] = 0.2

    def backoff(self, own: SinkRetry | None = None) -> Backoff:
        """The waits, as a sink's `own` settings change them."""
        own = own or SinkRetry()
        initial, longest = self.initial.total_seconds(), self.max.total_seconds()
        return Backoff(
            initial if own.initial_wait_seconds is None else own.initial_wait_seconds,
            longest if own.max_wait_seconds is None else own.max_wait_seconds,
            self.jitter if own.jitter is None else own.jitter,
            multiplier=self.multiplier if own.multiplier is None else own.multiplier,
        )


class Metrics(Model):
    """Where `GET /metrics` is answered, as Prometheus reads it."""

    port: Annotated[int, Field(ge=1, le=65535, description="The port.", examples=[9464])]
    host: Annotated[
        str,
        Field(min_length=1, description="The address to listen on. One that other machines can reach needs a `token`."),
    ] = "127.0.0.1"
    token: Annotated[
        Secret | None,
        Field(
            min_length=1,
            description="What a client must send as its bearer token. Absent: nothing.",
            examples=["secret"],
        ),
    ] = None

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.token is None and not _is_loopback(self.host):
            raise PydanticCustomError(
                "config.invalid_value",
                "metrics on an address that others can reach need a token",
                {"hint": "add `token: ${METRICS_TOKEN}`, or leave `host` out"},
            )
        return self


class Ports(Model):
    """Ports that Tailrace listens on."""

    spark_ui: Annotated[
        int | None,
        Field(
            ge=1,
            le=65535,
            description="Spark's web page, on 127.0.0.1 unless SPARK_LOCAL_IP says otherwise. Absent: off.",
            examples=[4040],
        ),
    ] = None
    metrics: Annotated[
        Metrics | None, Field(description="Metrics of `tailrace run`. Absent: off.", examples=[{"port": 9464}])
    ] = None


class Server(Model):
    """Where `tailrace serve` listens. On an address that others can reach, every request needs a token."""

    host: Annotated[str, Field(min_length=1, description="The address to listen on.", examples=["0.0.0.0"])] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65535, description="The port; `0`: any that is free.", examples=[8443])] = 8080
    hosts: Annotated[
        tuple[str, ...],
        Field(
            description="Names that clients call the server by, besides `localhost`. Requests for other names are "
            "refused, so that a page of elsewhere cannot talk to it through a visitor's browser.",
            examples=[["cdc.acme.example"]],
        ),
    ] = ()
    tokens: Annotated[
        Literal["when_open", "always"],
        Field(
            description="`always`: every request needs a token. `when_open`: only where others can reach the address."
        ),
    ] = "when_open"

    @property
    def tokens_required(self) -> bool:
        return self.tokens == "always" or not _is_loopback(self.host)


class StoreSettings(Model):
    """The control store: snapshots, schemas, dead letters, and what was made through the service."""

    url: Annotated[
        Dsn | None,
        Field(
            description="A PostgreSQL database, as a URL with libpq's own parameters, also for TLS. Its tables are in "
            "the schema that `search_path` names. Absent: the file `control.db` in `data_dir`.",
            examples=["postgresql://tailrace@db/tailrace?sslmode=verify-full&options=-csearch_path%3Dtailrace"],
        ),
    ] = None

    @field_validator("url")
    @classmethod
    def _postgres(cls, url: Dsn | None) -> Dsn | None:
        if url is not None and not url.get_secret_value().startswith(SCHEMES):
            raise PydanticCustomError(
                "config.invalid_value",
                "not the URL of a PostgreSQL database",
                {"hint": "write it like postgresql://user@host:5432/database?sslmode=verify-full"},
            )
        return url


class Platform(Model):
    """Where and how pipelines run."""

    api_version: Annotated[
        Literal["tailrace/v1"], Field(alias="apiVersion", description="The version of this document's shape.")
    ] = "tailrace/v1"
    kind: Annotated[Literal["Platform"], Field(description="What this document is.")] = "Platform"
    data_dir: Annotated[
        Path, Field(description="Folder of change logs, checkpoints and progress.", examples=["/var/lib/tailrace"])
    ] = Path("./tailrace-data")
    spark: Annotated[SparkSettings, Field(description="The Spark session.")] = SparkSettings()
    log: Annotated[LogSettings, Field(description="The change logs.")] = LogSettings()
    tap: Annotated[TapSettings, Field(description="The taps.")] = TapSettings()
    retry: Annotated[Retry, Field(description="How long to wait before the next attempt.")] = Retry()
    ports: Annotated[Ports, Field(description="Ports to listen on.")] = Ports()
    server: Annotated[Server, Field(description="The server of `tailrace serve`.")] = Server()
    store: Annotated[StoreSettings, Field(description="The control store.")] = StoreSettings()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
