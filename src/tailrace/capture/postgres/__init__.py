"""PostgreSQL: logical replication with pgoutput. This file is its configuration; `stream` is the open source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tailrace.config import Dsn, Duration, Model, Secret

if TYPE_CHECKING:
    from tailrace.capture.postgres.deployment import Part
    from tailrace.capture.postgres.stream import PostgresStream

_NAME_LENGTH = 63


class Tls(Model):
    """TLS of every connection to the database; the names and meanings are libpq's."""

    mode: Annotated[
        Literal["disable", "prefer", "require", "verify-ca", "verify-full"],
        Field(description="libpq's sslmode. `verify-full` also checks the host name."),
    ] = "prefer"
    root_cert: Annotated[Path | None, Field(description="Certificate authorities to trust (sslrootcert).")] = None
    cert: Annotated[Path | None, Field(description="Client certificate (sslcert).")] = None
    key: Annotated[Path | None, Field(description="Key of the client certificate (sslkey).")] = None


class Outbox(Model):
    """Which changes are messages of an application: they get the header `tailrace.outbox`."""

    prefixes: Annotated[
        tuple[str, ...],
        Field(description="Prefixes of `pg_logical_emit_message`; `*` for any part.", examples=[["outbox", "mail.*"]]),
    ] = ()
    tables: Annotated[
        tuple[str, ...],
        Field(description="Captured tables whose inserts are messages, as in `tables`.", examples=[["public.outbox"]]),
    ] = ()


class PostgresSource(Model):
    """Captures every committed change of the listed tables of one PostgreSQL database (15 or newer)."""

    id: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            max_length=_NAME_LENGTH,
            description="Unique name of the source: it names the change log. Pipelines with an equal source share it.",
            examples=["shop"],
        ),
    ]
    dsn: Annotated[
        Dsn,
        Field(
            description="Connection string, as a URL or key=value pairs; everything libpq knows may stand in it.",
            examples=["postgresql://cdc:secret@db.example.com:5432/shop"],
        ),
    ]
    password: Annotated[
        Secret | None,
        Field(description="The password, where it should not stand in the DSN.", examples=["secret"]),
    ] = None
    tls: Annotated[Tls | None, Field(description="TLS options. Absent: what the DSN says.")] = None
    tables: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Tables to capture: `schema.table`, with `*` for any part of a name; a name without a "
            "schema matches in every schema.",
            examples=[["public.orders", "billing.*"]],
        ),
    ]
    slot: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9_]{1,63}$",
            description="Replication slot, created when missing. Absent: `tailrace_` and the id.",
            examples=["tailrace_shop"],
        ),
    ] = None
    publication: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=_NAME_LENGTH,
            description="Publication, created and kept up when missing; an existing one of yours is used as it is. "
            "Absent: `tailrace_` and the id.",
            examples=["tailrace_shop"],
        ),
    ] = None

    heartbeat: Annotated[
        Duration,
        Field(
            description="While the captured tables are idle and others write WAL, a logical message is emitted this "
            "often, so that the slot moves on. `0s`: never.",
        ),
    ] = timedelta(seconds=10)

    outbox: Annotated[Outbox, Field(description="Changes to tag for the outbox.")] = Outbox()

    @property
    def connector(self) -> str:
        """How envelopes name this kind of source."""
        return "postgresql"

    @property
    def slot_name(self) -> str:
        return self.slot or self._default_name()

    @property
    def publication_name(self) -> str:
        return self.publication or self._default_name()

    def conninfo(self) -> str:
        """The connection string with password and TLS options; a secret as a whole."""
        from psycopg.conninfo import make_conninfo

        extra: dict[str, str] = {}
        if self.password is not None:
            extra["password"] = self.password.get_secret_value()
        if self.tls is not None:
            files = {"sslrootcert": self.tls.root_cert, "sslcert": self.tls.cert, "sslkey": self.tls.key}
            extra |= {"sslmode": self.tls.mode} | {name: str(path) for name, path in files.items() if path}
        return make_conninfo(self.dsn.get_secret_value(), **extra) if extra else self.dsn.get_secret_value()

    def open(self, memory_bytes: int, group_commit_s: float) -> PostgresStream:
        """Connect and become the reader of the slot. Loads the compiled decoder first."""
        from tailrace.capture.postgres.stream import PostgresStream

        return PostgresStream(self, memory_bytes, group_commit_s)

    def current_position(self) -> str:
        """Up to where the server has made commits durable by now."""
        from tailrace.capture.postgres.catalog import PostgresCatalog

        return PostgresCatalog(self.conninfo()).current_position()

    def deploy(self, resume: Mapping[str, str] | None) -> list[Part]:
        """Make slot and publications ahead of the first run; `resume` is the log's position, if there is a log."""
        from tailrace.capture.postgres import deployment

        return deployment.deploy(self, resume)

    def deployed(self) -> list[Part]:
        """What `undeploy` would remove from the server."""
        from tailrace.capture.postgres import deployment

        return deployment.deployed(self)

    def undeploy(self) -> list[Part]:
        """Remove slot and publications; publications that are not ours stay."""
        from tailrace.capture.postgres import deployment

        return deployment.undeploy(self)

    @staticmethod
    def is_past(position: str, other: str) -> bool:
        """Whether `position` is at or after `other`."""
        from tailrace.capture.postgres.messages import lsn_number

        return lsn_number(position) >= lsn_number(other)

    def _default_name(self) -> str:
        return ("tailrace_" + re.sub(r"[^a-z0-9_]", "_", self.id.lower()))[:_NAME_LENGTH]
