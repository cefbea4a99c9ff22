"""Requests to a cluster: which of its addresses, with which login, and what its answers mean."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from tailrace.config import redact
from tailrace.errors import SinkError
from tailrace.sinks.http.answers import Answer, meaning, retry_after, trouble
from tailrace.sinks.http.connection import HttpTls, client_for, discard

_LONGEST_TEXT = 300
_ALONE = re.compile(r"coordinating_operation_bytes=(\d+), max_coordinating_and_primary_bytes=(\d+)")
_FAILED_OVER: Counter[str] = Counter()
"""How often this process turned to the next address, by the cluster's identity."""
_KNOWN: dict[str, set[str]] = {}
"""Indices that this process has seen to, by the cluster's identity."""


@dataclass(frozen=True)
class Access:
    """How a cluster is reached."""

    sink: str
    urls: tuple[str, ...]
    tls: HttpTls
    login: httpx.Auth | None = field(repr=False)
    connect_timeout: float
    send_timeout: float

    @property
    def identity(self) -> str:
        """What its client is known by in a process."""
        files = [str(each) for each in (self.tls.root_cert, self.tls.cert, self.tls.key)]
        return json.dumps(["opensearch", self.sink, *self.urls, *files, self.tls.verify])


@dataclass(frozen=True)
class Reply:
    """What was answered."""

    status: int
    text: str

    @cached_property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def found(self) -> bool:
        return self.status != HTTPStatus.NOT_FOUND


class Cluster:
    """Asks one of the cluster's addresses; after a failure that another may not have, the next one. Nothing is tried
    again in here."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.known = _KNOWN.setdefault(access.identity, set())
        """Indices that were seen to."""

    def ask(
        self, method: str, path: str, body: bytes | Mapping[str, Any] | None = None, *, also: tuple[int, ...] = ()
    ) -> Reply:
        """The answer, where it is 2xx, one of `also`, or says that the request is too large at any time. A mapping is
        sent as JSON, bytes as lines of it. Raises `SinkError`."""
        access = self._access
        url = access.urls[_FAILED_OVER[access.identity] % len(access.urls)]
        content = json.dumps(body, ensure_ascii=False).encode() if isinstance(body, Mapping) else body
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        headers = {} if body is None else {"Content-Type": kind}
        client = client_for(access.identity, access.tls, 1)
        timeout = httpx.Timeout(access.send_timeout, connect=access.connect_timeout)
        try:
            answer = client.request(
                method, url + path, content=content, headers=headers, auth=access.login, timeout=timeout
            )
        except httpx.HTTPError as error:
            _FAILED_OVER[access.identity] += 1
            raise trouble(error, f"{method} {url}{_shown(path)}", access.sink) from error
        if answer.is_success or answer.status_code in also or _never_fits(answer):
            return Reply(answer.status_code, answer.text)
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _FAILED_OVER[access.identity] += 1
        raise _refusal(answer, f"{method} {_shown(path)}", access.sink)

    def make(self, index: str, body: Mapping[str, Any]) -> None:
        """Make an index, or leave the one that somebody else made meanwhile."""
        reply = self.ask("PUT", path_of(index), body, also=(HTTPStatus.BAD_REQUEST,))
        if reply.status == HTTPStatus.BAD_REQUEST and "resource_already_exists" not in reply.text:
            text, hint = (
                f"the index {index} cannot be made: {reason_of(reply.text)}",
                "see the sink's `mapping` and `settings`",
            )
            raise SinkError("sink.refused", text, hint=hint, where=self._access.sink)


@contextmanager
def connected(access: Access) -> Iterator[Cluster]:
    """The process's client of a cluster. After a failure its connections are closed, so that nothing more is sent."""
    try:
        yield Cluster(access)
    except BaseException:
        discard(access.identity)
        _KNOWN.pop(access.identity, None)
        raise


def path_of(*names: str) -> str:
    """A path of these names, whatever is in them."""
    return "".join("/" + quote(name, safe="") for name in names)


def _refusal(answer: httpx.Response, what: str, where: str) -> SinkError:
    message = f"{what} was answered {answer.status_code}: {reason_of(answer.text)}"
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        hint = "check the sink's auth, and what its user may do: docs/guides/opensearch.md has the list"
        return SinkError("sink.refused", message, hint=hint, where=where)
    if meaning(answer.status_code, names_record=False) is Answer.WAIT:
        asked = retry_after(answer.headers.get("retry-after"), datetime.now(UTC))
        hint = "it is tried again by itself; see the server's own log"
        return SinkError("sink.unavailable", message, hint=hint, where=where, retry_after=asked)
    return SinkError("sink.refused", message, hint="see what the server says, and the sink's settings", where=where)


def _never_fits(answer: httpx.Response) -> bool:
    """Whether the memory for requests is too small for this one alone. Else a 429 passes."""
    sizes = _ALONE.search(answer.text) if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS else None
    return sizes is not None and int(sizes[1]) > int(sizes[2])


def reason_of(text: str) -> str:
    """What an answer says is wrong: the kind and the reason of its error, without a row's values."""
    try:
        error = json.loads(text)["error"]
        said = f"{error['type']}: {error['reason']}"
    except (ValueError, LookupError, TypeError):
        said = text
    return without_values(said)


def without_values(reason: str) -> str:
    """A reason as far as it shows no value of a row."""
    for sign in (" Preview of field's value", " The prefix of the first immense term"):
        reason = reason.partition(sign)[0]
    return redact(" ".join(reason.split())[:_LONGEST_TEXT])


def _shown(path: str) -> str:
    return path.partition("?")[0]
