"""Checks of a PostgreSQL source, in the order in which its tap would stumble over them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.capture.postgres import PostgresSource, publications, setup
from tailrace.capture.postgres.catalog import PostgresCatalog, Table
from tailrace.capture.postgres.connection import ReplicationStream, quote_identifier
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.publication_watch import ASPECT, PublicationWatch
from tailrace.capture.postgres.restore import check_restored
from tailrace.config import GIB, MIB
from tailrace.contracts import Check, Subject
from tailrace.control import Store
from tailrace.control.sightings import Sightings
from tailrace.errors import LogError, TailraceError
from tailrace.supervisor.inspect.log import summarize
from tailrace.supervisor.layout import Layout

OLDEST_MAJOR = 15
HELD_BYTES = 1 * GIB
"""A slot that holds back more WAL than this is worth a word."""

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class _Facts:
    """`identity` is PostgreSQL's letter; `keyed`: has a primary key; what the role is to the table."""

    identity: str
    keyed: bool
    readable: bool
    owned: bool


@dataclass(frozen=True)
class _Look:
    """What the checks share: the source, a connection, and the tables that the patterns match."""

    subject: Subject
    source: PostgresSource
    catalog: PostgresCatalog
    layout: Layout
    tables: tuple[Table, ...]
    facts: dict[str, _Facts]


def check_postgres(source: PostgresSource, layout: Layout) -> Iterator[Check]:
    """Connect and look. `layout` tells where the source's change log is, or will be."""
    subject = Subject(f"source {source.id}")
    catalog = PostgresCatalog(source.conninfo())
    with contextlib.closing(catalog):
        try:
            yield _connection(subject, catalog)
        except TailraceError as error:
            yield subject.failed("connection", error)
            for check in _CHECKS:
                yield subject.skipped(_name(check), "there is no connection")
            return
        tables = _matching(source, catalog)
        look = _Look(subject, source, catalog, layout, tables, _facts(catalog, tables))
        for check in _CHECKS:
            yield from _guarded(check, look)


def _guarded(check: Callable[[_Look], Iterator[Check]], look: _Look) -> Iterator[Check]:
    """One check that cannot look, for want of a privilege or a connection, keeps no other from looking."""
    try:
        yield from check(look)
    except TailraceError as error:
        yield look.subject.failed(_name(check), error)


def _name(check: Callable[[_Look], Iterator[Check]]) -> str:
    return check.__name__.strip("_").replace("_", " ")


def _matching(source: PostgresSource, catalog: PostgresCatalog) -> tuple[Table, ...]:
    return tuple(setup.captured_tables(catalog, TablePatterns(source.tables), source.publication_name))


def _connection(subject: Subject, catalog: PostgresCatalog) -> Check:
    [(role, database)] = catalog.rows("SELECT current_user, current_database()")
    return subject.ok("connection", f"database {database} as {role}")


def _version(look: _Look) -> Iterator[Check]:
    version = look.catalog.setting("server_version")
    if int(look.catalog.setting("server_version_num")) // 10_000 < OLDEST_MAJOR:
        fix = f"use PostgreSQL {OLDEST_MAJOR} or newer"
        yield look.subject.fail("version", f"PostgreSQL {version} is too old", fix)
    else:
        yield look.subject.ok("version", f"PostgreSQL {version}")


def _tls(look: _Look) -> Iterator[Check]:
    [(protocol, remote)] = look.catalog.rows(
        "SELECT (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()), "
        "inet_client_addr() IS NOT NULL AND inet_client_addr() <> inet_server_addr()"
    )
    if protocol:
        yield look.subject.ok("tls", str(protocol))
    elif remote:
        fix = "set tls.mode to verify-full in the source, or sslmode in its dsn"
        yield look.subject.warn("tls", "the connection is not encrypted", fix)
    else:
        yield look.subject.ok("tls", "not in use; the server is on this machine")


def _wal_level(look: _Look) -> Iterator[Check]:
    level = look.catalog.setting("wal_level")
    if level == "logical":
        yield look.subject.ok("wal level", level)
    else:
        fix = "ALTER SYSTEM SET wal_level = logical, then restart the server"
        yield look.subject.fail("wal level", f"{level}; change data capture needs logical", fix)


