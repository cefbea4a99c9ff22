"""PostgreSQL: logical replication with pgoutput. This file is its configuration; `stream` is the open source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tailrace.config import Dsn, Model, Secret

if TYPE_CHECKING:
    from tailrace.capture.postgres.stream import PostgresStream
    from tailrace.control import Store

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

    on_schema_drift: Annotated[
        Literal["adapt", "halt"],
        Field(
            description="What to do when a captured table's columns or key change: go on with the new version, or stop "
            "before the first change that has it."
        ),
    ] = "adapt"

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

    def open(self, memory_bytes: int, group_commit_s: float, store: Store | None = None) -> PostgresStream:
        """Connect and become the reader of the slot. Loads the compiled decoder first. Without a `store`, DDL from
        while nothing ran is found only as far as rows tell of it."""
        from tailrace.capture.postgres.stream import PostgresStream

        return PostgresStream(self, memory_bytes, group_commit_s, store)

    def current_position(self) -> str:
        """Up to where the server has made commits durable by now."""
        from tailrace.capture.postgres.catalog import PostgresCatalog

        return PostgresCatalog(self.conninfo()).current_position()

    @staticmethod
    def is_past(position: str, other: str) -> bool:
        """Whether `position` is at or after `other`."""
        from tailrace.capture.postgres.messages import lsn_number

        return lsn_number(position) >= lsn_number(other)

    def _default_name(self) -> str:
        return ("tailrace_" + re.sub(r"[^a-z0-9_]", "_", self.id.lower()))[:_NAME_LENGTH]
