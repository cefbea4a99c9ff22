"""Connections to NATS: how they are opened, what their errors mean, and how they end at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from tailrace.config import redact
from tailrace.contracts import never
from tailrace.errors import SinkError

LAST_WAIT_S = 2.0
"""How long a run that ends still waits for a server that says nothing."""
_LOOK_S = 0.05
_CLOSE_S = 1.0

_NO_LOGIN = (
    "authorization violation",
    "authentication expired",
    "authentication revoked",
    "account authentication expired",
    "invalid user credentials",
)
_PERMISSIONS = "permissions violation"

logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())
"""What asyncio prints whenever a connection with TLS ends, and nobody can do anything about."""

T = TypeVar("T")


@dataclass(frozen=True)
class TlsFiles:
    """What a TLS context is made of. It is made where it is used: contexts do not travel."""

    root_cert: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True
    first: bool = False

    def files(self) -> tuple[Path | None, ...]:
        return self.root_cert, self.cert, self.key

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.root_cert)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


@dataclass(frozen=True)
class Access:
    """How a sink reaches its servers and who it is there."""

    sink: str
    name: str
    servers: tuple[str, ...] = field(repr=False)
    login: tuple[tuple[str, str], ...] = field(repr=False)
    """nats-py's own options: `user`, `password`, `token`, `nkeys_seed` (a file), `user_credentials` (a file)."""
    tls: TlsFiles | None
    patience: float
    """Seconds that connecting, and each question to JetStream, may take."""


async def connect(access: Access, failed: Callable[[SinkError], None] = lambda error: None) -> Client:
    """A connection that never reconnects: what it has not sent when it breaks is never sent. What goes wrong with it
    later is told to `failed`, in the loop's thread."""
    heard: list[Exception] = []
    has_certificate = access.tls is not None and access.tls.cert is not None
    client = _Client(wants_tls=access.tls is not None or _says_tls(access), has_certificate=has_certificate)

    async def hear(error: Exception) -> None:
        heard.append(error)
        if client.is_connected:
            failed(nats_error(error, access.sink))

    async def closed() -> None:
        failed(nats_error(client.last_error or nats.errors.ConnectionClosedError(), access.sink))

    try:
        await asyncio.wait_for(client.connect(error_cb=hear, closed_cb=closed, **_options(access)), access.patience)
        if not client.is_connected:  # the server hung up where the client expected it to agree
            raise nats.errors.UnexpectedEOF
    except asyncio.CancelledError:
        abort(client)
        raise
    except Exception as error:
        abort(client)
        telling = isinstance(error, nats.errors.NoServersError | TimeoutError) and heard
        raise nats_error(heard[-1] if telling else error, access.sink) from None
    return client


async def close(client: Client) -> None:
    """End it in order, for one that has nothing under way."""
    with suppress(Exception):
        await asyncio.wait_for(client.close(), _CLOSE_S)
    abort(client)


def abort(client: Client) -> None:
    """End it at once: what the other side has not got, it does not get (the kernel drops it too)."""
    writer: Any = getattr(client._transport, "_io_writer", None)
    if writer is None:
        return
    found = writer.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def ask(access: Access, question: Callable[[Client], Awaitable[T]], ending: Callable[[], bool] = never) -> T:
    """What `question` makes of a connection of its own. Where the run ends meanwhile it gives up soon."""

    async def asked() -> T:
        trouble: asyncio.Future[SinkError] = asyncio.get_running_loop().create_future()
        client = await connect(access, lambda error: None if trouble.done() else trouble.set_result(error))
        answer = asyncio.ensure_future(question(client))
        try:
            either: set[asyncio.Future[Any]] = {answer, trouble}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if trouble.done():
                raise trouble.result()
            return await answer
        except nats.errors.Error as error:
            raise nats_error(error, access.sink) from None
        finally:
            answer.cancel()
            await close(client)

    async def watched() -> T:
        task, since = asyncio.ensure_future(asked()), time.monotonic()
        while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
            if ending() and time.monotonic() - since > LAST_WAIT_S:
                task.cancel()
                await asyncio.wait({task}, timeout=_CLOSE_S)
                raise unavailable("the server does not answer, and the run ends", access.sink)
        return task.result()

    return asyncio.run(watched())


