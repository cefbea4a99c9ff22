"""What a slot that nobody reads would send next, without taking it from the slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.capture.postgres.catalog import PostgresCatalog
from tailrace.capture.postgres.connection import quote_identifier
from tailrace.capture.postgres.messages import lsn_number
from tailrace.capture.postgres.publications import published_names
from tailrace.capture.postgres.snapshot.read import Session
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource

PEEKED_CHANGES = 100_000
"""The server decodes about this many changes, and keeps them for the answer, at most."""

_PEEK = """
SELECT count(*), coalesce(max(lsn), '0/0')::text
FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s, 'proto_version', '1', 'publication_names', %s)
"""


def nothing_between(source: PostgresSource, resume: Mapping[str, str], until: str) -> bool | None:
    """Whether no row of a captured table changed after the position `resume` and up to `until`.

    None where that cannot be told now: somebody reads the slot, it does not have everything after `resume`, or the
    server has not flushed its WAL up to `until` yet.
    """
    with Session.of(source) as catalog:
        slot, position = catalog.slot(source.slot_name), lsn_number(resume["lsn"])
        readable = slot is not None and slot.active_pid is None and not slot.lost and slot.confirmed <= position
        if not readable or not source.is_past(catalog.current_position(), until):
            return None
        names = ",".join(quote_identifier(name) for name in _publications(catalog, source.publication_name))
        try:
            [(changes, last)] = catalog.rows(_PEEK, source.slot_name, until, PEEKED_CHANGES, names)
        except TailraceError:  # somebody began to read it in between, or the role may not peek
            return None
    if lsn_number(last) > position:  # a transaction's last message has the position of its commit's end
        return False
    return True if changes < PEEKED_CHANGES else None


def _publications(catalog: PostgresCatalog, name: str) -> tuple[str, ...]:
    return published_names(name) if catalog.publication_is_ours(name) else (name,)
