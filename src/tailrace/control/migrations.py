"""How the store came to its present shape. A step that was released is never edited; a change is a new step."""

from __future__ import annotations

SNAPSHOTS = (
    """
    CREATE TABLE snapshot_runs (
        id TEXT PRIMARY KEY,
        source TEXT NOT NULL,
        reason TEXT NOT NULL,
        state TEXT NOT NULL,
        log_id TEXT NOT NULL,
        since INTEGER NOT NULL,
        created_us INTEGER NOT NULL,
        finished_us INTEGER,
        error TEXT
    )
    """,
    "CREATE INDEX snapshot_runs_of_source ON snapshot_runs (source, state)",
    """
    CREATE TABLE snapshot_tables (
        run TEXT NOT NULL REFERENCES snapshot_runs ON DELETE CASCADE,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        filter TEXT,
        state TEXT NOT NULL,
        estimate INTEGER,
        rows_read INTEGER NOT NULL DEFAULT 0,
        rows_admitted INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (run, schema_name, table_name)
    )
    """,
    """
    CREATE TABLE snapshot_chunks (
        run TEXT NOT NULL REFERENCES snapshot_runs ON DELETE CASCADE,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        number INTEGER NOT NULL,
        extent TEXT NOT NULL,
        state TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        staged TEXT,
        PRIMARY KEY (run, schema_name, table_name, number)
    )
    """,
    "CREATE INDEX snapshot_chunks_by_state ON snapshot_chunks (run, state)",
    """
    CREATE TABLE snapshot_debts (
        run TEXT NOT NULL REFERENCES snapshot_runs ON DELETE CASCADE,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        row_key TEXT NOT NULL,
        PRIMARY KEY (run, schema_name, table_name, row_key)
    )
    """,
    "CREATE TABLE indexed (source TEXT PRIMARY KEY, log_id TEXT NOT NULL, log_offset INTEGER NOT NULL)",
)

SCHEMAS = (
    """
    CREATE TABLE schema_versions (
        source TEXT NOT NULL,
        log_id TEXT NOT NULL,
        version INTEGER NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        content TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        position TEXT NOT NULL,
        log_offset INTEGER NOT NULL,
        at_us INTEGER NOT NULL,
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

MIGRATIONS: tuple[tuple[str, ...], ...] = (SNAPSHOTS, SCHEMAS)