def nats_error(error: Exception, sink: str) -> SinkError:
    """What an error of the client or of the connection means."""
    text = redact(str(error).removeprefix("nats: ").strip("'\"") or type(error).__name__)
    said = text.lower()
    if isinstance(error, SinkError):
        return error
    if isinstance(error, nats.errors.AuthorizationError) or any(sign in said for sign in _NO_LOGIN):
        return refused(
            f"the server does not let it in: {text}", "check user, password, token, nkey or credentials", sink
        )
    if _PERMISSIONS in said:
        hint = "let the user publish to the sink's subjects and `$JS.API.>`, and subscribe to `_INBOX.>`"
        return refused(f"the server forbids it: {text}", hint, sink)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        hint = (
            "check `tls`: root_cert signs the server's certificate, which names its host; cert and key are the user's"
        )
        return refused(f"no TLS connection: {text}", hint, sink)
    if isinstance(error, _NoTlsError):
        return refused("the server does not offer TLS", "turn TLS on at the server, or leave `tls` out", sink)
    if isinstance(error, _NoCertificateError):
        return refused("the server asks for a client certificate", "give `tls` a cert and its key", sink)
    if isinstance(error, nats.js.errors.ServiceUnavailableError) and error.err_code is None:
        return unavailable(
            "JetStream does not answer", sink, "turn it on at the server (`jetstream {}`), for this account"
        )
    if isinstance(error, nats.js.errors.APIError):
        return _api_error(error, sink)
    if not isinstance(error, OSError | nats.errors.Error):
        return refused(
            f"cannot log in: {type(error).__name__}: {text}", "check the file of the nkey or credentials", sink
        )
    return unavailable(f"the server cannot be reached: {text}", sink)


def _api_error(error: nats.js.errors.APIError, sink: str) -> SinkError:
    if error.code in PASSING and error.err_code != _NO_CLUSTER:
        return unavailable(f"JetStream cannot do it now: {error.description}", sink)
    hint = "see its message; `tailrace doctor` looks at server and stream"
    return refused(f"JetStream refuses: {error.description}", hint, sink)


_NO_CLUSTER = 10074
PASSING = (408, 409, 429, 500, 503)
"""Statuses of JetStream that time heals, or somebody who makes room: no leader yet, no space, a message in process."""


def unavailable(text: str, sink: str, hint: str = "check `url`, and that the server runs") -> SinkError:
    return SinkError("sink.unavailable", text, hint=f"{hint}; the sink tries again by itself", where=sink)


def refused(text: str, hint: str, where: str) -> SinkError:
    return SinkError("sink.refused", text, hint=hint, where=where)


class _NoTlsError(nats.errors.Error):
    """The server would go on in the clear."""


class _NoCertificateError(nats.errors.Error):
    """The server would hang up without saying why."""


class _Client(Client):
    """The library's client, which by itself would send a password in the clear to a server that says it has no TLS."""

    def __init__(self, *, wants_tls: bool, has_certificate: bool) -> None:
        super().__init__()
        self._wants_tls, self._has_certificate = wants_tls, has_certificate

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._wants_tls and not self.options.get("tls_handshake_first"):
            if not (info.get("tls_required") or info.get("tls_available")):
                raise _NoTlsError
            info["tls_required"] = True
        if initial_connection and info.get("tls_required") and info.get("tls_verify") and not self._has_certificate:
            raise _NoCertificateError
        if not initial_connection and "max_payload" in info:  # an account's own, known once it has logged in
            self._max_payload = info["max_payload"]
        await super()._process_info(info, initial_connection)


def _says_tls(access: Access) -> bool:
    return any(server.strip().lower().startswith("tls://") for server in access.servers)


def _options(access: Access) -> dict[str, Any]:
    login, tls = dict(access.login), access.tls
    files = [login.get("nkeys_seed"), login.get("user_credentials"), *(tls.files() if tls is not None else ())]
    try:
        for path in files:
            if path is not None:
                Path(path).read_bytes()
        secured = {} if tls is None else {"tls": tls.context(), "tls_handshake_first": tls.first}
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        raise refused(
            f"cannot read what the login needs: {named}", "check the files of login and `tls`", access.sink
        ) from None
    return {
        "servers": list(access.servers),
        "name": access.name,
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": access.patience,
        "skip_subject_validation": True,
        **login,
        **secured,
    }
