"""Where the servers are: what a URI says, and what the sink's other keys add to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Secret

PORT, SENTINEL_PORT = 6379, 26379
SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_PARTS = 2
"""A sentinel's path has a name and a database."""


class Tls(Model):
    """TLS of every connection, for URIs that begin with `rediss`."""

    verify: Annotated[
        Literal["full", "ca", "none"],
        Field(description="What of the server's certificate is checked: `ca` leaves out its host name."),
    ] = "full"
    root_cert: Annotated[
        Path | None, Field(description="Certificate authorities to trust. Absent: those of the system.")
    ] = None
    cert: Annotated[Path | None, Field(description="Client certificate.")] = None
    key: Annotated[Path | None, Field(description="Key of the client certificate.")] = None


class SentinelLogin(Model):
    """What Sentinels ask for, where they ask."""

    username: Annotated[str | None, Field(description="User of the Sentinels.")] = None
    password: Annotated[Secret, Field(description="Password of the Sentinels.")]


@dataclass(frozen=True)
class Address:
    """What a URI says. `service` is the master's name, where the hosts are Sentinels."""

    hosts: tuple[tuple[str, int], ...]
    encrypted: bool
    service: str | None
    database: int
    username: str | None
    password: str | None = field(repr=False)

    @property
    def told(self) -> str:
        """The address for people."""
        hosts = ", ".join(f"{host}:{port}" for host, port in self.hosts)
        return hosts if self.service is None else f"{self.service} of {hosts}"


@dataclass(frozen=True)
class Access:
    """All that makes a client. Equal ones share it."""

    address: Address
    cluster: bool
    login: tuple[str | None, str | None] = field(repr=False)
    sentinel_login: tuple[str | None, str | None] = field(repr=False)
    tls: Tls
    connect_timeout: float
    send_timeout: float

    def options(self) -> dict[str, Any]:
        """What redis-py is given for every connection."""
        times = {"socket_connect_timeout": self.connect_timeout, "socket_timeout": self.send_timeout}
        return {"protocol": 2, "socket_keepalive": True, **times, **self._tls()}

    def _tls(self) -> dict[str, Any]:
        if not self.address.encrypted:
            return {}
        files = {"ssl_ca_certs": self.tls.root_cert, "ssl_certfile": self.tls.cert, "ssl_keyfile": self.tls.key}
        return {
            "ssl": True,
            "ssl_cert_reqs": "none" if self.tls.verify == "none" else "required",
            "ssl_check_hostname": self.tls.verify == "full",
            **{name: str(path) for name, path in files.items() if path},
        }


def parse_address(uri: str) -> Address:
    """The parts of `redis://[user:password@]host[:port][,…][/database]`, of `rediss://…` (TLS), and of
    `redis+sentinel://[…@]host[:port][,…]/service[/database]`. Raises a validation error, which never shows the URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise _bad("not a URI") from None
    if parts.scheme not in SCHEMES:
        raise _bad("the URI does not begin with " + ", ".join(f"`{scheme}://`" for scheme in SCHEMES))
    if parts.query or parts.fragment:
        raise _bad("the URI has options behind `?` or `#`", "say them with the sink's own keys")
    login, _, places = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    watched = parts.scheme.endswith("+sentinel")
    service, database = _path(parts, watched)
    default = SENTINEL_PORT if watched else PORT
    return Address(
        tuple(_host(place, default) for place in places.split(",")),
        parts.scheme.startswith("rediss"),
        service,
        database,
        unquote(user) or None,
        unquote(password) or None,
    )


def _path(parts: SplitResult, watched: bool) -> tuple[str | None, int]:
    names = [unquote(name) for name in parts.path.strip("/").split("/") if name]
    if watched and not names:
        raise _bad("the URI names no service", "write redis+sentinel://HOST:PORT/SERVICE")
    if len(names) > (_PARTS if watched else 1):
        raise _bad("the URI's path has too many parts")
    service = names.pop(0) if watched else None
    if names and not names[0].isdecimal():
        raise _bad("the database is not a number")
    return service, int(names[0]) if names else 0


def _host(place: str, default: int) -> tuple[str, int]:
    try:
        found = urlsplit(f"//{place}")
        host, port = found.hostname, found.port
    except ValueError:
        raise _bad("a port is not a number") from None
    if not host:
        raise _bad("the URI names no host")
    return host, default if port is None else port


def _bad(message: str, hint: str = "write redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]") -> PydanticCustomError:
    return PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
