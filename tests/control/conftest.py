"""Stores of the tests' own: the shipped one, and the same tables in PostgreSQL, which must understand every query."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[2]))

from tailrace.control import Store
from tailrace.control.migrations import migrate
from tailrace.testing.servers import PostgresServer
from tests.capture.running import Database


class PostgresStore(Store):
    """The store in a PostgreSQL database, as far as one process at a time goes."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        with self.transaction() as connection:
            migrate(connection)


@pytest.fixture
def engine(tmp_path: Path, postgres_server: Callable[[int], PostgresServer]) -> Iterator[Callable[[str], sa.Engine]]:
    """`engine(dialect)`: an engine on an empty database."""
    with ExitStack() as made:

        def of_dialect(dialect: str) -> sa.Engine:
            if dialect == "sqlite":
                return sa.create_engine(f"sqlite:///{tmp_path / 'empty.db'}")
            dsn = made.enter_context(Database(postgres_server(18))).dsn
            found = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
            made.callback(found.dispose)
            return found

        yield of_dialect


@pytest.fixture
def open_store(tmp_path: Path, engine: Callable[[str], sa.Engine]) -> Iterator[Callable[[str], Store]]:
    """`open_store(dialect)`: a new, empty store there."""
    with ExitStack() as opened:

        def of_dialect(dialect: str) -> Store:
            made = Store(tmp_path / "control.db") if dialect == "sqlite" else PostgresStore(engine(dialect))
            return opened.enter_context(closing(made))

        yield of_dialect


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, open_store: Callable[[str], Store]) -> Store:
    """An empty store, once in each database."""
    return open_store(request.param)
