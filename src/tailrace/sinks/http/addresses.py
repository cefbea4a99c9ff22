"""URLs and headers as templates: how a change's values get into them, and what they cannot do there.

A value stands percent-encoded in one segment of the path or one part of the query. It names no other host, ends no
segment, begins no query, and makes no segment that means another folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr
from pydantic_core import PydanticCustomError

from tailrace.config import Reference, parse_template

Parts = tuple[str | Reference, ...]
"""A template's literal pieces and holes."""

_ORIGIN = re.compile(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::(?P<port>\d{1,5}))?(?=[/?]|\Z)", re.IGNORECASE
)
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f#\\]")
_NOT_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding"}
)
_LAST_PORT = 65_535
_PORTS = {"http": 80, "https": 443}


class HttpUrl(SecretStr):
    """A template of a URL. Shows itself without its query, which may hold a token; dumps blank it whole."""

    def _display(self) -> str:
        return shown(self.get_secret_value())


@dataclass(frozen=True)
class Origin:
    """Who is spoken to: where connections go."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """Of a URL that `problem_of_url` has nothing against, or a template of one."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return Origin(scheme, (parts.hostname or "").lower(), parts.port or _PORTS[scheme])


def problem_of_url(url: str) -> str | None:
    """Why nothing can be sent to it, or None."""
    found = _ORIGIN.match(url)
    if found is None:
        return "not a URL of the form http://host/path or https://host:port/path"
    if int(found["port"] or 0) > _LAST_PORT:
        return "not a port"
    if _NOT_IN_URL.search(url):
        return "a URL has no spaces, control characters, backslashes and fragments"
    if _leaves_its_folder(url[found.end() :].partition("?")[0]):
        return "a segment of its path is `.` or `..`"
    return None


def problem_of_header(name: str, value: str) -> str | None:
    """Why it cannot be sent, or None."""
    if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
        return "not the name of a header that can be set"
    return "its value has a line break or another control character" if _NOT_IN_HEADER.search(value) else None


def is_origin(url: str) -> bool:
    """Whether it says a scheme, a host and perhaps a port, and nothing else."""
    return problem_of_url(url) is None and _ORIGIN.fullmatch(url.removesuffix("/")) is not None


def checked_url(template: str) -> str:
    """The template of a URL. Raises a validation error where its host is not plain."""
    parts = parse_template(template)
    first = parts[0] if parts and isinstance(parts[0], str) else ""
    found = _ORIGIN.match(first)
    if found is None or (len(parts) > 1 and found.end() == len(first)):
        hint = "write it as https://host/path; `${…}` can stand behind the host, and a login in `auth`"
        raise _refused("not a URL whose scheme and host are plain", hint)
    problem = problem_of_url("".join(part if isinstance(part, str) else "x" for part in parts))
    if problem:
        raise _refused(problem, "write it as https://host/path?query, without a fragment")
    return template


def checked_header(name: str, template: str) -> None:
    """Raise a validation error for a header that cannot be sent."""
    problem = problem_of_header(name, "".join(part for part in parse_template(template) if isinstance(part, str)))
    if problem:
        raise _refused(f"`{name}`: {problem}", "leave it out, or write it without line breaks")


def references(templates: Iterable[Parts]) -> tuple[Reference, ...]:
    """The holes of all templates, each once."""
    holes = (part for parts in templates for part in parts if isinstance(part, Reference))
    return tuple(dict.fromkeys(holes))


def as_template(reference: Reference) -> str:
    """The template that is this hole alone."""
    return "${" + ".".join(reference.path) + "}"


def filled_url(parts: Parts, values: dict[Reference, str | None]) -> str | None:
    """The URL with these values; None where one is missing, is empty in the path, or would leave its folder."""
    url = ""
    for part in parts:
        if isinstance(part, str):
            url += part
            continue
        value = values[part]
        if value is None or (not value and "?" not in url):
            return None
        url += quote(value, safe="")
    return None if problem_of_url(url) else url


def filled_text(parts: Parts, values: dict[Reference, str | None]) -> str | None:
    """The text with these values, as they are; None where one is missing."""
    found = [part if isinstance(part, str) else values[part] for part in parts]
    return None if None in found else "".join(part for part in found if part is not None)


def shown(url: str) -> str:
    """For errors: without the query, which may hold a token."""
    return url.partition("?")[0]


def _leaves_its_folder(path: str) -> bool:
    """Also where a server would decode the path before it looks for segments."""
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path)))


def literal(parts: Sequence[str | Reference]) -> str | None:
    """The text of a template without holes."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else None


def _refused(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("config.invalid_value", "{message}", {"message": message, "hint": hint})
