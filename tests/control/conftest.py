"""Stores of the tests' own: in a file, and in a schema of a PostgreSQL database."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[2]))

from tailrace.config import Dsn
from tailrace.control import Store, StorePlace
from tailrace.testing.servers import PostgresServer

Places = Callable[[str], StorePlace]


@pytest.fixture
def place(tmp_path: Path, postgres_server: Callable[[int], PostgresServer]) -> Iterator[Places]:
    """`place(dialect)`: where an empty store can be made, the same each time."""
    with ExitStack() as made:
        schema: list[str] = []

        def of_dialect(dialect: str) -> StorePlace:
            if dialect == "sqlite":
                return tmp_path / "control.db"
            if not schema:
                schema.append(made.enter_context(_Schema(postgres_server(18))).url)
            return Dsn(schema[0])

        yield of_dialect


class _Schema:
    """An empty schema of the server's first database; quicker than a database of its own."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._name = server, f"store_{uuid.uuid4().hex[:10]}"
        self.url = server.dsn(options=f"-csearch_path={self._name}")

    def __enter__(self) -> _Schema:
        self._run(f"CREATE SCHEMA {self._name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._run(f"DROP SCHEMA {self._name} CASCADE")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture
def open_store(place: Places) -> Iterator[Callable[[str], Store]]:
    """`open_store(dialect)`: the store of this test there, which is empty at first."""
    with ExitStack() as opened:
        yield lambda dialect: opened.enter_context(closing(Store(place(dialect))))


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Each database that may hold a store."""
    return str(request.param)


@pytest.fixture
def store(dialect: str, open_store: Callable[[str], Store]) -> Store:
    """An empty store, once in each database."""
    return open_store(dialect)


@pytest.fixture
def engine(tmp_path: Path, postgres_server: Callable[[int], PostgresServer]) -> Iterator[Callable[[str], sa.Engine]]:
    """`engine(dialect)`: an engine on an empty database that no store uses."""
    with ExitStack() as made:

        def of_dialect(dialect: str) -> sa.Engine:
            if dialect == "sqlite":
                return sa.create_engine(f"sqlite:///{tmp_path / 'empty.db'}")
            url = made.enter_context(_Schema(postgres_server(18))).url
            found = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
            made.callback(found.dispose)
            return found

        yield of_dialect
