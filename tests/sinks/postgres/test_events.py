"""Events in a table of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.sinks.postgres import PostgresEvents
from tailrace.testing.servers import PostgresServer
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.suites.sinks import Received, ServerSinkSuite
from tests.capture.running import Database

NOBODY = "postgresql://nobody@127.0.0.1:1/none"


def events(dsn: str, **options: Any) -> PostgresEvents:
    return PostgresEvents.from_document({"id": "copy", "mode": "events", "dsn": dsn, "table_name": "events", **options})


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Its own: it is stopped and frozen."""
    with PostgresServer(18) as running:
        yield running


@pytest.fixture
def db(server: PostgresServer) -> Iterator[Database]:
    with Database(server) as database:
        yield database


@pytest.fixture
def sink(db: Database) -> PostgresEvents:
    return events(db.dsn)


class TestEvents(ServerSinkSuite):
    repeats = "absorbed"
    poison = "\0"

    @pytest.fixture
    def server(self, server: PostgresServer) -> LocalServer:
        return server

    @pytest.fixture
    def sink(self, sink: PostgresEvents) -> PostgresEvents:
        return sink

    @pytest.fixture
    def hasty(self, db: Database) -> PostgresEvents:
        return events(db.dsn, statement_timeout="1s", connect_timeout="1s")

    @pytest.fixture
    def received(self, db: Database) -> Received:
        def read() -> list[str]:
            with db.connect() as connection:
                rows = connection.execute("SELECT event_value::text FROM events ORDER BY source_offset").fetchall()
            return [text for (text,) in rows]

        return read

    @pytest.fixture
    def unavailable(self) -> PostgresEvents:
        return events(NOBODY, connect_timeout="1s")

    @pytest.fixture(autouse=True)
    def strict(self, db: Database, request: pytest.FixtureRequest) -> None:
        """A table of the user's, which refuses what the sink's own would take."""
        if "refused" in request.node.name:
            db.run(
                "CREATE TABLE events (event_id uuid PRIMARY KEY, event_key text, event_value json, source_topic text, "
                "source_partition int, source_offset bigint, more text DEFAULT 'x', "
                r"CHECK (event_value::text NOT LIKE '%\\u0000%'))"
            )
