"""Names and durability of files: where a change goes, and how a name becomes permanent."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tailrace.config import redact
from tailrace.errors import SinkError

HIDDEN = "_tailrace"
"""The sink's own directory under `path`. Readers of data directories skip names that begin with `_`."""

_LONGEST = 200
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_HEALS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EINTR}


def table_directory(schema: str, table: str) -> str:
    """`schema.table`, safe and different for different tables on any file system.

    Everything but ASCII letters, digits, `_` and `-` is percent-encoded; so is a leading `_`, which would
    hide the directory from readers. A name too long for a file system ends in a hash instead. Logical
    messages have no schema and go by their prefix alone.
    """
    name = ".".join(_safe(part) for part in (schema, table) if part) or "%"
    if name.startswith("_"):
        name = "%5F" + name[1:]
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 17]}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


def file_name(text: str) -> str:
    """`text` as one safe file name; a dot stays a dot."""
    return ".".join(_safe(part) for part in text.split("."))


def day_directory(day: int) -> str:
    """The ISO date of a day counted from 1970."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say whether waiting can help."""
    try:
        yield
    except OSError as error:
        reason = redact(str(error))
        if error.errno in _HEALS:
            hint = "free space on the disk, or mend it; the sink tries again by itself"
            raise SinkError("sink.unavailable", f"cannot write files: {reason}", hint=hint, where=str(path)) from error
        hint = "make the path a directory that the pipeline's user may write to"
        raise SinkError("sink.refused", f"cannot write files: {reason}", hint=hint, where=str(path)) from error


def _safe(name: str) -> str:
    return "".join(char if char in _PLAIN else "".join(f"%{byte:02X}" for byte in char.encode()) for char in name)
