"""Schema changes on real servers: each is in the log before the rows that have it, and what no row tells is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.capture.postgres import catalog_watch, pace
from tailrace.changelog import LogReader
from tailrace.control import Store
from tailrace.errors import SourceError
from tailrace.testing.waiting import eventually
from tests.capture.running import Capturing, Change, Database

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]

ALWAYS, NEVER = 0.0, 1e9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "control.db")
    yield store
    store.close()


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is looked at all the time."""
    monkeypatch.setattr(catalog_watch, "LOOK_S", ALWAYS)
    monkeypatch.setattr(pace, "WAIT_S", 0.02)


@pytest.fixture
def rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is looked at once, at the start."""
    monkeypatch.setattr(catalog_watch, "LOOK_S", NEVER)
    monkeypatch.setattr(pace, "WAIT_S", 0.02)


def _looked(run: Capturing) -> None:
    """The capture has looked at least once, and taken in what it saw."""
    eventually(lambda: run.error or run.stream.looks)


def _started(capturing: Start, db: Database, **settings: Any) -> Capturing:
    run = capturing(db, **settings)
    _looked(run)
    return run


def _steps(rows: list[Change]) -> list[Any]:
    return [json.loads(row["after"])["changes"] for row in rows if row["op"] == "s"]


def _waiting(run: Capturing, count: int) -> list[Change]:
    """The changes, once there are `count` schema changes."""
    return eventually(lambda: rows if len(_steps(rows := run.changes())) >= count else [])


# -- told by the stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("major", [15, 16, 18])
def test_each_kind_of_change_comes_before_its_first_row(
    database: Fresh, capturing: Start, rows_only: None, major: int
) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
    run = _started(capturing, db)
    db.run(
        "INSERT INTO t VALUES (1, 'x', 1)",
        "ALTER TABLE t ADD c numeric DEFAULT 1.50",
        "INSERT INTO t VALUES (2, 'x', 1)",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (3, 'x')",
    )
    run.changes()
    db.run("ALTER TABLE t RENAME a TO z", "INSERT INTO t VALUES (4, 'x')")
    run.changes()
    db.run("ALTER TABLE t ALTER z TYPE varchar(9)", "INSERT INTO t VALUES (5, 'x')")
    run.changes()
    db.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, z)", "INSERT INTO t VALUES (6, 'x')")
    rows = run.changes()
    assert [row["op"] for row in rows] == ["c", "s", "c", "s", "c", "s", "c", "s", "c", "s", "c"]
    assert _steps(rows) == [
        [{"kind": "add", "column": "c", "type": "numeric"}],
        [{"kind": "drop", "column": "b"}],
        [{"kind": "rename", "from": "a", "to": "z"}],
        [{"kind": "retype", "column": "z", "from": "text", "to": "character varying(9)"}],
        [{"kind": "key", "from": ["id"], "to": ["id", "z"]}],
    ]
    for change, row in zip(rows[1::2], rows[2::2], strict=True):
        assert (change["tx_id"], change["position"]) == (row["tx_id"], row["position"])
        assert (change["tx_ordinal"], row["tx_ordinal"], row["tx_last"]) == (0, 1, True)
        assert change["schema_id"] == row["schema_id"] == json.loads(change["after"])["version"]


def test_a_change_has_the_whole_version_and_the_one_before(db: Database, capturing: Start, rows_only: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = _started(capturing, db)
    db.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD v text", "INSERT INTO t VALUES (2)")
    _, change, row = run.changes()
    schemas = LogReader(run.path).schemas
    assert json.loads(change["before"])["columns"] == [{"name": "id", "type": "integer"}]
    assert json.loads(change["after"]) == {
        "version": row["schema_id"],
        "columns": [{"name": "id", "type": "integer"}, {"name": "v", "type": "text"}],
        "key": ["id"],
        "fingerprint": schemas[row["schema_id"]].fingerprint,
        "changes": [{"kind": "add", "column": "v", "type": "text"}],
        "defaults": {},
    }
    assert (change["schema"], change["table"], change["key"]) == ("public", "t", None)
    assert schemas[row["schema_id"]].since == row["position"]


@pytest.mark.parametrize("major", [15, 18])
@pytest.mark.parametrize("partitioned", [False, True])
def test_defaults_of_rows_from_before_are_told_as_rows_would_tell_them(
    database: Fresh, capturing: Start, rows_only: None, major: int, partitioned: bool
) -> None:
    db = database(major)
    db.run(f"CREATE TABLE t (id int PRIMARY KEY) {'PARTITION BY RANGE (id)' if partitioned else ''}")
    if partitioned:
        db.run("CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100)")
    run = _started(capturing, db)
    db.run(
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD n bigint DEFAULT 9223372036854775807, ADD s text DEFAULT 'q\"\\', "
        "ADD f float8 DEFAULT 'NaN', ADD a text[] DEFAULT '{x,NULL,\"y z\"}', ADD j jsonb DEFAULT '{\"k\": 1.10}', "
        "ADD b bool DEFAULT true, "
        "ADD z timestamptz DEFAULT '2020-01-01 12:00+09', ADD y bytea DEFAULT '\\xdead', ADD d numeric DEFAULT 1.50, "
        "ADD nothing text",
        "UPDATE t SET id = 2",
    )
    _, change, _, row = run.changes()
    told, image = json.loads(change["after"])["defaults"], json.loads(row["after"])
    assert set(told) == {"n", "s", "f", "a", "j", "b", "z", "y", "d"}
    assert told == {name: image[name] for name in told}
    assert '"j":{"k": 1.10}' in change["after"]


def test_a_version_that_comes_back_is_a_change_again(db: Database, capturing: Start, rows_only: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = _started(capturing, db)
    for number in range(2):
        db.run(f"INSERT INTO t VALUES ({number})", "ALTER TABLE t ADD v int", f"INSERT INTO t VALUES (1{number})")
        db.run("ALTER TABLE t DROP v")
    rows = run.changes()
    assert "".join(row["op"] for row in rows) == "cscscsc"
    assert len({row["schema_id"] for row in rows}) == 4
    run.stop()
    db.run("INSERT INTO t VALUES (2)")
    again = _started(capturing, db).changes()[len(rows) :]
    assert [row["op"] for row in again] == ["s", "c"]
    assert _steps(again) == [[{"kind": "drop", "column": "v"}]]


def test_the_catalog_is_not_trusted_for_what_the_stream_says(db: Database, capturing: Start, rows_only: None) -> None:
    """Two changes lie between the row and the catalog's present: its columns are not those of the row."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    _started(capturing, db).stop()
    db.run(
        "INSERT INTO t VALUES (1, 1)",
        "ALTER TABLE t RENAME a TO b",
        "INSERT INTO t VALUES (2, 2)",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (3)",
    )
    rows = _started(capturing, db).changes()
    assert [row["after"] for row in rows if row["op"] == "c"] == ['{"id":1,"a":1}', '{"id":2,"b":2}', '{"id":3}']
    assert _steps(rows) == [
        [{"kind": "drop", "column": "a"}, {"kind": "add", "column": "b", "type": "integer"}],
        [{"kind": "drop", "column": "b"}],
    ]


