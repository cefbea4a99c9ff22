"""PostgreSQL: logical replication with pgoutput. This file is its configuration; `stream` is the open source."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tailrace.config import Dsn, Duration, Model, Secret, Tls, libpq

if TYPE_CHECKING:
    from tailrace.capture.postgres.deployment import ServerObject
    from tailrace.capture.postgres.snapshot.visibility import Visibility
    from tailrace.capture.postgres.stream import PostgresStream
    from tailrace.contracts import ChunkId, Extent, Frame, Provenance, Staged
    from tailrace.control import Store
    from tailrace.schema import TableSchema

_NAME_LENGTH = 63


class Snapshot(Model):
    """Rows that were there before the stream: read in chunks, beside the stream, without locks."""

    mode: Annotated[
        Literal["initial", "always", "never", "when_needed", "no_data"],
        Field(
            description="`initial`: each table once, also one that joins later. `always`: all tables at every start. "
            "`when_needed`: as `initial`, and all tables anew when the position at the source is lost. `no_data`: the "
            "tables' schemas only. `never`: nothing."
        ),
    ] = "initial"
    chunk_size: Annotated[
        int,
        Field(
            ge=1,
            description="Rows of a chunk: what is read in one transaction, and again after a crash.",
            examples=[50_000],
        ),
    ] = 10_000
    max_parallel_tables: Annotated[int, Field(ge=1, description="Tables read at a time, at most.")] = 8
    max_parallel_chunks: Annotated[
        int, Field(ge=1, description="Chunks read at a time, at most; each on a connection of its own.")
    ] = 4
    detached_partitions: Annotated[
        Literal["remove", "keep"],
        Field(
            description="Rows of a partition that is detached, dropped or truncated, which the stream does not delete. "
            "`remove`: the table is read anew as one transaction, which replaces what sinks have of it. `keep`: they "
            "stay, for tables whose old partitions are dropped to save space."
        ),
    ] = "remove"


class Outbox(Model):
    """Which changes an application wrote as messages rather than as data. They get the header `tailrace.outbox` with
    the value `true`; updates and deletes of such tables, and rows that change their key, do not."""

    prefixes: Annotated[
        tuple[str, ...],
        Field(
            description="Logical messages (`pg_logical_emit_message`) with these prefixes; `*` for any part.",
            examples=[["outbox", "mail.*"]],
        ),
    ] = ()
    tables: Annotated[
        tuple[str, ...],
        Field(description="Captured tables whose inserts are messages, as in `tables`.", examples=[["public.outbox"]]),
    ] = ()


class PostgresSource(Model):
    """Captures every committed change of the listed tables of one PostgreSQL database (15 or newer)."""

    id: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            max_length=_NAME_LENGTH,
            description="Unique name of the source: it names the change log. Pipelines with an equal source share it.",
            examples=["shop"],
        ),
    ]
    dsn: Annotated[
        Dsn,
        Field(
            description="Connection string, as a URL or key=value pairs; everything libpq knows may stand in it.",
            examples=["postgresql://cdc:secret@db.example.com:5432/shop"],
        ),
    ]
    password: Annotated[
        Secret | None,
        Field(description="The password, where it should not stand in the DSN.", examples=["secret"]),
    ] = None
    tls: Annotated[Tls | None, Field(description="TLS options. Absent: what the DSN says.")] = None
    tables: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Tables to capture: `schema.table`, with `*` for any part of a name; a name without a "
            "schema matches in every schema.",
            examples=[["public.orders", "billing.*"]],
        ),
    ]
    slot: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9_]{1,63}$",
            description="Replication slot, created when missing. Absent: `tailrace_` and the id.",
            examples=["tailrace_shop"],
        ),
    ] = None
    publication: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=_NAME_LENGTH,
            description="Publication, created and kept up when missing; an existing one of yours is used as it is. "
            "Absent: `tailrace_` and the id.",
            examples=["tailrace_shop"],
        ),
    ] = None

    snapshot: Annotated[
        Snapshot, Field(description="Rows from before the stream. Absent: none are read (`mode: never`).")
    ] = Snapshot(mode="never")
    heartbeat: Annotated[
        Duration,
        Field(
            description="While the captured tables are idle and others write WAL, a logical message is emitted this "
            "often, so that the slot moves on. `0s`: never.",
        ),
    ] = timedelta(seconds=10)

    outbox: Annotated[Outbox, Field(description="Which changes are messages of an application.")] = Outbox()
    on_schema_drift: Annotated[
        Literal["adapt", "halt"],
        Field(
            description="What to do when a captured table's columns or key change: go on with the new version, or stop "
            "before the first change that has it."
        ),
    ] = "adapt"

    @property
    def connector(self) -> str:
        """How envelopes name this kind of source."""
        return self.provenance.connector

    @property
    def provenance(self) -> Provenance:
        """What records say of this kind of source."""
        from tailrace.capture.postgres.provenance import PROVENANCE
        from tailrace.contracts import OutboxNames

        return replace(PROVENANCE, outbox=OutboxNames(self.outbox.tables, self.outbox.prefixes))

    @property
    def slot_name(self) -> str:
        return self.slot or self._default_name()

    @property
    def publication_name(self) -> str:
        return self.publication or self._default_name()

    def conninfo(self) -> str:
        """The connection string with password and TLS options; a secret as a whole."""
        return libpq.conninfo(self.dsn, self.password, self.tls)

    def open(self, memory_bytes: int, group_commit_s: float, store: Store | None = None) -> PostgresStream:
        """Connect and become the reader of the slot. Loads the compiled decoder first. Without a `store`, DDL from
        while nothing ran is found only as far as rows tell of it."""
        from tailrace.capture.postgres.stream import PostgresStream

        return PostgresStream(self, memory_bytes, group_commit_s, store)

    def current_position(self) -> str:
        """Up to where the server has made commits durable by now."""
        from tailrace.capture.postgres.catalog import PostgresCatalog

        with closing(PostgresCatalog(self.conninfo())) as catalog:
            return catalog.current_position()

    def deploy(self, resume: Mapping[str, str] | None) -> list[ServerObject]:
        """Make slot and publications ahead of the first run; `resume` is the log's position, if there is a log."""
        from tailrace.capture.postgres import deployment

        return deployment.deploy(self, resume)

    def deployed(self) -> list[ServerObject]:
        """What `undeploy` would remove from the server."""
        from tailrace.capture.postgres import deployment

        return deployment.deployed(self)

    def undeploy(self) -> list[ServerObject]:
        """Remove slot and publications; publications that are not ours stay."""
        from tailrace.capture.postgres import deployment

        return deployment.undeploy(self)

    @staticmethod
    def is_past(position: str, other: str) -> bool:
        """Whether `position` is at or after `other`."""
        from tailrace.capture.postgres.messages import lsn_number

        return lsn_number(position) >= lsn_number(other)

    @staticmethod
    def position(resume: Mapping[str, str]) -> str:
        """Where a log that resumes like this stands; the beginning of all for one that forgot."""
        return resume.get("lsn", "0/0")

    def nothing_between(self, resume: Mapping[str, str], until: str) -> bool | None:
        """Whether a log that resumes like this lacks no change of a row up to the position `until`. None: that is not
        known now, because its tap is at work, or the server cannot tell."""
        from tailrace.capture.postgres.peek import nothing_between

        return nothing_between(self, resume, until)

    @staticmethod
    def is_home(origin: str, resume: Mapping[str, str]) -> bool:
        """Whether what was read at `origin` is of the server, and the timeline, that a log resumes at: a primary that
        was left behind may have had commits that its successor never saw."""
        system, _, timeline = origin.partition("/")
        return system == resume.get("system") and timeline in ("", resume.get("timeline"))

    def forget_position(self) -> None:
        """Drop the slot: the next stream begins anew. Close the one before first."""
        from tailrace.capture.postgres.deployment import drop_slot

        drop_slot(self)

    def reset_rows(self, tables: Iterable[TableSchema]) -> Frame:
        """A truncate of each table, as one transaction."""
        from tailrace.capture.postgres.rows import DecodedRows

        rows = DecodedRows(1 << 20)
        rows.begin(0, int(time.time() * 1e6))
        for table in tables:
            rows.add("t", table, None, {"reason": "repair"})
        rows.commit(0)
        frame, _ = rows.take_finished()
        assert frame is not None
        return frame

    def snapshot_tables(self) -> list[tuple[str, str, int | None]]:
        """(schema, table, estimated rows) of every captured table."""
        from tailrace.capture.postgres.snapshot.plan import tables

        return tables(self)

    def has_rows(self) -> bool:
        """Whether a captured table has rows."""
        from tailrace.capture.postgres.snapshot.plan import any_rows

        return any_rows(self)

    def preflight(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """Warnings before a snapshot of these tables; raises `source.wal_budget` where the slot would be lost."""
        from tailrace.capture.postgres.catalog import PostgresCatalog, Table
        from tailrace.capture.postgres.health import preflight

        with closing(PostgresCatalog(self.conninfo())) as catalog:
            found = preflight(catalog, self.slot_name, [Table(schema, table, True) for schema, table in tables])
        return [f"{one.message}: {one.hint}" for one in found]

    def plan_chunks(self, schema: str, table: str, after: Extent | None, size: int, count: int) -> list[Extent]:
        """The next chunks of a table, about `count`; one without an end is the last."""
        from tailrace.capture.postgres.snapshot.plan import plan
        from tailrace.capture.postgres.snapshot.read import opened

        with opened(self, schema, table) as (catalog, described):
            return plan(catalog.connection(), described, after, size, count)

    def check_filter(self, schema: str, table: str, condition: str) -> None:
        """Refuse SQL that is not a condition over the table's columns; nothing of it is executed."""
        from tailrace.capture.postgres.snapshot.plan import explain
        from tailrace.capture.postgres.snapshot.read import opened

        with opened(self, schema, table) as (catalog, described):
            explain(catalog.connection(), described, condition)

    def read_chunk(self, chunk: ChunkId, extent: Extent, folder: Path) -> Staged:
        """Read a chunk into a file in `folder`. Runs where the data is wanted: in a Spark task."""
        from tailrace.capture.postgres.snapshot.read import read

        return read(self, chunk, extent, folder)

    def sight(self, seen: str) -> Visibility:
        """What a chunk's read saw, from the text it was staged with."""
        from tailrace.capture.postgres.snapshot.visibility import Visibility

        return Visibility.parse(seen)

    def _default_name(self) -> str:
        return ("tailrace_" + re.sub(r"[^a-z0-9_]", "_", self.id.lower()))[:_NAME_LENGTH]
