"""Schema changes that no row tells: they are found in the catalog, and `on_schema_drift` decides what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.changelog import LogReader
from tailrace.contracts import Need
from tailrace.control import Store
from tailrace.errors import SourceError
from tailrace.schema import TableSchema
from tailrace.testing.waiting import eventually
from tests.capture.postgres.ddl import Fresh, Start, started, steps
from tests.capture.running import Capturing, Change, Database


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "control.db")
    yield store
    store.close()


def _waiting(run: Capturing, count: int) -> list[Change]:
    """The changes, once there are `count` schema changes."""
    return eventually(lambda: rows if len(steps(rows := run.changes())) >= count else [])


def _newest_version(run: Capturing) -> TableSchema:
    """The version of the table that the last change has."""
    last = run.changes()[-1]["schema_id"]  # first: a reader knows the schemas that were there when it opened
    return LogReader(run.path).schemas[last]


@pytest.mark.parametrize("major", [15, 18])
def test_a_change_is_found_before_any_row(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    run = started(capturing, db)
    db.run("ALTER TABLE t RENAME a TO b; ALTER TABLE t ADD c int DEFAULT 7")  # one transaction: one look sees both
    rows = _waiting(run, 1)
    assert [step for steps in steps(rows) for step in steps] == [
        {"kind": "rename", "from": "a", "to": "b"},
        {"kind": "add", "column": "c", "type": "integer"},
    ]
    assert json.loads(rows[-1]["after"])["defaults"] == {"c": 7}
    db.run("INSERT INTO t VALUES (1, 'x')")
    assert [row["op"] for row in run.changes()][len(rows) :] == ["c"]
    assert run.stream.needs_snapshot == []


def test_an_older_row_never_follows_a_newer_version(db: Database, capturing: Start, look: None) -> None:
    """What the catalog has now is taken in only behind the rows that were written before."""
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = started(capturing, db)
    for number in range(10):
        db.run(f"INSERT INTO t (id) VALUES ({number})", f"ALTER TABLE t ADD c{number} int")
    rows = _waiting(run, 1)
    eventually(lambda: len(_newest_version(run).columns) == 11)
    rows = run.changes()
    images = [(row["op"], json.loads(row["after"])) for row in rows]
    widths = [len(image["columns"] if op == "s" else image) for op, image in images]
    assert widths == sorted(widths)


@pytest.mark.parametrize("major", [15, 18])
def test_a_new_table_joins_and_is_to_be_read(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = started(capturing, db)
    db.run("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == [Need("public", "later", "new table")]
    db.run("INSERT INTO later VALUES (2)")
    assert [(row["op"], row["after"]) for row in run.changes()][-1] == ("c", '{"id":2}')


NUDGE = "SELECT pg_logical_emit_message(true, 'nudge', '')"
"""A commit: the server sends its WAL up to there, which it may otherwise do only after a while."""


def test_a_new_table_waits_for_the_transactions_open_when_it_joined(db: Database, capturing: Start, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = started(capturing, db)
    with db.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("SELECT pg_current_xact_id()")  # open before the table is there, so that no look comes first
        db.run("CREATE TABLE later (id int PRIMARY KEY)")
        writer.execute("INSERT INTO later VALUES (1)")
        eventually(lambda: db.rows(NUDGE) and run.stream._catalog_watch._drift.waits)
        assert run.stream.needs_snapshot == []
        writer.execute("COMMIT")
    eventually(lambda: db.rows(NUDGE) and run.stream.needs_snapshot)


@pytest.mark.parametrize("major", [15, 18])
def test_dropped_and_made_anew(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE kept (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = started(capturing, db)
    db.run("INSERT INTO t VALUES (1, 'x')", "DROP TABLE t")
    assert steps(_waiting(run, 1)) == [[{"kind": "drop_table"}]]
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    assert steps(_waiting(run, 2))[1:] == [[{"kind": "create"}]]
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == [Need("public", "t", "new table")]


def test_dropped_and_made_anew_between_two_looks(db: Database, capturing: Start, store: Store, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    started(capturing, db, store=store).stop()
    db.run("INSERT INTO t VALUES (1)", "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    run = started(capturing, db, store=store)
    rows = _waiting(run, 1)
    assert [row["op"] for row in rows] == ["c", "s"]
    assert steps(rows) == [[{"kind": "recreate"}]]
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == [Need("public", "t", "dropped and made anew")]


@pytest.mark.parametrize("major", [15, 18])
def test_partitions(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE SCHEMA aside",
        "CREATE TABLE aside.p_3 (id int PRIMARY KEY)",
        "INSERT INTO aside.p_3 VALUES (20)",
    )
    run = started(capturing, db)
    db.run("CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20)", "INSERT INTO p VALUES (15)")
    _look_again(run)
    assert run.stream.needs_snapshot == [], "a partition that is made empty tells its rows itself"
    for statement, reason in (
        ("ALTER TABLE p ATTACH PARTITION aside.p_3 FOR VALUES FROM (20) TO (30)", "partition attached"),
        ("ALTER TABLE p DETACH PARTITION aside.p_3", "partition detached"),
        ("DROP TABLE p_1", "partition detached"),
        (
            "BEGIN; CREATE TABLE aside.p_4 (id int PRIMARY KEY); INSERT INTO aside.p_4 VALUES (30); "
            "ALTER TABLE p ATTACH PARTITION aside.p_4 FOR VALUES FROM (30) TO (40); COMMIT",
            "partition attached",
        ),
    ):
        db.run(statement)
        eventually(lambda: run.stream.needs_snapshot)
        wanted = Need("public", "p", reason, whole=reason == "partition detached")
        assert run.stream.needs_snapshot == [wanted], statement
        run.stream.needs_snapshot.clear()
    assert steps(run.changes()) == []


@pytest.mark.parametrize("major", [15, 18])
def test_rewrites_and_what_only_looks_like_one(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(5))", "INSERT INTO t VALUES (1, 1, 'x')")
    run = started(capturing, db)
    for statement in (
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "TRUNCATE t",
        "REINDEX TABLE t",
        "ALTER TABLE t ALTER b TYPE text",
        "ALTER TABLE t ADD quick int DEFAULT 5",
        "ALTER TABLE t DROP quick",
        "ANALYZE t",
    ):
        db.run(statement)
        _look_again(run)
        assert run.stream.needs_snapshot == [], statement
    for statement in (
        "ALTER TABLE t ALTER a TYPE bigint",
        "ALTER TABLE t ALTER a TYPE bigint USING a + 1",
        "ALTER TABLE t ADD slow timestamptz DEFAULT clock_timestamp()",
        "ALTER TABLE t ADD made int GENERATED ALWAYS AS (id + 1) STORED",
    ):
        db.run(statement)
        eventually(lambda: run.stream.needs_snapshot)
        assert run.stream.needs_snapshot == [Need("public", "t", "rewritten")], statement
        run.stream.needs_snapshot.clear()


def test_a_rewrite_while_nothing_ran_is_found(db: Database, capturing: Start, store: Store, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int PRIMARY KEY)")
    started(capturing, db, store=store).stop()
    db.run("ALTER TABLE t ALTER a TYPE bigint", "CREATE TABLE v (id int PRIMARY KEY)")
    wanted = {Need("public", "t", "rewritten"), Need("public", "v", "new table")}
    for _ in range(2):  # nobody asked for the snapshots before the first of these ended
        run = started(capturing, db, store=store)
        eventually(lambda run=run: set(run.stream.needs_snapshot) == wanted)  # type: ignore[misc]
        run.stop()
    run = started(capturing, db, store=store)
    eventually(lambda: set(run.stream.needs_snapshot) == wanted)
    run.stream.needs_snapshot.clear()
    _look_again(run)
    run.stop()
    run = started(capturing, db, store=store)
    _look_again(run)
    assert run.stream.needs_snapshot == []


def test_another_log_begins_without_a_past(db: Database, capturing: Start, store: Store, look: None) -> None:
    store_of_another = Store(store.place)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    from tailrace.control.sightings import Sightings

    Sightings(store_of_another, db.name).replace({("public", "old"): '[1, "", {}]'})
    store_of_another.close()
    run = started(capturing, db, store=store)
    _look_again(run)
    assert (run.stream.needs_snapshot, steps(run.changes())) == ([], [])


AWAY = "ALTER TABLE t SET SCHEMA aside", "INSERT INTO aside.t VALUES (2)", "DELETE FROM aside.t WHERE id = 1"
BACK = "ALTER TABLE aside.t SET SCHEMA public"
RETURNED = [Need("public", "t", "left and returned", whole=True)]


@pytest.mark.parametrize("seen", [True, False], ids=["seen away", "between two looks"])
@pytest.mark.parametrize("publication", [None, "mine"])
def test_a_table_that_leaves_the_patterns_and_returns(
    db: Database, capturing: Start, store: Store, look: None, seen: bool, publication: str | None
) -> None:
    """What happened to it meanwhile is in no change of ours, deletes least of all."""
    db.run("CREATE SCHEMA aside", "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    db.run("CREATE PUBLICATION mine FOR TABLES IN SCHEMA public")
    settings = {"store": store, "publication": publication, "tables": ["public.*"]}
    run = started(capturing, db, **settings)
    db.run("INSERT INTO t VALUES (1)")
    run.changes()
    if seen:
        db.run(*AWAY)
        _look_again(run)
        assert run.stream.needs_snapshot == []
        db.run(BACK)
    else:
        run.stop()
        db.run(*AWAY, BACK)
        run = started(capturing, db, **settings)
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == RETURNED
    run.stream.needs_snapshot.clear()
    _look_again(run)
    assert run.stream.needs_snapshot == []


def test_a_table_that_gets_another_name_and_its_own_back(db: Database, capturing: Start, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = started(capturing, db)
    db.run("BEGIN; ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (1); ALTER TABLE u RENAME TO t; COMMIT")
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == RETURNED


def test_a_table_that_stays_where_it_is(db: Database, capturing: Start, look: None) -> None:
    """What else is written into the catalog of a table says nothing about its rows."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE ROLE keeper")
    run = started(capturing, db)
    try:
        for statement in ("ALTER TABLE t OWNER TO keeper", "GRANT SELECT ON t TO PUBLIC", "CREATE INDEX ON t (v)"):
            db.run(statement)
            _look_again(run)
            assert run.stream.needs_snapshot == [], statement
    finally:
        db.run("REASSIGN OWNED BY keeper TO CURRENT_USER", "DROP ROLE keeper")


