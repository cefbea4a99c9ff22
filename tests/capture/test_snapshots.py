"""Snapshots beside the stream: the log, folded by key, equals the source, whatever happens in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.postgres.snapshot.visibility import Visibility
from tailrace.contracts import ChunkId, Extent
from tailrace.control import Store
from tailrace.control.ledger import Ledger
from tailrace.errors import ConfigError, SetupError
from tailrace.testing.waiting import eventually
from tests.capture.running import Database, logged, mark
from tests.capture.snapshotting import Snapshotting, contents

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, big text, v text)"
EXTERNAL = "ALTER TABLE items ALTER big SET STORAGE EXTERNAL"
BIG = "x" * 4000


def source_rows(db: Database, table: str = "items") -> list[dict[str, Any]]:
    return [json.loads(row) for (row,) in db.rows(f"SELECT to_json(t)::text FROM {table} t ORDER BY 1")]


def same(found: list[Any], db: Database, table: str = "items") -> bool:
    def order(rows: Any) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    return order(contents(found).values()) == order(source_rows(db, table))


def stage(run: Snapshotting) -> None:
    """Read all there is to read, while nothing is admitted."""
    run.admitting = False

    def read() -> bool:
        run.snapshots.step()
        [active] = run.ledger.runs(run.source.id, "active")
        planned, staged = (run.ledger.count(active.id, state) for state in ("planned", "staged"))
        return staged > 0 and planned == 0

    eventually(read, 30)


def test_rows_from_before_the_stream_are_read(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)",
        "INSERT INTO items SELECT n, 'item ' || n, n * 1.5 FROM generate_series(1, 95) n",
    )
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        found = run.finish()
    assert sorted(row["key"] for row in found) == sorted(f'{{"id":{number}}}' for number in range(1, 96))
    assert {row["op"] for row in found} == {"r"}
    assert contents(found)["items", '{"id":7}'] == {"id": 7, "name": "item 7", "price": "10.5"}
    assert len({row["tx_id"] for row in found}) == 10
    assert [row["tx_last"] for row in found].count(True) == 10


def test_each_table_is_read_once(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        run.finish()
    with Snapshotting(db, tmp_path) as again:
        again.begin()
        found = again.finish()
    assert [row["op"] for row in found] == ["r"]


def test_always_reads_at_every_start(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path, snapshot={"mode": "always"}) as run:
        run.begin()
        run.finish()
    with Snapshotting(db, tmp_path, snapshot={"mode": "always"}) as again:
        again.begin()
        found = again.finish()
    assert [row["op"] for row in found] == ["r", "r"]


def test_no_data_takes_schemas_only(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path, snapshot={"mode": "no_data"}) as run:
        run.begin()
        assert run.finish() == []
        assert [schema.table for schema in run.capturing.log.book.versions if schema.schema] == ["items"]


def test_a_row_changed_after_it_was_read_is_left_out(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id = 5", "DELETE FROM items WHERE id = 6")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert [row["op"] for row in found if row["key"] in ('{"id":5}', '{"id":6}')] == ["u", "d"]


def test_a_commit_that_waits_for_a_standby_counts_as_unseen(db: Database, tmp_path: Path) -> None:
    """It is in the log long before any read can see it; comparing positions would bring the old row back."""
    db.run(ITEMS, "INSERT INTO items VALUES (1, 'b', 'old'), (2, 'b', 'old')")
    with Snapshotting(db, tmp_path) as run:
        with waiting_commit(db, "UPDATE items SET v = 'new' WHERE id = 1"):
            eventually(lambda: run.capturing.stream.vitals.rows == 1)
            with psycopg.connect(db.dsn) as later:  # so that it is not the newest transaction either
                later.execute("SELECT pg_current_xact_id()")
                later.rollback()
            run.begin()
            run.work()
            found = logged(run.capturing.path)
            assert source_rows(db)[0]["v"] == "old"  # the read could not see it
        assert [row["op"] for row in found if row["key"] == '{"id":1}'] == ["u"]
        assert same(run.capturing.changes(), db)


def test_what_an_unchanged_value_owes_is_read_again(db: Database, tmp_path: Path) -> None:
    """The stream leaves the large value out, and the chunk's row is stale: without another read it is lost."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 15) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET v = 'new' WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert next(row for row in found if row["op"] == "u")["unchanged"] == ["big"]
    assert same(found, db)