def test_replica_identity_decides_the_key(db: Database, capturing: Start, rows_only: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE)")
    run = _started(capturing, db)
    db.run(
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key",
        "INSERT INTO t VALUES (2, 'b')",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (3, 'c')",
    )
    rows = run.changes()
    assert [row["key"] for row in rows if row["op"] == "c"] == ['{"id":1}', '{"code":"b"}', '{"id":3}']
    assert [[step["to"] for step in steps] for steps in _steps(rows)] == [[["code"]], [["id"]]]


# -- told by the catalog -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("major", [15, 18])
def test_a_change_is_found_before_any_row(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    run = _started(capturing, db)
    db.run("ALTER TABLE t RENAME a TO b; ALTER TABLE t ADD c int DEFAULT 7")  # one transaction: one look sees both
    rows = _waiting(run, 1)
    assert [step for steps in _steps(rows) for step in steps] == [
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
    run = _started(capturing, db)
    for number in range(10):
        db.run(f"INSERT INTO t (id) VALUES ({number})", f"ALTER TABLE t ADD c{number} int")
    rows = _waiting(run, 1)
    eventually(lambda: len(LogReader(run.path).schemas[run.changes()[-1]["schema_id"]].columns) == 11)
    rows = run.changes()
    images = [(row["op"], json.loads(row["after"])) for row in rows]
    widths = [len(image["columns"] if op == "s" else image) for op, image in images]
    assert widths == sorted(widths)


@pytest.mark.parametrize("major", [15, 18])
def test_a_new_table_joins_and_is_to_be_read(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = _started(capturing, db)
    db.run("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == [("public", "later", "new table")]
    db.run("INSERT INTO later VALUES (2)")
    assert [(row["op"], row["after"]) for row in run.changes()][-1] == ("c", '{"id":2}')


def test_a_new_table_waits_for_the_transactions_open_when_it_joined(db: Database, capturing: Start, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = _started(capturing, db)
    with db.connect() as writer:
        db.run("CREATE TABLE later (id int PRIMARY KEY)")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO later VALUES (1)")
        eventually(lambda: run.stream._catalog_watch._drift.waits)
        assert run.stream.needs_snapshot == []
        writer.execute("COMMIT")
    eventually(lambda: run.stream.needs_snapshot)


@pytest.mark.parametrize("major", [15, 18])
def test_dropped_and_made_anew(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE kept (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = _started(capturing, db)
    db.run("INSERT INTO t VALUES (1, 'x')", "DROP TABLE t")
    assert _steps(_waiting(run, 1)) == [[{"kind": "drop_table"}]]
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    assert _steps(_waiting(run, 2))[1:] == [[{"kind": "create"}]]
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == [("public", "t", "new table")]


def test_dropped_and_made_anew_between_two_looks(db: Database, capturing: Start, store: Store, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    _started(capturing, db, store=store).stop()
    db.run("INSERT INTO t VALUES (1)", "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    run = _started(capturing, db, store=store)
    rows = _waiting(run, 1)
    assert [row["op"] for row in rows] == ["c", "s"]
    assert _steps(rows) == [[{"kind": "recreate"}]]
    eventually(lambda: run.stream.needs_snapshot)
    assert run.stream.needs_snapshot == [("public", "t", "dropped and made anew")]


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
    run = _started(capturing, db)
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
        assert run.stream.needs_snapshot == [("public", "p", reason)], statement
        run.stream.needs_snapshot.clear()
    assert _steps(run.changes()) == []


@pytest.mark.parametrize("major", [15, 18])
def test_rewrites_and_what_only_looks_like_one(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(5))", "INSERT INTO t VALUES (1, 1, 'x')")
    run = _started(capturing, db)
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
        assert run.stream.needs_snapshot == [("public", "t", "rewritten")], statement
        run.stream.needs_snapshot.clear()


def test_a_rewrite_while_nothing_ran_is_found(db: Database, capturing: Start, store: Store, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int PRIMARY KEY)")
    _started(capturing, db, store=store).stop()
    db.run("ALTER TABLE t ALTER a TYPE bigint", "CREATE TABLE v (id int PRIMARY KEY)")
    wanted = {("public", "t", "rewritten"), ("public", "v", "new table")}
    for _ in range(2):  # nobody asked for the snapshots before the first of these ended
        run = _started(capturing, db, store=store)
        eventually(lambda run=run: set(run.stream.needs_snapshot) == wanted)  # type: ignore[misc]
        run.stop()
    run = _started(capturing, db, store=store)
    eventually(lambda: set(run.stream.needs_snapshot) == wanted)
    run.stream.needs_snapshot.clear()
    _look_again(run)
    run.stop()
    run = _started(capturing, db, store=store)
    _look_again(run)
    assert run.stream.needs_snapshot == []


def test_another_log_begins_without_a_past(db: Database, capturing: Start, store: Store, look: None) -> None:
    store_of_another = Store(store.path)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    from tailrace.control.sightings import Sightings

    Sightings(store_of_another, db.name).replace({("public", "old"): '[1, "", {}]'})
    store_of_another.close()
    run = _started(capturing, db, store=store)
    _look_again(run)
    assert (run.stream.needs_snapshot, _steps(run.changes())) == ([], [])


def test_publications_of_others_are_left_alone(db: Database, capturing: Start, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, hidden int, v int)", "CREATE PUBLICATION mine FOR TABLE t (id, v)")
    run = _started(capturing, db, publication="mine", tables=["public.t*"])
    db.run("CREATE TABLE t2 (id int PRIMARY KEY)", "ALTER TABLE t DROP hidden", "INSERT INTO t VALUES (1, 2)")
    _look_again(run)
    assert db.rows("SELECT tablename FROM pg_publication_tables WHERE pubname = 'mine'") == [("t",)]
    assert [row["op"] for row in run.changes()] == ["c"]
    assert run.stream.needs_snapshot == []
    db.run("ALTER TABLE t RENAME v TO w")
    assert _steps(_waiting(run, 1)) == [[{"kind": "rename", "from": "v", "to": "w"}]]


# -- on_schema_drift ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told_by", ["rows", "catalog"])
def test_halt_stops_before_the_new_version(
    db: Database, capturing: Start, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    monkeypatch.setattr(catalog_watch, "LOOK_S", NEVER if told_by == "rows" else ALWAYS)
    monkeypatch.setattr(pace, "WAIT_S", 0.02)
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = _started(capturing, db, on_schema_drift="halt")
    db.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD v int")
    if told_by == "rows":
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
    run = _started(capturing, db)
    db.run("INSERT INTO t VALUES (3, 3)")
    rows = _waiting(run, 1)
    assert "".join(row["op"] for row in rows) == ("cscc" if told_by == "rows" else "csc")


def _look_again(run: Capturing) -> None:
    """A look that began after now was taken in."""
    begun = run.stream.looks + 2
    eventually(lambda: run.error or run.stream.looks >= begun)
