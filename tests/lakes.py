"""Lake tables as other engines read them, and the source's rows in the same shape."""

from __future__ import annotations

from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from psycopg.types.json import set_json_loads
from pyiceberg.catalog.sql import SqlCatalog

from tests.capture.running import Database

SINKS = """
{{type: delta, config: {{id: delta, write_mode: upsert, path: {folder}/delta, commit_interval: 500ms}}}},
{{type: iceberg, config: {{id: ice2, write_mode: upsert, warehouse: {folder}/ice2, commit_interval: 500ms,
  catalog_uri: "sqlite:///{folder}/ice2.db"}}}},
{{type: iceberg, config: {{id: ice3, write_mode: upsert, warehouse: {folder}/ice3, commit_interval: 500ms,
  catalog_uri: "sqlite:///{folder}/ice3.db", format_version: 3}}}}
"""
"""A sink of each format."""
_UPKEEP = (
    "maintenance: {{enabled: true, compaction_interval_seconds: 5, compaction_file_threshold: 2, "
    "expire_snapshots_interval_seconds: 7, expire_snapshots_older_than_seconds: 3600}}"
)
TENDED = SINKS.replace("write_mode: upsert", f"write_mode: upsert, {_UPKEEP}")
"""The same, with their tables tended all the time."""


def delta(folder: Path, table: str) -> pa.Table:
    """By DuckDB, whose extension is a package that is loaded from where it lies."""
    version = f"v{duckdb.__version__}"
    extension = files("duckdb_extension_delta") / "extensions" / version / "delta.duckdb_extension"
    with duckdb.connect() as engine:
        engine.execute(f"LOAD '{extension}'")
        return engine.execute("FROM delta_scan(?)", [str(folder / "delta" / f"public__{table}")]).to_arrow_table()


def delta_rs(folder: Path, table: str) -> pa.Table | None:
    """By delta-rs; None where it knows not all that the table needs."""
    found = DeltaTable(str(folder / "delta" / f"public__{table}"))
    if "typeWidening" in (found.protocol().reader_features or ()):
        return None
    engine = QueryBuilder().register("t", found)
    return pa.table(engine.execute("SELECT * FROM t").read_all())


def iceberg(folder: Path, name: str, table: str) -> pa.Table:
    """By PyIceberg."""
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/{name}.db", warehouse=str(folder / name))
    return catalog.load_table(("default", f"public__{table}")).scan().to_arrow()


def rows_of(found: pa.Table, columns: list[str]) -> list[dict[str, Any]]:
    """By DuckDB, which orders them."""
    ordered = duckdb.sql("SELECT * FROM found ORDER BY id").to_arrow_table()
    return [{name: _plain(row[name]) for name in columns} for row in ordered.to_pylist()]


def source_rows(db: Database, table: str) -> tuple[list[str], list[dict[str, Any]]]:
    """(columns, rows) of the database."""
    with db.connect() as connection:
        connection.execute("SET timezone TO 'UTC'")
        set_json_loads(lambda text: bytes(text).decode() if isinstance(text, bytes) else text, connection)
        cursor = connection.execute(f"SELECT * FROM {table} ORDER BY id".encode())
        columns = [each.name for each in cursor.description or ()]
        return columns, [dict(zip(columns, map(_plain, row), strict=True)) for row in cursor.fetchall()]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value