def test_a_key_that_moves_after_it_was_read(db: Database, tmp_path: Path) -> None:
    """Its new key was never read, and the large value came with neither change."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 15) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("UPDATE items SET id = 100 WHERE id = 5")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)


def test_a_row_that_moves_from_an_unread_chunk_into_one_that_was_read(db: Database, tmp_path: Path) -> None:
    """Neither read has it: the first came too early, the second too late. And the stream left its large value out."""
    db.run(ITEMS, EXTERNAL, f"INSERT INTO items SELECT n, '{BIG}', 'old' FROM generate_series(1, 20) n")
    with Snapshotting(db, tmp_path) as run:
        [table] = run.ledger.tables(run.request("items"))
        run.ledger.plan(table, [Extent(high=("10",)), Extent(low=("10",))], complete=True)
        [(first, low), (second, high)] = run.ledger.chunks(table.run, "planned")
        run.ledger.stage([run.source.read_chunk(first, low, tmp_path)])
        eventually(lambda: run.ledger.count(table.run, "admitted") == 1)
        db.run("UPDATE items SET id = 0 WHERE id = 15")
        run.ledger.stage([run.source.read_chunk(second, high, tmp_path)])
        found = run.finish()
    assert same(found, db)


def test_a_truncate_after_the_read(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("TRUNCATE items", "INSERT INTO items VALUES (3, 'b', 'new')")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert "r" not in {row["op"] for row in found}


def test_a_chunk_of_an_older_schema_is_read_again(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'old' FROM generate_series(1, 5) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("ALTER TABLE items ADD extra int DEFAULT 7", "UPDATE items SET v = 'new' WHERE id = 2")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert same(found, db)
    assert all("extra" in json.loads(row["after"]) for row in found if row["op"] in "ur")


def test_a_table_without_a_key_is_replaced_as_a_whole(db: Database, tmp_path: Path) -> None:
    db.run("CREATE TABLE events (n int)", "INSERT INTO events SELECT generate_series(1, 25)")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        db.run("INSERT INTO events VALUES (26), (27)")
        mark(db, run.capturing.path, lambda: run.capturing.error is None)
        run.admitting = True
        found = run.finish()
    assert [row["op"] for row in found] == ["c", "c", "t", *["r"] * 25, "c", "c"]
    after_reset = [json.loads(row["after"])["n"] for row in found[3:]]
    assert after_reset == list(range(1, 28))
    assert len({row["tx_id"] for row in found[2:]}) == 1  # the reset is one transaction: no reader sees half of it
    assert len({(row["position"], row["tx_ordinal"]) for row in found}) == len(found)  # each with an id of its own


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


def test_a_part_of_a_table(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v%' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.request("items", filter="id % 10 = 0 AND v LIKE 'v%'")
        found = run.finish()
        with pytest.raises(ConfigError, match="nosuch"):
            run.source.check_filter("public", "items", "nosuch = 1")
        with pytest.raises(ConfigError):
            run.source.check_filter("public", "items", "true); DROP TABLE items; --")
        run.source.check_filter("public", "items", "v LIKE '%'")
    assert [row["key"] for row in found] == ['{"id":10}', '{"id":20}', '{"id":30}']


def test_a_cancelled_snapshot_admits_nothing_more(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        [active] = run.ledger.runs(run.source.id, "active")
        assert run.ledger.cancel(active.id)
        assert not run.ledger.cancel(active.id)
        run.admitting = True
        assert run.finish() == []
        assert run.ledger.run(active.id).state == "cancelled"


def test_a_table_that_is_dropped_meanwhile(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO items VALUES (1, 'b', 'v')")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        db.run("DROP TABLE other")
        assert same(run.finish(), db)


def test_tables_the_stream_cannot_tell_are_read(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made later, with rows from before it was published, and one whose rows DDL rewrites."""
    monkeypatch.setattr("tailrace.capture.postgres.catalog_watch.LOOK_S", 0.1)
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', n::text FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        run.finish()
        db.run("ALTER TABLE items ALTER v TYPE int USING v::int * 2")
        db.run("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later SELECT generate_series(1, 15)")
        run.work(until=lambda: len(run.ledger.runs(run.source.id, "done")) == 3)
        found = run.finish()
    state = contents([row for row in found if row["op"] != "s"])
    assert [state["items", f'{{"id":{n}}}']["v"] for n in range(1, 31)] == [2 * n for n in range(1, 31)]
    assert sum(table == "later" for table, _ in state) == 15


