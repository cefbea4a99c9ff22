"""Clients of an endpoint: made once per process, thrown away after a failure."""

from __future__ import annotations

import socket
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Annotated

import httpx
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tailrace.config import Model
from tailrace.errors import ConfigError
from tailrace.sinks.http.addresses import Origin
from tailrace.sinks.http.answers import trouble


class HttpTls(Model):
    """How an endpoint's certificate is checked, and ours."""

    root_cert: Annotated[
        Path | None, Field(description="Certificate authorities to trust, a PEM file. Absent: the system's.")
    ] = None
    cert: Annotated[Path | None, Field(description="Client certificate, a PEM file.")] = None
    key: Annotated[Path | None, Field(description="Key of the client certificate; absent: it is in `cert`.")] = None
    verify: Annotated[
        bool, Field(description="Whether the endpoint's certificate and name are checked. `false` is for trials.")
    ] = True

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> HttpTls:
        if self.key is not None and self.cert is None:
            context = {"hint": "add cert, or leave key out"}
            raise PydanticCustomError("config.invalid_value", "a key without its certificate", context)
        return self


_clients: dict[str, httpx.Client] = {}


def client_for(identity: str, tls: HttpTls, connections: int) -> httpx.Client:
    """This process's client of that identity.

    Proxies, logins and certificates that the environment names are left alone; cookies are not kept, redirects not
    followed.
    """
    if identity not in _clients:
        _clients[identity] = httpx.Client(
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            follow_redirects=False,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=False,
            verify=context_for(tls),
        )
    return _clients[identity]


def discard(identity: str) -> None:
    """Close its connections: nothing of a batch may be sent after it was given up."""
    client = _clients.pop(identity, None)
    if client is not None:
        client.close()


def context_for(tls: HttpTls) -> ssl.SSLContext:
    """Raises `ConfigError` for files that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=tls.root_cert)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        message = f"the TLS files of the sink cannot be used: {error}"
        hint = "check the paths in tls, that they can be read, and that each is a PEM file"
        raise ConfigError("config.bad_tls", message, hint=hint) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def reach(origin: Origin, tls: HttpTls, seconds: float, where: str) -> None:
    """Connect, send nothing, and hang up. Raises the `SinkError` that a request would."""
    context = context_for(tls) if origin.scheme == "https" else None
    try:
        with socket.create_connection((origin.host, origin.port), seconds) as plain:
            if context is not None:
                context.wrap_socket(plain, server_hostname=origin.host).close()
    except (OSError, UnicodeError) as error:
        raise trouble(error, str(origin), where) from error
