"""Snapshots of every kind of table: keys, partitions, privileges, publications, versions of the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tailrace.change import event_id
from tailrace.errors import SetupError
from tests.capture.running import Database, mark
from tests.capture.snapshotting import BIG, ITEMS, Snapshotting, contents, same, stage

KEYS = [
    ("a int, b text, PRIMARY KEY (b, a)", "n % 5, 'k' || n % 7 || repeat('ä', n % 3) || n"),
    ('"A B" text COLLATE "C" PRIMARY KEY', "chr(65 + n % 26) || '\"\\' || n"),
    ("a text PRIMARY KEY", "md5(n::text)"),
    ("a uuid PRIMARY KEY", "md5(n::text)::uuid"),
    ("a timestamptz PRIMARY KEY", "to_timestamp(n * 1e5)"),
    ("a numeric PRIMARY KEY", "n / 7.0"),
    ("a char(9) PRIMARY KEY", "n::text"),
    ("a bytea PRIMARY KEY", "decode(md5(n::text), 'hex')"),
    ("a int[] PRIMARY KEY", "ARRAY[n, NULL, 3]"),
    ("a jsonb PRIMARY KEY", "jsonb_build_object('n', n)"),
    ("a float8 PRIMARY KEY", "CASE n WHEN 1 THEN 'NaN'::float8 ELSE n / 3.0 END"),
    ("a date PRIMARY KEY", "CASE n WHEN 1 THEN 'infinity'::date ELSE '0044-03-15 BC'::date + n END"),
]


def test_keys_of_every_kind(db: Database, tmp_path: Path) -> None:
    """Ranges are compared in the database; a key that is owed is found again by what the log calls it."""
    tables = [f"t{number}" for number in range(len(KEYS))]
    for table, (key, values) in zip(tables, KEYS, strict=True):
        db.run(f"CREATE TABLE {table} ({key}, big text, v text)", f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
        db.run(f"INSERT INTO {table} SELECT {values}, '{BIG}' FROM generate_series(1, 57) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run(*(f"UPDATE {table} SET v = 'new'" for table in tables))
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert {row["op"] for row in found} == {"u", "r"}
    for table in tables:
        state = [row for (name, _), row in contents(found).items() if name == table]
        assert len(state) == 57
        assert {(row["big"], row["v"]) for row in state} == {(BIG, "new")}


def test_partitions_are_read_through_their_root(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE items (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE items_low PARTITION OF items FOR VALUES FROM (0) TO (20)",
        "CREATE TABLE items_high PARTITION OF items FOR VALUES FROM (20) TO (100)",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "INSERT INTO items SELECT n, 'v' FROM generate_series(1, 50) n",
    )
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        found = run.finish()
    assert {row["table"] for row in found} == {"items"}
    assert same(found, db)


def test_rows_of_tables_that_inherit_are_their_own(db: Database, tmp_path: Path) -> None:
    """The stream names a change by the table that has the row: the parent's snapshot must not have its children's."""
    db.run(
        "CREATE TABLE parent (id int PRIMARY KEY, v text)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1, 'mine')",
        "INSERT INTO child SELECT n, 'its own' FROM generate_series(2, 30) n",
        "ANALYZE parent, child",
    )
    with Snapshotting(db, tmp_path) as run:
        assert dict((table, rows) for _, table, rows in run.source.snapshot_tables()) == {"parent": 1, "child": 29}
        run.begin()
        run.finish()
        db.run("DELETE FROM child WHERE id = 2")
        found = run.capturing.changes()
    rows = [(table, json.loads(key)["id"]) for table, key in contents(found)]
    assert sorted(rows) == [*(("child", n) for n in range(3, 31)), ("parent", 1)]


def test_a_parent_without_rows_of_its_own_has_none(db: Database) -> None:
    db.run("CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (parent)")
    db.run("INSERT INTO child VALUES (1)")
    assert not db.source(tables=["public.parent"]).has_rows()
    assert db.source(tables=["public.child"]).has_rows()


def test_a_role_that_may_only_select(db: Database, tmp_path: Path) -> None:
    db.run(
        ITEMS,
        "INSERT INTO items VALUES (1, 'b', 'v')",
        "CREATE PUBLICATION shop FOR TABLE items",
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'r'",
        "GRANT SELECT ON items TO reader",
    )
    try:
        dsn = psycopg.conninfo.make_conninfo(db.dsn, user="reader", password="r")
        with Snapshotting(db, tmp_path, dsn=dsn, publication="shop") as run:
            run.begin()
            assert same(run.finish(), db)
    finally:
        db.drop_slots()
        db.run("DROP OWNED BY reader", "DROP ROLE reader")


def test_row_level_security_is_an_error_and_not_a_gap(db: Database, tmp_path: Path) -> None:
    db.run(
        ITEMS,
        "INSERT INTO items VALUES (1, 'b', 'v')",
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY",
        "CREATE PUBLICATION shop FOR TABLE items",
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'r'",
        "GRANT SELECT ON items TO reader",
    )
    try:
        dsn = psycopg.conninfo.make_conninfo(db.dsn, user="reader", password="r")
        with Snapshotting(db, tmp_path, dsn=dsn, publication="shop") as run:
            run.begin()
            run.work(until=lambda: run.snapshots.failure is not None)
        assert isinstance(run.snapshots.failure, SetupError)
        assert "BYPASSRLS" in run.snapshots.failure.hint
        [failed] = run.ledger.runs(run.source.id)
        assert (failed.state, (failed.error or {})["code"]) == ("failed", "source.privilege")
    finally:
        db.drop_slots()
        db.run("DROP OWNED BY reader", "DROP ROLE reader")


def test_column_lists_and_row_filters_of_the_publication_are_kept(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE items (id int PRIMARY KEY, v text, secret text, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO items SELECT n, 'v', 'secret' FROM generate_series(1, 20) n",
        "CREATE PUBLICATION shop FOR TABLE items (id, v) WHERE (id > 10)",
    )
    with Snapshotting(db, tmp_path, publication="shop") as run:
        run.begin()
        found = run.finish()
        db.run("INSERT INTO items VALUES (21, 'v', 'secret')")
        streamed = run.capturing.changes()[-1]
    assert [json.loads(row["after"]) for row in found] == [{"id": n, "v": "v"} for n in range(11, 21)]
    assert streamed["schema_id"] == found[0]["schema_id"]


@pytest.mark.parametrize(("major", "published"), [(15, {"id", "v"}), (18, {"id", "v", "twice"})])
def test_generated_columns_as_the_stream_has_them(
    major: int, published: set[str], database: Callable[..., Database], tmp_path: Path
) -> None:
    db = database(major)
    db.run(
        "CREATE TABLE items (id int PRIMARY KEY, gone int, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
        "ALTER TABLE items DROP gone",
        "INSERT INTO items (id, v) VALUES (1, 'v')",
    )
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        run.finish()
        db.run("INSERT INTO items (id, v) VALUES (2, 'v')")
        found = run.capturing.changes()
    assert [(row["op"], json.loads(row["after"]).keys()) for row in found] == [("r", published), ("c", published)]
    assert len({row["schema_id"] for row in found}) == 1


def test_a_source_that_is_read_on_every_version(database: Callable[..., Database], tmp_path: Path) -> None:
    for major in (15, 16):
        db = database(major)
        db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 30) n")
        with Snapshotting(db, tmp_path / str(major)) as run:
            run.begin()
            assert same(run.finish(), db)


def test_no_two_changes_of_a_log_have_one_id(db: Database, tmp_path: Path) -> None:
    """Chunks are numbered within their table, and several are admitted at one position. Whoever drops an id that it
    knows must lose nothing."""
    db.run(
        ITEMS,
        "CREATE TABLE parts (LIKE items INCLUDING ALL)",
        "CREATE SCHEMA other",
        "CREATE TABLE other.items (LIKE items INCLUDING ALL)",
        *(
            f"INSERT INTO {table} SELECT n, 'b', 'old' FROM generate_series(1, 25) n"
            for table in ("items", "parts", "other.items")
        ),
    )
    with Snapshotting(db, tmp_path, tables=["public.*", "other.*"]) as run:
        run.begin()
        found = run.finish()
    assert len(found) == 75
    ids = [event_id(row["source"], row["position"], row["tx_ordinal"]) for row in found]
    assert len(set(ids)) == 75
    whole = {(row["tx_id"], row["schema"], row["table"]) for row in found}
    assert len({tx for tx, _, _ in whole}) == len(whole), "a transaction is of one chunk of one table"


def test_names_with_dots_and_quotes_share_no_id(db: Database, tmp_path: Path) -> None:
    """`a` and `b.c`, `a.b` and `c`: both are admitted as chunk 0 of one run. Envelopes have the id as it is."""
    tables = ['a."b.c"', '"a.b".c', 'a."quo""te"']
    db.run("CREATE SCHEMA a", 'CREATE SCHEMA "a.b"')
    for table in tables:
        db.run(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    with Snapshotting(db, tmp_path, tables=["*"]) as run:
        run.begin()
        found = run.finish()
    names = {row["tx_id"] for row in found}
    assert len(names) == len(found) == 3
    assert all(json.loads(f'"{name}"') == name for name in names)
