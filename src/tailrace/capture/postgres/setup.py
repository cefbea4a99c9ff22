"""Before the stream: settings, the tables, the slot, and whether our position can still be served.

Nothing is ever skipped here: a position the server cannot give is an error that names the repair, never a start
"from now on".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace.capture.postgres.catalog import PostgresCatalog, Table
from tailrace.capture.postgres.connection import REPAIR, ReplicationStream, quote_identifier
from tailrace.capture.postgres.messages import lsn_number, lsn_text
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.reached import Reached
from tailrace.capture.postgres.timelines import check_history
from tailrace.errors import SetupError, SourceError
from tailrace.failpoints import failpoint

FAILOVER_SLOTS = 170000
"""The server version from which a slot can be carried to a standby."""

_Candidate = tuple[Table, tuple[tuple[str, str], ...]]
"""A table and the names, as (schema, table), that a pattern may know it by."""


@dataclass(frozen=True)
class ServerIdentity:
    """Who the server is: a position means something only there."""

    system: str
    timeline: str
    database: str
    flushed: int
    """Where its WAL ends."""

    def resume_at(self, lsn: int) -> dict[str, str]:
        """A position of this server, as the log keeps it."""
        return {
            "lsn": lsn_text(lsn),
            "system": self.system,
            "timeline": self.timeline,
            "database": self.database,
        }


def identify(stream: ReplicationStream) -> ServerIdentity:
    [(system, timeline, flushed, database)] = stream.command("IDENTIFY_SYSTEM")
    return ServerIdentity(str(system), str(timeline), str(database), lsn_number(str(flushed)))


def check_settings(catalog: PostgresCatalog) -> None:
    """The settings without which nothing can be captured."""
    level = catalog.setting("wal_level")
    if level != "logical":
        raise SetupError(
            "source.wal_level",
            f"the server has wal_level = {level}; change data capture needs logical",
            hint="ALTER SYSTEM SET wal_level = logical, then restart the server",
        )
    if not catalog.can_replicate():
        raise SetupError(
            "source.privilege",
            "the role may not replicate",
            hint="ALTER ROLE … REPLICATION (on a hosted service: grant its replication role)",
        )


def matching_tables(catalog: PostgresCatalog, patterns: TablePatterns, publication: str) -> list[Table]:
    """The tables to capture; a pattern that matches none is an error, because it is a typing mistake or a gap."""
    candidates = _candidates(catalog, publication)
    for pattern in patterns.unmatched(name for _, names in candidates for name in names):
        raise SetupError(
            "source.table_missing",
            f"no table matches {pattern!r}",
            hint="create the table or correct source.tables; a pattern is schema.table, with * for any part",
            where="spec.source.config.tables",
        )
    return _fitting(candidates, patterns)


def fits(catalog: PostgresCatalog, patterns: TablePatterns, schema: str, table: str) -> bool:
    """Whether a table, as the stream names it, fits: by its own name or, for a partition, by its root's."""
    if patterns.match(schema, table):
        return True
    root = catalog.partition_root(schema, table)
    return root is not None and patterns.match(*root)


def check_outbox(catalog: PostgresCatalog, patterns: TablePatterns, captured: list[Table]) -> None:
    """An outbox table must be a captured one: otherwise its messages would be missing, silently."""
    roots = {(part.schema, part.table): (schema, table) for part, schema, table in catalog.partitions()}
    names = [(table.schema, table.table) for table in captured]
    for pattern in patterns.unmatched([*names, *(roots[name] for name in names if name in roots)]):
        raise SetupError(
            "source.table_missing",
            f"no captured table matches the outbox's {pattern!r}",
            hint="create the table, or add it to source.tables",
            where="spec.source.config.outbox.tables",
        )


def captured_tables(catalog: PostgresCatalog, patterns: TablePatterns, publication: str) -> list[Table]:
    """The tables to capture, whether or not every pattern has one."""
    return _fitting(_candidates(catalog, publication), patterns)


def _fitting(candidates: list[_Candidate], patterns: TablePatterns) -> list[Table]:
    return [table for table, names in candidates if any(patterns.match(*name) for name in names)]


def _candidates(catalog: PostgresCatalog, publication: str) -> list[_Candidate]:
    """What can be captured, as the stream will name it.

    A partitioned table is one table, unless a publication of the user's names changes by partition: then its
    partitions are tables of their own, which also go by their root's name.
    """
    published = catalog.publication_tables(publication) or set()
    partitions = catalog.partitions()
    apart = {(schema, table) for part, schema, table in partitions if part.name in published}
    whole: list[_Candidate] = [
        (table, ((table.schema, table.table),))
        for table in catalog.tables()
        if (table.schema, table.table) not in apart
    ]
    parts: list[_Candidate] = [
        (part, ((part.schema, part.table), (schema, table)))
        for part, schema, table in partitions
        if (schema, table) in apart
    ]
    return whole + parts


