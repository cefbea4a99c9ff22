"""What follows from an endpoint's answer, in one table, and from none.

| answer | follows |
|---|---|
| 2xx | delivered |
| 400 409 411 412 413 414 422 431 | the record is refused: `sink.rejected`, and all others go on |
| 404 410 | the same where the URL is made of the record's values; else `sink.refused` |
| 408 421 423 425 429, 5xx but 501 and 505 | `sink.unavailable`: later, `Retry-After` at the earliest |
| any other, such as 401 403 405 and redirects | `sink.refused`: the set-up is wrong, and the sink stops |
| a time-out, a connection that fails or breaks | `sink.unavailable` |
| a certificate that does not fit | `sink.refused` |
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from http import HTTPStatus

import httpx

from tailrace.config import redact
from tailrace.errors import SinkError
from tailrace.sinks.http.addresses import shown

_OF_THE_RECORD = frozenset({400, 409, 411, 412, 413, 414, 422, 431})
_NOT_THERE = frozenset({404, 410})
_PASSES = frozenset({408, 421, 423, 425, 429})
_NEVER_PASSES = frozenset({501, 505})
_SERVER_ERRORS = range(500, 600)
_REDIRECTS = range(300, 400)
_LOGIN = frozenset({401, 403, 407})
_LONGEST_TEXT = 200
_TRANSIENT_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


class Answer(Enum):
    """What an HTTP status means for what was sent."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    WAIT = "wait"
    REFUSED = "refused"


def meaning(status: int, *, names_record: bool) -> Answer:
    """`names_record`: whether the URL is made of the record's values."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Answer.DELIVERED
    if status in _OF_THE_RECORD or (names_record and status in _NOT_THERE):
        return Answer.REJECTED
    if status in _PASSES or (status in _SERVER_ERRORS and status not in _NEVER_PASSES):
        return Answer.WAIT
    return Answer.REFUSED


def failure(response: httpx.Response, text: str, *, names_record: bool, where: str) -> SinkError | None:
    """The error that an answer is; None where everything was taken. `text`: the beginning of its body."""
    status = response.status_code
    said = f": {_one_line(text)}" if text.strip() else ""
    message = f"{_target(response.request)} answered {status} {_phrase(status)}{said}"
    match meaning(status, names_record=names_record):
        case Answer.DELIVERED:
            return None
        case Answer.REJECTED:
            hint = "change what the record holds, the envelope or the body, or the endpoint, so that it is accepted"
            return SinkError("sink.rejected", message, hint=hint, where=where)
        case Answer.WAIT:
            asked = retry_after(response.headers.get("retry-after"), datetime.now(UTC))
            hint = "it is tried again by itself; see the endpoint's own log"
            return SinkError("sink.unavailable", message, hint=hint, where=where, retry_after=asked)
        case Answer.REFUSED:
            return SinkError("sink.refused", message, hint=_way_out(response), where=where)


def trouble(error: Exception, target: str, where: str) -> SinkError:
    """The error that no answer is."""
    reason = redact(str(error)) or type(error).__name__
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _TRANSIENT_TLS):
            hint = "check tls.root_cert, tls.cert and tls.key, the host's name in its certificate, and http or https"
            return SinkError("sink.refused", f"{target}: TLS failed: {reason}", hint=hint, where=where)
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        message = f"{target} did not answer in time; it may have got the request"
        hint = "it is tried again by itself; if the endpoint is only slow, raise the sink's time-outs"
        return SinkError("sink.unavailable", message, hint=hint, where=where)
    hint = "check that the endpoint runs and that its host and port are right; it is tried again by itself"
    return SinkError("sink.unavailable", f"{target} cannot be reached: {reason}", hint=hint, where=where)


def retry_after(text: str | None, now: datetime) -> float | None:
    """Seconds that `Retry-After` asks for: a number of them, or a date. None where it says neither."""
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text.strip()):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at - now).total_seconds()) if at.tzinfo is not None else None


def _way_out(response: httpx.Response) -> str:
    status = response.status_code
    if status in _REDIRECTS:
        to = shown(response.headers.get("location", "")) or "elsewhere"
        return f"redirects are not followed, for they would carry the login along; it points to {redact(to)}: use that"
    if status in _LOGIN:
        return "check the sink's auth, headers and signature"
    return "check the sink's url and method, and what the endpoint takes"


def _target(request: httpx.Request) -> str:
    return f"{request.method} {shown(str(request.url))}"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _one_line(text: str) -> str:
    return redact(re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip()[:_LONGEST_TEXT])


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
