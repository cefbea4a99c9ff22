"""Events in a table of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.contracts import Span
from tailrace.errors import SinkError
from tailrace.sinks.postgres import PostgresEvents
from tailrace.testing.failpoints import dies_at
from tailrace.testing.servers import PostgresServer
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.suites.sinks import DELIVERY, LOG, Change, Received, ServerSinkSuite, deliver, versions, write
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
    notes_letters = True
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


def found(db: Database) -> list[tuple[Any, ...]]:
    return db.rows("SELECT source_offset, event_key, source_topic, source_partition FROM events ORDER BY source_offset")


def test_what_each_row_has(db: Database, sink: PostgresEvents) -> None:
    sink.prepare(DELIVERY)
    deliver(sink, [Change(5, 3, 0)])
    assert found(db) == [(5, '{"id": 3}', "public.orders", 3)]
    routed = events(db.dsn, id="routed", topic="shop.${source.table}", key="${after.n}")
    routed.prepare(DELIVERY)
    deliver(routed, [Change(6, 3, 7)])
    assert found(db)[1] == (6, "7", "shop.orders", 3)


def test_rows_that_a_consumer_took_do_not_come_back(db: Database, sink: PostgresEvents) -> None:
    """The mark, and not the rows, says what was delivered."""
    changes = versions(0, keys=2, rounds=2)
    sink.prepare(DELIVERY)
    receipts = write(sink, changes)
    sink.commit(DELIVERY, Span(LOG, 0, 4), receipts)
    db.run("DELETE FROM events")
    again = write(sink, changes)
    sink.commit(DELIVERY, Span(LOG, 0, 4), again)
    assert found(db) == []


def test_killed_between_staging_and_the_commit(db: Database, sink: PostgresEvents) -> None:
    changes = versions(0, keys=2, rounds=2)
    sink.prepare(DELIVERY)
    with dies_at("postgres.events.before_commit"):
        deliver(sink, changes)
    assert (found(db), sink.mark(DELIVERY, LOG)) == ([], 0)
    sink.prepare(DELIVERY)
    deliver(sink, changes)
    assert [offset for offset, *_ in found(db)] == [0, 1, 2, 3]


def test_what_a_crash_of_the_server_took_is_delivered_again(
    db: Database, sink: PostgresEvents, server: PostgresServer
) -> None:
    """What is staged is in an unlogged table, which a crash empties."""
    changes = versions(0, keys=2, rounds=2)
    sink.prepare(DELIVERY)
    receipts = write(sink, changes)
    server.kill()
    server.start()
    with pytest.raises(SinkError) as failure:
        sink.commit(DELIVERY, Span(LOG, 0, 4), receipts)
    assert failure.value.code == "sink.unavailable" and "lost what was staged" in str(failure.value)
    deliver(sink, changes)
    assert [offset for offset, *_ in found(db)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("(event_id uuid PRIMARY KEY, event_key text)", "has no column event_value, source_topic"),
        (
            "(event_id uuid, event_key text, event_value json, source_topic text, source_partition int, "
            "source_offset bigint)",
            "has no unique index on event_id alone",
        ),
    ],
)
def test_a_table_that_cannot_keep_events_is_refused(db: Database, sink: PostgresEvents, made: str, told: str) -> None:
    db.run(f"CREATE TABLE events {made}")
    with pytest.raises(SinkError, match=told) as failure:
        sink.prepare(DELIVERY)
    assert failure.value.code == "sink.table_mismatch"


def test_a_table_is_made_only_where_that_is_wanted(db: Database) -> None:
    with pytest.raises(SinkError) as failure:
        events(db.dsn, auto_create_table=False).prepare(DELIVERY)
    assert failure.value.code == "sink.table_missing"
    made = events(db.dsn, schema_name="more")
    made.prepare(DELIVERY)
    deliver(made, [Change(0, 1, 0)])
    assert db.value("SELECT count(*) FROM more.events") == 1


def test_a_trigger_that_refuses_stops_the_sink_without_a_value(db: Database, sink: PostgresEvents) -> None:
    sink.prepare(DELIVERY)
    db.run(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not %', NEW.event_value; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION no()",
    )
    with pytest.raises(SinkError) as failure:
        deliver(sink, [Change(0, 1, 0, text="hunter2")])
    assert failure.value.code == "sink.table_failed" and "hunter2" not in str(failure.value)