def test_a_lost_file_is_read_again(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 30) n")
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        stage(run)
        for file in (tmp_path / "staged").glob("*.arrow"):
            file.unlink()
        run.admitting = True
        assert same(run.finish(), db)


def test_what_the_log_took_in_is_known_after_a_crash(db: Database, tmp_path: Path) -> None:
    """The chunk is in the log, and the process died before the ledger knew: it is not taken in twice."""
    db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 10) n")
    with Snapshotting(db, tmp_path, ledger=Forgetful) as run:
        run.begin()
        run.work(until=lambda: run.capturing.error is not None)
    assert isinstance(run.capturing.error, Forgetful.Death)
    with Snapshotting(db, tmp_path) as again:
        again.begin()
        found = again.finish()
    assert len(found) == 10
    assert [each.state for each in again.ledger.runs(again.source.id)] == ["done"]


def test_a_source_that_is_read_on_every_version(database: Callable[..., Database], tmp_path: Path) -> None:
    for major in (15, 16):
        db = database(major)
        db.run(ITEMS, "INSERT INTO items SELECT n, 'b', 'v' FROM generate_series(1, 30) n")
        with Snapshotting(db, tmp_path / str(major)) as run:
            run.begin()
            assert same(run.finish(), db)


def test_a_read_says_what_it_saw(db: Database, tmp_path: Path) -> None:
    db.run(ITEMS)
    with db.connect() as other, other.transaction():
        running = int(other.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0])
        db.value("SELECT pg_current_xact_id()::text")
        staged = db.source().read_chunk(ChunkId("run", "public", "items", 0), Extent(), tmp_path)
    sight = Visibility.parse(staged.seen)
    assert running in sight.running
    assert sight.missed(running)
    assert not sight.missed(running - 1)


@pytest.mark.parametrize(
    ("seen", "xid", "missed"),
    [
        ("100:105:102", 101, False),
        ("100:105:102", 102, True),
        ("100:105:102", 104, False),
        ("100:105:102", 105, True),
        ("standby 100:105:", 103, True),
        ("standby 100:105:", 99, False),
        ("4294967290:4294967300:4294967294", 4294967294, True),  # the stream's ids have 32 bits
        ("4294967290:4294967300:4294967297", 1, True),
        ("4294967290:4294967300:", 2, False),
        ("4294967290:4294967300:", 5, True),
        ("4294967290:4294967300:", 4294967290, False),
    ],
)
def test_which_transactions_a_read_missed(seen: str, xid: int, missed: bool) -> None:
    assert Visibility.parse(seen).missed(xid) is missed


class Forgetful(Ledger):
    """Dies when it should enter an admission."""

    class Death(Exception):
        pass

    def __init__(self, store: Store) -> None:
        super().__init__(store)

    def enter(self, source: str, log_id: str, offset: int, admitted: Any) -> None:
        if admitted is not None:
            raise self.Death
        super().enter(source, log_id, offset, admitted)


@contextmanager
def waiting_commit(db: Database, statement: str) -> Iterator[None]:
    """The statement's commit is durable and waits for a standby that never answers, until the block ends."""

    def commit() -> None:
        with psycopg.connect(db.dsn, autocommit=True) as writer:
            writer.execute(statement.encode())

    db.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    thread = threading.Thread(target=commit, daemon=True)
    try:
        eventually(lambda: db.value("SHOW synchronous_standby_names") == "nobody")
        thread.start()
        eventually(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1)
        yield
    finally:
        db.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        thread.join(30)
