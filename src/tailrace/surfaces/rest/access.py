"""Who may do what.

On loopback nobody needs a token, unless the platform document says so; on any other address everybody does. A browser
is kept from being used against us: `Host` must be a name of this server (DNS rebinding), and what changes something
must come from a page of this server or from no page at all (CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from tailrace.control.tokens import Scope, Token, Tokens
from tailrace.errors import ConfigError
from tailrace.surfaces.rest.problems import answer

COOKIE = "tailrace_token"
TOKEN = "TAILRACE_TOKEN"
"""Environment: a token that may do everything, for servers whose data directory nobody has made tokens in."""
RANK: dict[Scope, int] = {"view": 0, "operate": 1, "admin": 2}
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY = 4 << 20
OPEN = frozenset({"/healthz", "/readyz", "/health", "/ready", "/v1/health", "/v1/ready", "/login"})
"""What whoever reaches the port may ask: that the process lives, and not how it is in detail."""


@dataclass(frozen=True)
class Caller:
    """Who asks, and what he may do."""

    name: str
    scope: Scope
    sees_values: bool

    def may(self, scope: Scope) -> bool:
        return RANK[self.scope] >= RANK[scope]


LOCAL = Caller("local", "admin", True)
"""Whoever reaches the loopback interface where no token is asked for."""

STARTER = Caller(TOKEN, "admin", True)
"""Whoever has the token that the server was started with."""


class Door:
    """Lets requests in. `hosts`: the names that this server is called by, besides those of loopback. `own`: the token
    that the server was started with, which may do everything."""

    def __init__(self, tokens: Tokens, *, required: bool, hosts: Iterable[str] = (), own: str | None = None) -> None:
        self._tokens, self._required, self._own = tokens, required, own
        self._hosts = {"127.0.0.1", "localhost", "::1", *(host.lower() for host in hosts)}

    def caller(self, request: Request) -> Caller | None:
        """None: it has no token that is valid, and needs one."""
        clear = _sent(request)
        if clear is not None:
            return self.known(clear)
        return None if self._required else LOCAL

    def known(self, clear: str) -> Caller | None:
        """Whose token this is, if it is valid."""
        if self._own is not None and hmac.compare_digest(_digest(clear), _digest(self._own)):
            return STARTER
        token = self._tokens.check(clear)
        return None if token is None else _caller(token)

    def refuse(self, request: Request) -> ConfigError | None:
        """Why a request is not even looked at."""
        host = request.headers.get("host", "")
        if _name(host) not in self._hosts:
            hint = "use the server's own name, or add this one to `server.hosts` of the platform document"
            return ConfigError("access.host", "this server is not called that", hint=hint, where="Host")
        origin = request.headers.get("origin")
        if request.method not in SAFE and origin is not None and urlsplit(origin).netloc != host:
            hint = "send it without an Origin, or from this server's own page"
            return ConfigError("access.origin", "a page of another site asked for this", hint=hint, where="Origin")
        return None


def needs(scope: Scope) -> Callable[[Request], Caller]:
    """A dependency of a route: the caller, if he may."""

    def caller(request: Request) -> Caller:
        door: Door = request.app.state.door
        found = door.caller(request)
        if found is None:
            hint = "send `Authorization: Bearer TOKEN`; tailrace token create makes one"
            raise ConfigError("access.denied", "a valid token is needed", hint=hint, where="Authorization")
        if not found.may(scope):
            message = f"{found.name} may {found.scope}, and this needs {scope}"
            raise ConfigError("access.forbidden", message, hint="use a token of that scope", where="Authorization")
        return found

    return caller


Viewer = Annotated[Caller, Depends(needs("view"))]
Operator = Annotated[Caller, Depends(needs("operate"))]
Admin = Annotated[Caller, Depends(needs("admin"))]


class Guard:
    """In front of all routes: hosts, origins, sizes, and headers that keep browsers careful."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._door.refuse(request) or _too_large(request.headers.get("content-length"))
        if refused is not None:
            await answer(refused)(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), _careful(send))


def _bounded(receive: Receive) -> Receive:
    """Without a length there is a bound all the same."""
    got = 0

    async def bounded() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        if got > MAX_BODY:
            raise _size()
        return message

    return bounded


def _careful(send: Send) -> Send:
    headers = [
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
        (
            b"content-security-policy",
            b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        ),
    ]

    async def careful(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(each for each in headers if each[0] not in known)]}
        await send(message)

    return careful


def _too_large(length: str | None) -> ConfigError | None:
    return _size() if length is not None and length.isdigit() and int(length) > MAX_BODY else None


def _size() -> ConfigError:
    message = f"a request has at most {MAX_BODY >> 20} MiB"
    return ConfigError("request.too_large", message, hint="send less at a time", where="body")


def _sent(request: Request) -> str | None:
    """The token that came with a request, in its header or in the page's cookie."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    return request.cookies.get(COOKIE)


def _digest(clear: str) -> bytes:
    """Of equal length, whatever was sent."""
    return hashlib.sha256(clear.encode()).digest()


def _caller(token: Token) -> Caller:
    return Caller(token.name, token.scope, token.sees_values)


def _name(host: str) -> str:
    """A `Host` without its port."""
    return (urlsplit(f"//{host}").hostname or "").lower()
