"""Secrets: values that are used but never shown.

`Secret` hides all of itself, `Dsn` only its passwords. Text from elsewhere (a server's message, a library's
exception) goes through `redact` before anyone sees it.
"""

from __future__ import annotations

import re

from pydantic import SecretStr

MASK = "***"

_NAME = r"[\w.\-]*(?:password|passwd|passphrase|pwd|secret|token)"
_IN_URL = re.compile(r"(?P<head>://[^:/@\s]*:)\S*(?=@)")
_IN_QUERY = re.compile(rf"(?P<head>[?&]{_NAME}=)[^&\s]*", re.IGNORECASE)
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_IN_PAIRS = re.compile(rf"(?P<head>(?<![?&\w.\-]){_NAME}[\"']?\s*[=:]\s*)(?:{_QUOTED}|[^\s,}}]+)", re.IGNORECASE)

Secret = SecretStr
"""A password or token: shows as asterisks everywhere; `get_secret_value()` where it is used."""


class Dsn(SecretStr):
    """A connection string, as URL or `key=value` pairs. Shows itself with its passwords blanked; dumps
    blank it whole."""

    def _display(self) -> str:
        return redact(self.get_secret_value())


def redact(text: str) -> str:
    """Blank the passwords in URLs, query strings, `key=value` pairs and printed mappings.

    In doubt it blanks too much: a password may hold an `@`, so all up to the last one goes.
    """
    for pattern in (_IN_URL, _IN_QUERY, _IN_PAIRS):
        text = pattern.sub(rf"\g<head>{MASK}", text)
    return text
