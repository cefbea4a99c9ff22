"""What every table sink promises, by the mirror in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tailrace.sinks.postgres import PostgresMirror
from tailrace.testing.servers import PostgresServer
from tailrace.testing.suites.tables import ReadTable, TableSuite
from tests.capture.running import Database
from tests.sinks.postgres.mirrors import mirror, read


class TestMirror(TableSuite):
    dies_at: ClassVar[tuple[str, ...]] = (
        "postgres.mirror.before_release",
        "postgres.mirror.before_commit",
        "postgres.mirror.after_commit",
    )

    @pytest.fixture
    def db(self, postgres: PostgresServer) -> Iterator[Database]:
        with Database(postgres) as database:
            yield database

    @pytest.fixture
    def sink(self, db: Database, tmp_path: Path) -> PostgresMirror:
        return mirror(db)

    @pytest.fixture
    def rows(self, db: Database) -> ReadTable:
        return lambda schema: read(db, schema.table)