def _replication(look: _Look) -> Iterator[Check]:
    """The right to replicate, proved by a replication connection, which also needs a free WAL sender."""
    with contextlib.closing(ReplicationStream(look.source.conninfo())) as stream:
        system = setup.identify(stream).system
    yield look.subject.ok("replication", f"the role may replicate from system {system}")


def _capacity(look: _Look) -> Iterator[Check]:
    used = {
        "max_replication_slots": "SELECT count(*) FROM pg_replication_slots",
        "max_wal_senders": "SELECT count(*) FROM pg_stat_replication",
    }
    there = look.catalog.slot(look.source.slot_name)
    for setting, query in used.items():
        [(taken,)] = look.catalog.rows(query)
        most = int(look.catalog.setting(setting))
        ours = there is not None and (setting == "max_replication_slots" or there.active_pid is not None)
        name = setting.removeprefix("max_").replace("_", " ")
        if taken < most or ours:
            yield look.subject.ok(name, f"{taken} of {most} in use")
        else:
            fix = f"ALTER SYSTEM SET {setting} = {most + 5}, then restart the server, or free one"
            yield look.subject.fail(name, f"all {most} are in use", fix)


def _tables(look: _Look) -> Iterator[Check]:
    known = [(table.schema, table.table) for table in look.tables]
    for pattern in TablePatterns(look.source.tables).unmatched(known):
        fix = "create the table, or correct source.tables: schema.table, with * for any part"
        yield look.subject.fail("tables", f"no table matches {pattern!r}", fix)
    if look.tables:
        yield look.subject.ok("tables", _names([table.name for table in look.tables]))


def _select(look: _Look) -> Iterator[Check]:
    if not look.tables:
        yield look.subject.skipped("select", "no table matches")
        return
    closed = [name for name, facts in look.facts.items() if not facts.readable]
    if closed:
        fix = f"GRANT SELECT ON {', '.join(closed)} TO {_role(look)}; the stream works without"
        yield look.subject.warn("select", f"the role may not read {_names(closed)}", fix)
    else:
        yield look.subject.ok("select", "the role may read every table")


def _replica_identity(look: _Look) -> Iterator[Check]:
    """One line per kind of identity, however many tables there are."""
    if not look.tables:
        yield look.subject.skipped("replica identity", "no table matches")
    kinds: dict[str, list[str]] = {}
    for table in look.tables:
        kinds.setdefault(_identity(look, table), []).append(table.name)
    for kind, names in sorted(kinds.items()):
        detail = f"{_IDENTITIES[kind][0]}: {_names(names)}"
        fix = _IDENTITIES[kind][1].format(table=names[0])
        yield (
            look.subject.warn("replica identity", detail, fix) if fix else look.subject.ok("replica identity", detail)
        )


_IDENTITIES = {
    "d": ("primary key", ""),
    "i": ("an index", ""),
    "f": ("full, by primary key", ""),
    "keyless": ("full, without a key that sinks could use", "ALTER TABLE {table} ADD PRIMARY KEY (…)"),
    "none": (
        "none, so only inserts and truncates are captured",
        "ALTER TABLE {table} ADD PRIMARY KEY (…), or ALTER TABLE {table} REPLICA IDENTITY FULL",
    ),
}


def _identity(look: _Look, table: Table) -> str:
    if not table.identity:
        return "none"
    facts = look.facts[table.name]
    return "keyless" if facts.identity == "f" and not facts.keyed else facts.identity


def _publication(look: _Look) -> Iterator[Check]:
    name = look.source.publication_name
    published = look.catalog.publication_tables(name)
    if not look.tables:
        yield look.subject.skipped("publication", "no table matches")
    elif published is None:
        yield from _may_publish(look, f"{name} will be created", look.tables)
    elif not look.catalog.publication_is_ours(name):
        publications.check_foreign(look.catalog, name, list(look.tables))
        yield look.subject.ok("publication", f"{name}, yours, has every table")
        yield from _breaks_updates(look, name, published)
    else:
        missing = tuple(table for table in look.tables if table.identity and table.name not in published)
        if missing:
            yield from _may_publish(look, f"{name} will get {_names([t.name for t in missing])}", missing)
        else:
            yield look.subject.ok("publication", f"{name} has every table")
    if published is not None:
        yield from _altered(look)


