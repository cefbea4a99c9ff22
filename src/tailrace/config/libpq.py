"""How connections to PostgreSQL are configured, by sources and sinks alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tailrace.config.model import Model
from tailrace.config.secret import Dsn, Secret


class Tls(Model):
    """TLS of every connection to the database; the names and meanings are libpq's."""

    mode: Annotated[
        Literal["disable", "prefer", "require", "verify-ca", "verify-full"],
        Field(description="libpq's sslmode. `verify-full` also checks the host name."),
    ] = "prefer"
    root_cert: Annotated[Path | None, Field(description="Certificate authorities to trust (sslrootcert).")] = None
    cert: Annotated[Path | None, Field(description="Client certificate (sslcert).")] = None
    key: Annotated[Path | None, Field(description="Key of the client certificate (sslkey).")] = None


def conninfo(dsn: Dsn, password: Secret | None, tls: Tls | None) -> str:
    """The connection string with password and TLS options; a secret as a whole."""
    from psycopg.conninfo import make_conninfo

    extra: dict[str, str] = {}
    if password is not None:
        extra["password"] = password.get_secret_value()
    if tls is not None:
        files = {"sslrootcert": tls.root_cert, "sslcert": tls.cert, "sslkey": tls.key}
        extra |= {"sslmode": tls.mode} | {name: str(path) for name, path in files.items() if path}
    return make_conninfo(dsn.get_secret_value(), **extra) if extra else dsn.get_secret_value()
