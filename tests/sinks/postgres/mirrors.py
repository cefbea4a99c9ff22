"""A mirror in a database of the test's own, fed by hand."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
from psycopg.rows import dict_row

from tailrace.sinks.postgres import PostgresMirror
from tests.capture.running import Database
from tests.processors.steps import Even


def mirror(db: Database, **options: Any) -> PostgresMirror:
    return PostgresMirror.from_document({"id": "copy", "mode": "mirror", "dsn": db.dsn, **options})


def read(db: Database, table: str, order: str = "id") -> list[dict[str, Any]]:
    """The rows of a table in `public`."""
    with psycopg.connect(db.dsn, row_factory=dict_row) as connection:
        return connection.execute(f'SELECT * FROM public."{table}" ORDER BY {order}'.encode()).fetchall()


class Coded(Even):
    """Runs in Spark's tasks, as code of the user's does."""

    user_code: ClassVar[bool] = True