def _altered(look: _Look) -> Iterator[Check]:
    """What somebody altered since the tap last looked: changes made meanwhile are not in the stream."""
    if not look.layout.has_store():
        return
    name = look.source.publication_name
    with contextlib.closing(Store(look.layout.store)) as store:
        seen = Sightings(store, look.source.id, ASPECT)
        watch = PublicationWatch(look.catalog, name, TablePatterns(look.source.tables), seen, first=False)
    found = watch.inspect(mendable=look.catalog.publication_is_ours(name))
    if found:
        fix = "run the pipeline: the tap reads them anew"
        yield look.subject.warn("publication", f"{name} was altered while no tap looked at {_names(found)}", fix)


def _may_publish(look: _Look, plan: str, tables: tuple[Table, ...]) -> Iterator[Check]:
    """Whether the role can do the tap's DDL: CREATE on the database, and the tables' ownership."""
    foreign = [table.name for table in tables if not look.facts[table.name].owned]
    [(create,)] = look.catalog.rows("SELECT has_database_privilege(current_database(), 'CREATE')")
    name = quote_identifier(look.source.publication_name)
    by_hand = f"let their owner run CREATE PUBLICATION {name} FOR TABLE {', '.join(t.name for t in look.tables)}"
    if not create:
        database = quote_identifier(look.catalog.database())
        fix = f"GRANT CREATE ON DATABASE {database} TO {_role(look)}, or {by_hand}"
        yield look.subject.fail("publication", "the role may not create a publication", fix)
    elif foreign:
        yield look.subject.fail("publication", f"the role does not own {_names(foreign)}", by_hand)
    else:
        yield look.subject.ok("publication", plan)


def _breaks_updates(look: _Look, name: str, published: set[str]) -> Iterator[Check]:
    [(writes,)] = look.catalog.rows("SELECT pubupdate OR pubdelete FROM pg_publication WHERE pubname = %s", name)
    bare = [table.name for table in look.tables if not table.identity and table.name in published]
    if writes and bare:
        detail = f"updates and deletes of {_names(bare)} fail: published, without a replica identity"
        yield look.subject.warn("publication", detail, f"ALTER TABLE {bare[0]} REPLICA IDENTITY FULL")


def _slot(look: _Look) -> Iterator[Check]:
    name, resume = look.source.slot_name, _resume(look.layout.log(look.source.id))
    found = look.catalog.slot(name)
    if found is None and resume is None:
        yield look.subject.ok("slot", f"{name} will be created")
        return
    check_restored(look.source.conninfo(), look.catalog, resume)
    with contextlib.closing(ReplicationStream(look.source.conninfo())) as stream:
        # With a slot or a log there is nothing to create: this only looks, or raises.
        setup.ensure_slot(look.catalog, stream, name, setup.identify(stream), resume)
    [(held,)] = look.catalog.rows(
        "SELECT coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() "
        "ELSE pg_current_wal_lsn() END, restart_lsn), 0) FROM pg_replication_slots WHERE slot_name = %s",
        name,
    )
    detail = f"{name} holds {held / MIB:,.1f} MiB of WAL"
    if found is not None and found.active_pid is not None:
        fix = "none, if that is this pipeline; else stop it, or choose another source.slot"
        yield look.subject.warn("slot", f"{detail}; server process {found.active_pid} reads it for a client", fix)
    elif held > HELD_BYTES:
        yield look.subject.warn("slot", detail, "run the pipeline: the server keeps WAL until it is captured")
    else:
        yield look.subject.ok("slot", detail)


_CHECKS = (
    _version,
    _tls,
    _wal_level,
    _replication,
    _capacity,
    _tables,
    _select,
    _replica_identity,
    _publication,
    _slot,
)


def _facts(catalog: PostgresCatalog, tables: tuple[Table, ...]) -> dict[str, _Facts]:
    found = catalog.rows(
        "SELECT n.nspname || '.' || c.relname, c.relreplident::text, "
        "EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), "
        "has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), "
        "pg_has_role(c.relowner, 'USAGE') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname || '.' || c.relname = ANY (%s)",
        [table.name for table in tables],
    )
    return {name: _Facts(*rest) for name, *rest in found}


def _resume(log: Path) -> dict[str, str] | None:
    try:
        resume = summarize(log).resume
    except LogError:
        return None
    return dict(resume) if resume is not None else None


def _role(look: _Look) -> str:
    [(role,)] = look.catalog.rows("SELECT current_user")
    return quote_identifier(role)


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