def ensure_slot(
    catalog: PostgresCatalog,
    stream: ReplicationStream,
    slot: str,
    server: ServerIdentity,
    resume: Mapping[str, str] | None,
    waiting: Callable[[], None] = lambda: None,
) -> int:
    """The position to start at, once it is certain that the slot still has everything that the log has not. `waiting`
    is called every second while a new slot waits for transactions that are open.

    That is where the log's newest change ends, or further where the slot is: after that the log's own position only
    passed WAL without changes for it. A server that lost this WAL has other changes there by now.
    """
    found = catalog.slot(slot)
    if found is None:
        if resume is not None:
            raise _position_lost(f"the replication slot {slot!r} is gone", resume["lsn"])
        return _create(catalog, stream, slot, waiting)
    if found.plugin != "pgoutput" or found.database != server.database:
        raise SetupError(
            "source.slot_foreign",
            f"the slot {slot!r} belongs to {found.plugin} in database {found.database!r}",
            hint="choose another source.slot",
        )
    if found.synced and catalog.in_recovery():
        raise SourceError(
            "source.standby",
            f"the server is a standby, and its slot {slot!r} a copy of the primary's",
            hint="point source.dsn at the primary, or promote this server; it is retried",
        )
    if found.lost:
        raise _position_lost(f"the replication slot {slot!r} lost its WAL", resume["lsn"] if resume else "its start")
    if resume is None:
        return found.confirmed
    position = lsn_number(resume["lsn"])
    if found.confirmed > position:
        # PostgreSQL would silently skip ahead to the slot's own position.
        raise _position_lost(
            f"the slot {slot!r} was moved to {lsn_text(found.confirmed)} by someone else", resume["lsn"]
        )
    return max(found.confirmed, Reached.of(resume).end)


def let_fail_over(catalog: PostgresCatalog, stream: ReplicationStream, slot: str) -> None:
    """Let standbys copy a slot of ours that was made otherwise: by an older version, or on an older server."""
    found = catalog.slot(slot)
    if found is not None and found.stays and not catalog.in_recovery():
        stream.command(f"ALTER_REPLICATION_SLOT {quote_identifier(slot)} (FAILOVER true)")


def end_zombie(catalog: PostgresCatalog, slot: str, application: str) -> None:
    """End a walsender that still serves an earlier life of this tap.

    `application` names source and log, and a log has one living writer: whoever reads the slot under that name
    is a connection whose other end is dead, and the server has not noticed yet.
    """
    found = catalog.slot(slot)
    if found is not None and found.active_pid is not None:
        with contextlib.suppress(SetupError):  # of another role: the server will notice by itself
            catalog.end_reader(found.active_pid, application)


def check_server(stream: ReplicationStream, server: ServerIdentity, resume: Mapping[str, str] | None) -> None:
    """A position means something only in the database it is from, on a server whose history has it."""
    if resume is None:
        return
    if (resume["system"], resume["database"]) == (server.system, server.database):
        check_history(stream, server.timeline, resume)
        return
    raise SourceError(
        "source.wrong_server",
        f"the log continues database {resume['database']!r} of system {resume['system']}, "
        f"this is {server.database!r} of system {server.system}",
        hint="point source.dsn at the original server, or use another source id for this one",
    )


def _create(catalog: PostgresCatalog, stream: ReplicationStream, slot: str, waiting: Callable[[], None]) -> int:
    """A slot that standbys can copy where the server knows such slots; a standby cannot make one itself. The server
    waits for every transaction that is open, and keeps nobody waiting for it."""
    copied = catalog.version() >= FAILOVER_SLOTS and not catalog.in_recovery()
    options = "SNAPSHOT 'nothing'" + (", FAILOVER true" if copied else "")
    create = f"CREATE_REPLICATION_SLOT {quote_identifier(slot)} LOGICAL pgoutput ({options})"
    [(_, consistent_point, *_)] = stream.slow_command(create, waiting)
    failpoint("slot.after_create")
    return lsn_number(str(consistent_point))


def _position_lost(what: str, position: str) -> SourceError:
    return SourceError(
        "source.position_lost",
        f"{what}: changes after {position} can no longer be read",
        hint=REPAIR,
    )
