"""A client of a server (`tailrace serve`). What goes wrong there is raised here as it was told: code, hint, place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from tailrace import __version__
from tailrace.config.problems import DocumentError, Problem
from tailrace.config.secret import redact
from tailrace.errors import ConfigError, SetupError, TailraceError
from tailrace.surfaces.answers import Applied, Checkpoint, Event, Pipeline, Plan, Transition, Transitions

URL, TOKEN = "TAILRACE_URL", "TAILRACE_TOKEN"
DEFAULT_URL = "http://127.0.0.1:8080"
CONNECT_S, ANSWER_S = 5.0, 60.0
SILENT_S = 30.0
"""An event stream that says nothing for so long, not even that it lives, is broken."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOKEN = re.compile(r"[!-~]+")
_AWAY = "start one with `tailrace serve`, or name the one that runs in TAILRACE_URL (its token in TAILRACE_TOKEN)"


class Client:
    """One server, at `url`. Use as a context manager. `transport`: another way to it than the network."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = _checked_url(url)
        headers = {"User-Agent": f"tailrace/{__version__}", "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {_checked_token(token)}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            mounts={f"all://{host}": None for host in LOOPBACK} if transport is None else None,  # through no proxy
            transport=transport,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # -- pipelines -----------------------------------------------------------------------------------------------

    def pipelines(self, labels: Iterable[str] = (), *, figures: bool = False) -> list[Pipeline]:
        """By name; those that have all of these labels (`name=value`, or `name` alone)."""
        parameters = {"label": list(labels), "figures": json.dumps(figures)}
        return self._ask(list[Pipeline], "GET", "/v1/pipelines", parameters=parameters)

    def pipeline(self, name: str) -> Pipeline:
        """With its figures."""
        return self._ask(Pipeline, "GET", _path(name))

    def transitions(self, name: str, limit: int) -> tuple[Transition, ...]:
        """The newest first."""
        return self._ask(Transitions, "GET", f"{_path(name)}/transitions", parameters={"limit": limit}).items

    def checkpoints(self, name: str) -> list[Checkpoint]:
        """How far its sinks are, also while it does not run."""
        return self._ask(list[Checkpoint], "GET", f"{_path(name)}/checkpoints")

    def plan(self, document: Mapping[str, Any]) -> Plan:
        return self._ask(Plan, "POST", "/v1/plan", body=document)

    def apply(self, document: Mapping[str, Any], plan_hash: str) -> Applied:
        """Just what that plan says, or `plan.outdated`."""
        return self._ask(Applied, "POST", "/v1/apply", parameters={"plan": plan_hash}, body=document)

    def pause(self, name: str) -> Pipeline:
        return self._ask(Pipeline, "POST", f"{_path(name)}/pause")

    def resume(self, name: str) -> Pipeline:
        return self._ask(Pipeline, "POST", f"{_path(name)}/resume")

    def stop(self, name: str) -> Pipeline:
        return self._ask(Pipeline, "POST", f"{_path(name)}/stop")

    def delete(self, name: str) -> None:
        with self._meaning():
            _refuse_failure(self._http.request("DELETE", _path(name)), self.url)

    # -- the server ----------------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Whether the server makes actual what is desired."""
        with self._meaning():
            response = self._http.request("GET", "/healthz")
        if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
            _refuse_failure(response, self.url)
        return response.is_success

    def events(self, after: int | None, *, follow: bool) -> Iterator[Event]:
        """What happened behind the event `after` (None: behind the newest), and with `follow` what happens from then
        on, until the connection breaks."""
        parameters = {"follow": json.dumps(follow)} | ({} if after is None else {"after": str(after)})
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=SILENT_S)
        with (
            self._meaning(),
            self._http.stream("GET", "/v1/events", params=parameters, timeout=timeout) as response,
        ):
            if not response.is_success:
                response.read()
            _refuse_failure(response, self.url)
            yield from _events(response.iter_lines())

    # -- inside --------------------------------------------------------------------------------------------------

    def _ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> T:
        with self._meaning():
            response = self._http.request(method, path, params=parameters, json=body)
        _refuse_failure(response, self.url)
        try:
            return TypeAdapter(kind).validate_json(response.content)
        except ValidationError:
            raise _stranger(response, self.url) from None

    @contextmanager
    def _meaning(self) -> Iterator[None]:
        """What the network's errors mean."""
        try:
            yield
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            if "CERTIFICATE" in reason or "[SSL" in reason:
                hint = "put the authority's certificate into SSL_CERT_FILE, or check the name in TAILRACE_URL"
                message = f"no TLS with {self.url}: {reason}"
                raise SetupError("server.tls", message, hint=hint, where=URL) from None
            message = f"no server answers at {self.url}: {reason}"
            raise SetupError("server.unreachable", message, hint=_AWAY, where=URL) from None


def connect(environ: Mapping[str, str]) -> Client:
    """The server that the variables name."""
    return Client(environ.get(URL) or DEFAULT_URL, environ.get(TOKEN) or None)


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is none
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        hint = "write it like https://cdc.acme.example:8443; a token goes into TAILRACE_TOKEN"
        raise ConfigError("server.url", f"{redact(url)!r} is not the address of a server", hint=hint, where=URL)
    return url.rstrip("/")


def _checked_token(token: str) -> str:
    if _TOKEN.fullmatch(token.strip()) is None:
        hint = "copy it again, as `tailrace token create` printed it"
        raise ConfigError("server.token", "what is set there cannot be a token", hint=hint, where=TOKEN)
    return token.strip()


def _path(name: str) -> str:
    """Of a pipeline. What cannot be a name would be another path."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            "pipeline.missing", f"there is no pipeline {name!r}", hint="tailrace get lists which there are"
        )
    return f"/v1/pipelines/{quote(name, safe='')}"


def _refuse_failure(response: httpx.Response, url: str) -> None:
    if not response.is_success:
        _raise(response, url)


def _raise(response: httpx.Response, url: str) -> NoReturn:
    try:
        problem = response.json()
        code, message = str(problem["code"]), str(problem["message"])
    except (ValueError, KeyError, TypeError):
        raise _stranger(response, url) from None
    if found := problem.get("problems"):
        raise DocumentError(_problem(each) for each in found)
    hint, where = str(problem.get("hint") or ""), str(problem.get("where") or "")
    raise _kind(response.status_code)(code, message, hint=hint, where=where)


def _problem(told: Mapping[str, Any]) -> Problem:
    """Where it is in a file is known to whoever sent the document."""
    return Problem(str(told["code"]), str(told["message"]), str(told.get("hint", "")), str(told.get("path", "")))


def _kind(status: int) -> type[TailraceError]:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return SetupError
    return ConfigError if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR else TailraceError


def _stranger(response: httpx.Response, url: str) -> SetupError:
    hint = "check TAILRACE_URL: another server, or a proxy, may answer there"
    message = f"what answers at {url} is not `tailrace serve` (HTTP {response.status_code})"
    return SetupError("server.answer", message, hint=hint, where=URL)


def _events(lines: Iterable[str]) -> Iterator[Event]:
    """Server-sent events: fields, each in its line, until an empty one."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            told = {"type": fields.get("event", ""), **json.loads(fields["data"]), "number": number}
            yield Event.model_validate(told)
        if not line:
            fields = {}
