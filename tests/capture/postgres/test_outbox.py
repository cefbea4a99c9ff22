"""The outbox tag: on messages with its prefixes and on inserts into its tables, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.capture.postgres.outbox import TAG
from tailrace.errors import TailraceError
from tests.capture.running import Capturing, Database

Start = Callable[..., Capturing]


def tags(run: Capturing) -> list[tuple[str, str, bool]]:
    return [(row["op"], row["table"], dict(row["headers"] or ()).get(TAG) == "true") for row in run.changes()]


def test_messages_by_prefix(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = capturing(db, outbox={"prefixes": ["outbox", "mail.*"]})
    for transactional, prefix in (("true", "outbox"), ("false", "mail.welcome"), ("true", "outbox2"), ("true", "mail")):
        db.run(f"SELECT pg_logical_emit_message({transactional}, '{prefix}', '{{\"a\": 1}}')")
    assert tags(run) == [
        ("m", "outbox", True),
        ("m", "mail.welcome", True),
        ("m", "outbox2", False),
        ("m", "mail", False),
    ]


def test_inserts_by_table(db: Database, capturing: Start) -> None:
    db.run(
        "CREATE TABLE outbox (id int PRIMARY KEY, payload jsonb)",
        "CREATE TABLE orders (id int PRIMARY KEY)",
    )
    run = capturing(db, outbox={"tables": ["public.outbox"]})
    db.run(
        "INSERT INTO outbox VALUES (1, '{}'); INSERT INTO orders VALUES (1); INSERT INTO outbox VALUES (2, '{}')",
        "UPDATE outbox SET payload = '[]' WHERE id = 1",
        "UPDATE outbox SET id = 3 WHERE id = 1",
        "DELETE FROM outbox",
    )
    assert sorted(tags(run)) == sorted(
        [
            ("c", "outbox", True),
            ("c", "orders", False),
            ("c", "outbox", True),
            ("u", "outbox", False),
            ("d", "outbox", False),
            ("c", "outbox", False),
            ("d", "outbox", False),
            ("d", "outbox", False),
        ]
    )
    moved = [row for row in run.changes() if row["op"] == "c" and dict(row["headers"] or ()).get("old_key")]
    assert [row["key"] for row in moved] == ['{"id":3}']


def test_the_tag_stands_beside_other_headers(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE outbox (id int PRIMARY KEY)", f"SELECT pg_replication_origin_create('from_{db.name}')")
    run = capturing(db, outbox={"tables": ["outbox"]})
    with db.connect() as session:
        session.execute("SELECT pg_replication_origin_session_setup(%s)", [f"from_{db.name}"])
        session.execute("INSERT INTO outbox VALUES (1)")
    [row] = run.changes()
    assert dict(row["headers"]) == {TAG: "true", "origin": f"from_{db.name}"}
    db.run(f"SELECT pg_replication_origin_drop('from_{db.name}')")


def test_partitions_of_an_outbox(db: Database, capturing: Start) -> None:
    db.run(
        "CREATE TABLE outbox (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF outbox FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION mine FOR TABLE outbox",
    )
    run = capturing(db, publication="mine", outbox={"tables": ["public.outbox"]})
    db.run("INSERT INTO outbox VALUES (1)")
    assert tags(run) == [("c", "part", True)]


def test_an_outbox_table_that_is_not_captured(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE outbox (id int PRIMARY KEY)")
    error = capturing(db, tables=["public.t"], outbox={"tables": ["public.outbox"]}).failure()
    assert isinstance(error, TailraceError)
    assert error.code == "source.table_missing"
    assert "outbox" in error.where
