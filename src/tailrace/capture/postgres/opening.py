"""Opening a stream: checks the server, makes what is missing on it, and becomes the reader of the slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.capture.postgres import publications, setup
from tailrace.capture.postgres.catalog import PostgresCatalog, Table
from tailrace.capture.postgres.connection import APPLICATION, ReplicationStream
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.contracts import LogState

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource

_ID_LENGTH, _LOG_ID_LENGTH = 37, 16
"""How much of both fits into an application_name of 63 characters."""


@dataclass(frozen=True)
class StartingPlace:
    """Where a stream goes on: on which server, from which position, with which publications."""

    server: setup.ServerIdentity
    standby: bool
    position: int
    publications: tuple[str, ...]
    warnings: list[str]


def application_name(source: str, log_id: str) -> str:
    """How our connection is known to the server: no other log's reader has the same."""
    return f"{APPLICATION}:{source[:_ID_LENGTH]}:{log_id[:_LOG_ID_LENGTH]}"


def find_place(
    config: PostgresSource,
    catalog: PostgresCatalog,
    stream: ReplicationStream,
    after: LogState,
    waiting: Callable[[], None],
) -> StartingPlace:
    """Slot and publications as the log needs them, made where this is its first time. Raises where it cannot go on.
    `waiting` is called every second while the slot waits for open transactions."""
    standby = catalog.in_recovery()  # before the timeline is asked for: a promotion must not pass unnoticed
    server = setup.identify(stream)
    setup.check_server(stream, server, after.resume)  # before anything is made on it
    tables = setup.matching_tables(catalog, TablePatterns(config.tables), config.publication_name)
    setup.check_outbox(catalog, TablePatterns(config.outbox.tables), tables)
    if after.resume is not None:
        publications.check_there(catalog, config.publication_name)
    names = publications.ensure(catalog, config.publication_name, tables)
    setup.end_zombie(catalog, config.slot_name, application_name(config.id, after.log_id))
    position = setup.ensure_slot(catalog, stream, config.slot_name, server, after.resume, waiting)
    if config.slot is None:  # one that you named is as you made it
        setup.let_fail_over(catalog, stream, config.slot_name)
    return StartingPlace(
        server, standby, position, names, _warnings(tables) + _left_out(catalog, config.publication_name)
    )


def heartbeat_s(config: PostgresSource, catalog: PostgresCatalog, *, standby: bool) -> float:
    """The pause between heartbeats; 0 where there are none: not wanted, or not possible."""
    every = config.heartbeat.total_seconds()
    return every if every and not standby and catalog.may_emit_messages() else 0.0


def _warnings(tables: list[Table]) -> list[str]:
    return [
        f"{table.name} has no usable primary key or replica identity: only its inserts and truncates are captured"
        for table in tables
        if not table.identity
    ]


def _left_out(catalog: PostgresCatalog, name: str) -> list[str]:
    """What a publication of the user's does not publish of any table."""
    found = publications.find(catalog, name)
    if found is None or found.ours or found.operations == publications.EVERY_CHANGE:
        return []
    missing = " and ".join(f"{each}s" for each in publications.EVERY_CHANGE if each not in found.operations)
    return [f"the publication {name} does not publish {missing}: they are not captured"]
