"""What a source keeps at its server, publications and a slot: made before the first run, removed after the last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from psycopg import sql

from tailrace.capture.postgres import publications, setup
from tailrace.capture.postgres.catalog import LOCK_S, PostgresCatalog
from tailrace.capture.postgres.connection import ReplicationStream, quote_identifier
from tailrace.capture.postgres.health import look
from tailrace.capture.postgres.messages import lsn_text
from tailrace.capture.postgres.patterns import TablePatterns
from tailrace.capture.postgres.restore import check_restored
from tailrace.config import MIB
from tailrace.errors import SetupError, SourceError
from tailrace.failpoints import failpoint

if TYPE_CHECKING:
    from tailrace.capture.postgres import PostgresSource

RELEASE_S = 10.0
"""How long a slot that is to be dropped may still have a reader."""


@dataclass(frozen=True)
class ServerObject:
    """A thing at the server. `made`: it was not there before."""

    kind: Literal["publication", "slot"]
    name: str
    detail: str
    made: bool = False


def deploy(source: PostgresSource, resume: Mapping[str, str] | None) -> list[ServerObject]:
    """Make what is missing, exactly as the tap would: from now on the server keeps WAL for it.

    `resume` is the log's position where there is one; what that needs is only checked, never made anew.
    """
    with contextlib.closing(_catalog(source)) as catalog:
        setup.check_settings(catalog)
        check_restored(source.conninfo(), catalog, resume)
        with contextlib.closing(_replication(source)) as stream:
            return _deploy(source, catalog, stream, resume)


def deployed(source: PostgresSource) -> list[ServerObject]:
    """What `undeploy` would remove: the slot, and the publications that are ours."""
    with contextlib.closing(_catalog(source)) as catalog:
        return _deployed(catalog, source)


def undeploy(source: PostgresSource) -> list[ServerObject]:
    """Remove it. A slot that somebody reads is refused before anything is removed."""
    with contextlib.closing(_catalog(source)) as catalog:
        parts = _deployed(catalog, source)
        for part in parts:
            if part.kind == "slot":
                catalog.rows("SELECT pg_drop_replication_slot(%s)", part.name)
                failpoint("undeploy.after_slot")
        for part in parts:
            if part.kind == "publication":
                catalog.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(part.name)))
                failpoint("undeploy.after_publication")
        return parts


def drop_slot(source: PostgresSource) -> None:
    """Drop the slot once nobody reads it; harmless where there is none. A server may take a moment to notice that its
    reader is gone; raises `source.slot_in_use`, which is retried, where it does not."""
    with contextlib.closing(_catalog(source)) as catalog, contextlib.closing(_replication(source)) as stream:
        if catalog.slot(source.slot_name) is not None:
            deadline = time.monotonic() + RELEASE_S
            drop = f"DROP_REPLICATION_SLOT {quote_identifier(source.slot_name)} WAIT"
            stream.slow_command(drop, lambda: _give_up(source, deadline))


def _give_up(source: PostgresSource, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SourceError(
            "source.slot_in_use",
            f"somebody reads the slot {source.slot_name!r}, which is to be dropped",
            hint="stop whoever reads it; it is retried",
        )


def _replication(source: PostgresSource) -> ReplicationStream:
    return ReplicationStream(source.conninfo())


def _catalog(source: PostgresSource) -> PostgresCatalog:
    return PostgresCatalog(source.conninfo(), lock_s=LOCK_S)


def _deploy(
    source: PostgresSource, catalog: PostgresCatalog, stream: ReplicationStream, resume: Mapping[str, str] | None
) -> list[ServerObject]:
    server = setup.identify(stream)
    setup.check_server(stream, server, resume)
    tables = setup.matching_tables(catalog, TablePatterns(source.tables), source.publication_name)
    setup.check_outbox(catalog, TablePatterns(source.outbox.tables), tables)
    if resume is not None:
        publications.check_there(catalog, source.publication_name)
    before = {part.name for part in _publications(catalog, source)}
    names = publications.ensure(catalog, source.publication_name, tables)
    parts = [_publication(catalog, name, made=_is_new(catalog, name, before)) for name in names]
    new = catalog.slot(source.slot_name) is None
    position = setup.ensure_slot(catalog, stream, source.slot_name, server, resume)
    return [*parts, ServerObject("slot", source.slot_name, f"from {lsn_text(position)}", new)]


def _deployed(catalog: PostgresCatalog, source: PostgresSource) -> list[ServerObject]:
    found = catalog.slot(source.slot_name)
    slots: list[ServerObject] = []
    if found is not None and found.plugin == "pgoutput" and found.database == catalog.database():
        if found.active_pid is not None:
            raise SetupError(
                "source.slot_in_use",
                f"server process {found.active_pid} reads the slot {source.slot_name!r} for a client",
                hint="stop the pipeline that reads it first",
            )
        health = look(catalog, source.slot_name)
        held = f"{health.held_bytes / MIB:,.1f} MiB of WAL" if health else "WAL"
        slots = [ServerObject("slot", source.slot_name, f"at {lsn_text(found.confirmed)}, holds {held}")]
    return [*slots, *_publications(catalog, source)]


def _publications(catalog: PostgresCatalog, source: PostgresSource) -> list[ServerObject]:
    names = publications.published_names(source.publication_name)
    return [_publication(catalog, name) for name in names if catalog.publication_is_ours(name)]


def _publication(catalog: PostgresCatalog, name: str, *, made: bool = False) -> ServerObject:
    tables = sorted(catalog.publication_tables(name) or ())
    return ServerObject("publication", name, ", ".join(tables) or "no tables", made)


def _is_new(catalog: PostgresCatalog, name: str, before: set[str]) -> bool:
    return name not in before and catalog.publication_is_ours(name)
