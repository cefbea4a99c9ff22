"""How an error crosses Spark: workers raise, a JVM wraps, the driver reads. It arrives as what it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace import errors
from tailrace.errors import TailraceError, rebuilt

_MARK = "tailrace-error:"


class Parcel(Exception):
    """A TailraceError as one line of text that survives being quoted in other people's tracebacks."""


@contextmanager
def carried() -> Iterator[None]:
    """Wrap a TailraceError so that `find` recognises it on the other side."""
    try:
        yield
    except TailraceError as error:
        raise Parcel(_MARK + pack(error)) from error


def pack(error: TailraceError) -> str:
    """The error as one line of JSON."""
    return json.dumps({"kind": type(error).__name__, **error.as_dict()})


def unpack(text: str) -> TailraceError:
    """The error `pack` was given; of an unknown kind only where the two sides run different releases."""
    fields = json.loads(text)
    kind = getattr(errors, fields["kind"], TailraceError)
    return rebuilt(kind, fields)


def find(text: str) -> TailraceError | None:
    """The carried error inside the text of a foreign exception, if there is one."""
    _, mark, rest = text.partition(_MARK)
    if not mark:
        return None
    fields, _ = json.JSONDecoder().raw_decode(rest)
    return unpack(json.dumps(fields))