def test_publications_of_others_are_left_alone(db: Database, capturing: Start, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, hidden int, v int)", "CREATE PUBLICATION mine FOR TABLE t (id, v)")
    run = started(capturing, db, publication="mine", tables=["public.t*"])
    db.run("CREATE TABLE t2 (id int PRIMARY KEY)", "ALTER TABLE t DROP hidden", "INSERT INTO t VALUES (1, 2)")
    _look_again(run)
    assert db.rows("SELECT tablename FROM pg_publication_tables WHERE pubname = 'mine'") == [("t",)]
    assert [row["op"] for row in run.changes()] == ["c"]
    assert run.stream.needs_snapshot == []
    db.run("ALTER TABLE t RENAME v TO w")
    assert steps(_waiting(run, 1)) == [[{"kind": "rename", "from": "v", "to": "w"}]]


# -- on_schema_drift ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told_by", ["rows_only", "look"])
def test_halt_stops_before_the_new_version(
    db: Database, capturing: Start, request: pytest.FixtureRequest, told_by: str
) -> None:
    request.getfixturevalue(told_by)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = started(capturing, db, on_schema_drift="halt")
    db.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD v int")
    if told_by == "rows_only":
        db.run("INSERT INTO t VALUES (2, 2)")
    for _ in range(2):
        error = run.failure()
        assert isinstance(error, SourceError)
        assert (error.code, error.where) == ("source.schema_drift", "public.t")
        assert "add column v" in error.message
        assert "adapt" in error.hint
        assert [row["after"] for row in run.changes()] == ['{"id":1}']
        with pytest.raises(SourceError):
            run.stop()
        run = capturing(db, on_schema_drift="halt")  # it stays stopped
    with pytest.raises(SourceError):
        run.failure()
        run.stop()
    run = started(capturing, db)
    db.run("INSERT INTO t VALUES (3, 3)")
    rows = _waiting(run, 1)
    assert "".join(row["op"] for row in rows) == ("cscc" if told_by == "rows_only" else "csc")


def _look_again(run: Capturing) -> None:
    """A look that began after now was taken in."""
    begun = run.stream.looks + 2
    eventually(lambda: run.error or run.stream.looks >= begun)
