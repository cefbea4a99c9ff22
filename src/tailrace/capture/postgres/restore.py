"""Whether the server still has what the log has. One that was restored from a backup, or whose storage lost its last
writes, has not, and yet it is the same system on the same timeline: soon its WAL is as long as before, with something
else in it.

The proof is the newest commit in the log: its record lies in the server's WAL at the position where we read it, with
the same commit time. WAL is one history, so a server with that record has everything before it too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import closing

from tailrace.capture.postgres import setup
from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.connection import REPAIR, ReplicationStream
from tailrace.capture.postgres.kernel import EPOCH_US
from tailrace.capture.postgres.messages import lsn_number, lsn_text
from tailrace.capture.postgres.reached import Reached
from tailrace.contracts import VERDICT
from tailrace.errors import SourceError, Verdict

PAGE_HEADER, SEGMENT_HEADER = 24, 40
"""Bytes that stand in the middle of a record where a page of WAL begins, or a segment."""


def check_restored(dsn: str, catalog: PostgresCatalog, resume: Mapping[str, str] | None) -> None:
    """Raise where the server cannot have what the log has, before anything is done on it. Only looks."""
    if resume is None:
        return
    if VERDICT in resume:
        raise _restored(resume[VERDICT])
    with closing(ReplicationStream(dsn)) as stream:
        server = setup.identify(stream)
        setup.check_server(stream, server, resume)
        _check_end(catalog, server, resume)
        _check_commit(catalog, stream, Reached.of(resume))


def _check_end(catalog: PostgresCatalog, server: setup.ServerIdentity, resume: Mapping[str, str]) -> None:
    if lsn_number(resume["lsn"]) <= server.flushed:
        return
    text = f"the log is at {resume['lsn']}, but the server's WAL ends at {lsn_text(server.flushed)}"
    if catalog.in_recovery():
        raise SourceError("source.standby", text, hint="the standby has not received it yet; it is retried")
    raise _restored(text)


def _check_commit(catalog: PostgresCatalog, stream: ReplicationStream, known: Reached) -> None:
    """What the server does not show cannot be compared: a segment that it no longer needs, or all of its WAL."""
    wal = stream.read_wal(known.lsn, known.timeline) if known.lsn else None
    sizes = "SELECT setting::int FROM pg_settings WHERE name IN ('wal_block_size', 'wal_segment_size') ORDER BY name"
    [(page,), (segment,)] = catalog.rows(sizes)
    if wal is not None and not has_commit(wal, known, page, segment):
        raise _restored(f"the log has a commit at {lsn_text(known.lsn)} that the server's WAL does not have")


def has_commit(wal: bytes, commit: Reached, page: int, segment: int) -> bool:
    """Whether WAL from the commit's position on begins with a record that has the commit's time: near its beginning or,
    of a transaction that was replicated from elsewhere, at its end."""
    joined = _without_headers(wal, commit.lsn, page, segment)
    times = (struct.pack(f"{order}q", commit.at_us - EPOCH_US) for order in "<>")  # in the server's byte order
    sizes = (struct.unpack_from(f"{order}I", joined)[0] for order in "<>")
    return any(time in joined[:size] for time, size in zip(times, sizes, strict=True))


def _without_headers(wal: bytes, lsn: int, page: int, segment: int) -> bytes:
    parts, at, left = [], 0, page - lsn % page
    while at < len(wal):
        parts.append(wal[at : at + left])
        at += left
        header = PAGE_HEADER if (lsn + at) % segment else SEGMENT_HEADER
        at, left = at + header, page - header
    return b"".join(parts)


def _restored(what: str) -> Verdict:
    return Verdict("source.wrong_server", what, hint=f"the server was restored from a backup: {REPAIR}")
