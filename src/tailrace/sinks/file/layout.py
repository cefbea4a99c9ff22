"""Names and durability of files: where a change goes, and how a name becomes permanent."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tailrace.config import redact
from tailrace.errors import SinkError
from tailrace.sinks.paths import path_segment

HIDDEN = "_tailrace"
"""The sink's own directory under `path`. Readers of data directories skip names that begin with `_`."""

_HEALS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EINTR}


def table_directory(schema: str, table: str) -> str:
    """The folder of a table: `schema.table`. Logical messages have no schema and go by their prefix alone."""
    return path_segment(*(part for part in (schema, table) if part))


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
