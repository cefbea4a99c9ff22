"""How a store comes to the shape of `tables.py`, step by step.

A step that was released is never edited; a change is a new step. Steps are SQL that SQLite and PostgreSQL both read:
they must not follow when `tables.py` changes.
"""

from __future__ import annotations

import sqlalchemy as sa

from tailrace.control.tables import store_version
from tailrace.errors import SetupError

SNAPSHOTS = (
    """
    CREATE TABLE snapshot_runs (
        id TEXT NOT NULL PRIMARY KEY,
        source TEXT NOT NULL,
        reason TEXT NOT NULL,
        state TEXT NOT NULL,
        log_id TEXT NOT NULL,
        since BIGINT NOT NULL,
        created_us BIGINT NOT NULL,
        finished_us BIGINT,
        error TEXT
    )
    """,
    "CREATE INDEX snapshot_runs_of_source ON snapshot_runs (source, state)",
    """
    CREATE TABLE snapshot_tables (
        run TEXT NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        filter TEXT,
        state TEXT NOT NULL,
        estimate BIGINT,
        rows_read BIGINT NOT NULL DEFAULT 0,
        rows_admitted BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (run, schema_name, table_name),
        FOREIGN KEY (run) REFERENCES snapshot_runs (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE snapshot_chunks (
        run TEXT NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        number BIGINT NOT NULL,
        extent TEXT NOT NULL,
        state TEXT NOT NULL,
        attempts BIGINT NOT NULL DEFAULT 0,
        staged TEXT,
        PRIMARY KEY (run, schema_name, table_name, number),
        FOREIGN KEY (run) REFERENCES snapshot_runs (id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX snapshot_chunks_by_state ON snapshot_chunks (run, state)",
    """
    CREATE TABLE snapshot_debts (
        run TEXT NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        row_key TEXT NOT NULL,
        PRIMARY KEY (run, schema_name, table_name, row_key),
        FOREIGN KEY (run) REFERENCES snapshot_runs (id) ON DELETE CASCADE
    )
    """,
    "CREATE TABLE indexed (source TEXT NOT NULL PRIMARY KEY, log_id TEXT NOT NULL, log_offset BIGINT NOT NULL)",
)

SCHEMAS = (
    """
    CREATE TABLE schema_versions (
        source TEXT NOT NULL,
        log_id TEXT NOT NULL,
        version BIGINT NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        content TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        position TEXT NOT NULL,
        log_offset BIGINT NOT NULL,
        at_us BIGINT NOT NULL,
        PRIMARY KEY (source, log_id, version)
    )
    """,
    "CREATE INDEX schema_versions_of_table ON schema_versions (source, schema_name, table_name, version)",
    """
    CREATE TABLE catalog_sightings (
        source TEXT NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        seen TEXT NOT NULL,
        PRIMARY KEY (source, schema_name, table_name)
    )
    """,
)

FAILED_TABLES = ("ALTER TABLE snapshot_tables ADD COLUMN error TEXT",)

DEAD_LETTERS = (
    """
    CREATE TABLE dead_letters (
        pipeline TEXT NOT NULL,
        number BIGINT NOT NULL,
        sink TEXT NOT NULL,
        processor TEXT NOT NULL,
        source TEXT NOT NULL,
        log_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        part TEXT NOT NULL,
        event_id TEXT NOT NULL,
        op TEXT NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        row_key TEXT,
        schema_id BIGINT NOT NULL,
        position TEXT NOT NULL,
        ts_us BIGINT NOT NULL,
        code TEXT NOT NULL,
        message TEXT NOT NULL,
        state TEXT NOT NULL,
        cut BIGINT NOT NULL,
        packed_row TEXT NOT NULL,
        attempts BIGINT NOT NULL DEFAULT 1,
        first_us BIGINT NOT NULL,
        last_us BIGINT NOT NULL,
        PRIMARY KEY (pipeline, number)
    )
    """,
    "CREATE UNIQUE INDEX dead_letters_once ON dead_letters (pipeline, sink, event_id)",
    "CREATE INDEX dead_letters_by_state ON dead_letters (pipeline, state, sink, number)",
    """
    CREATE TABLE dead_letter_totals (
        pipeline TEXT NOT NULL PRIMARY KEY,
        last_number BIGINT NOT NULL DEFAULT 0,
        evicted BIGINT NOT NULL DEFAULT 0,
        expired BIGINT NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE letter_replays (
        id TEXT NOT NULL PRIMARY KEY,
        pipeline TEXT NOT NULL,
        state TEXT NOT NULL,
        forced BIGINT NOT NULL,
        rate BIGINT,
        created_us BIGINT NOT NULL,
        error TEXT
    )
    """,
    """
    CREATE TABLE replayed_letters (
        replay TEXT NOT NULL,
        number BIGINT NOT NULL,
        sink TEXT NOT NULL,
        verdict TEXT NOT NULL,
        outcome TEXT,
        reason TEXT NOT NULL,
        PRIMARY KEY (replay, number),
        FOREIGN KEY (replay) REFERENCES letter_replays (id) ON DELETE CASCADE
    )
    """,
)

SERVICE = (
    """
    CREATE TABLE counters (
        name TEXT NOT NULL,
        value BIGINT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    """
    CREATE TABLE documents (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        content TEXT NOT NULL,
        hash TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        actor TEXT NOT NULL,
        cause TEXT NOT NULL,
        PRIMARY KEY (kind, name)
    )
    """,
    """
    CREATE TABLE document_versions (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        content TEXT,
        hash TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        actor TEXT NOT NULL,
        cause TEXT NOT NULL,
        PRIMARY KEY (kind, name, version)
    )
    """,
    """
    CREATE TABLE document_labels (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        label TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (kind, name, label)
    )
    """,
    """
    CREATE TABLE desired_states (
        pipeline TEXT NOT NULL,
        state TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        actor TEXT NOT NULL,
        cause TEXT NOT NULL,
        PRIMARY KEY (pipeline)
    )
    """,
    """
    CREATE TABLE actual_states (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        part TEXT NOT NULL,
        state TEXT NOT NULL,
        since_us BIGINT NOT NULL,
        code TEXT NOT NULL,
        message TEXT NOT NULL,
        hint TEXT NOT NULL,
        PRIMARY KEY (kind, name, part)
    )
    """,
    """
    CREATE TABLE transitions (
        number BIGINT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        part TEXT NOT NULL,
        before TEXT,
        after TEXT NOT NULL,
        code TEXT NOT NULL,
        cause TEXT NOT NULL,
        actor TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        PRIMARY KEY (number)
    )
    """,
    "CREATE INDEX transitions_of_object ON transitions (kind, name, number)",
    """
    CREATE TABLE audit (
        number BIGINT NOT NULL,
        actor TEXT NOT NULL,
        action TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        detail TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        PRIMARY KEY (number)
    )
    """,
    "CREATE INDEX audit_of_object ON audit (kind, name, number)",
    """
    CREATE TABLE tokens (
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        hash TEXT NOT NULL,
        scope TEXT NOT NULL,
        sees_values BIGINT NOT NULL,
        created_us BIGINT NOT NULL,
        expires_us BIGINT,
        last_used_us BIGINT,
        revoked_us BIGINT,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE operations (
        id TEXT NOT NULL,
        number BIGINT NOT NULL,
        kind TEXT NOT NULL,
        object TEXT NOT NULL,
        actor TEXT NOT NULL,
        request TEXT NOT NULL,
        idempotency_key TEXT,
        state TEXT NOT NULL,
        holder TEXT,
        progress TEXT NOT NULL,
        result TEXT,
        error TEXT,
        requested_us BIGINT NOT NULL,
        started_us BIGINT,
        ended_us BIGINT,
        cancel_requested BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (id)
    )
    """,
    "CREATE UNIQUE INDEX operations_by_number ON operations (number)",
    "CREATE INDEX operations_by_state ON operations (state, number)",
    "CREATE UNIQUE INDEX operations_once ON operations (kind, idempotency_key)",
    """
    CREATE TABLE leases (
        name TEXT NOT NULL,
        holder TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        expires_us BIGINT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    """
    CREATE TABLE events (
        number BIGINT NOT NULL,
        at_us BIGINT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        type TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (number)
    )
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (SNAPSHOTS, SCHEMAS, FAILED_TABLES, DEAD_LETTERS, SERVICE)


def migrate(connection: sa.Connection, where: str) -> None:
    """Bring a store, new or older, up to date, in the caller's transaction. One that is newer is refused."""
    store_version.create(connection, checkfirst=True)
    version = connection.execute(sa.select(store_version.c.version)).scalar_one_or_none() or 0
    if version > len(MIGRATIONS):
        raise SetupError(
            "store.newer",
            f"the control store has version {version}, this Tailrace knows {len(MIGRATIONS)}",
            hint="run the Tailrace version that wrote it",
            where=where,
        )
    if version == len(MIGRATIONS):
        return
    for step in MIGRATIONS[version:]:
        for statement in step:
            connection.execute(sa.text(statement))
    connection.execute(sa.delete(store_version))
    connection.execute(sa.insert(store_version).values(version=len(MIGRATIONS)))
