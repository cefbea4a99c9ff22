"""Schema changes that the stream tells: each is in the log before the first row that has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.changelog import LogReader
from tailrace.contracts import Need
from tailrace.testing.waiting import eventually
from tests.capture.postgres.ddl import Fresh, Start, started, steps
from tests.capture.running import Database


@pytest.mark.parametrize("major", [15, 16, 18])
def test_each_kind_of_change_comes_before_its_first_row(
    database: Fresh, capturing: Start, rows_only: None, major: int
) -> None:
    db = database(major)
    db.run("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
    run = started(capturing, db)
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
    assert steps(rows) == [
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
    run = started(capturing, db)
    db.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD v text", "INSERT INTO t VALUES (2)")
    _, change, row = run.changes()
    schemas = LogReader(run.path).schemas
    key = {"name": "id", "type": "integer", "kind": "int32", "nullable": False}
    assert json.loads(change["before"])["columns"] == [key]
    assert json.loads(change["after"]) == {
        "version": row["schema_id"],
        "columns": [key, {"name": "v", "type": "text", "kind": "text", "nullable": True}],
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
    run = started(capturing, db)
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
    run = started(capturing, db)
    for number in range(2):
        db.run(f"INSERT INTO t VALUES ({number})", "ALTER TABLE t ADD v int", f"INSERT INTO t VALUES (1{number})")
        db.run("ALTER TABLE t DROP v")
    rows = run.changes()
    assert "".join(row["op"] for row in rows) == "cscscsc"
    assert len({row["schema_id"] for row in rows}) == 4
    run.stop()
    db.run("INSERT INTO t VALUES (2)")
    again = started(capturing, db).changes()[len(rows) :]
    assert [row["op"] for row in again] == ["s", "c"]
    assert steps(again) == [[{"kind": "drop", "column": "v"}]]


def test_the_catalog_is_not_trusted_for_what_the_stream_says(db: Database, capturing: Start, rows_only: None) -> None:
    """Two changes lie between the row and the catalog's present: its columns are not those of the row."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    started(capturing, db).stop()
    db.run(
        "INSERT INTO t VALUES (1, 1)",
        "ALTER TABLE t RENAME a TO b",
        "INSERT INTO t VALUES (2, 2)",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (3)",
    )
    rows = started(capturing, db).changes()
    assert [row["after"] for row in rows if row["op"] == "c"] == ['{"id":1,"a":1}', '{"id":2,"b":2}', '{"id":3}']
    assert steps(rows) == [
        [{"kind": "rename", "from": "a", "to": "b"}],
        [{"kind": "drop", "column": "b"}],
    ]


def test_renames_behind_the_catalog_are_renames(db: Database, capturing: Start, rows_only: None) -> None:
    """However many changes lie between: the columns' numbers are counted off."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, gone int, a int, b int)", "ALTER TABLE t DROP gone")
    started(capturing, db).stop()
    db.run(
        "ALTER TABLE t RENAME a TO x",
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t ADD c int",
        "ALTER TABLE t RENAME b TO a",
        "INSERT INTO t VALUES (2, 3, 4, 5)",
        "ALTER TABLE t RENAME x TO y",
        "ALTER TABLE t ADD d int",
        "INSERT INTO t VALUES (3, 4, 5, 6, 7)",
    )
    added = [{"kind": "add", "column": name, "type": "integer"} for name in "cd"]
    assert steps(started(capturing, db).changes()) == [
        [{"kind": "rename", "from": "a", "to": "x"}],
        [{"kind": "rename", "from": "b", "to": "a"}, added[0]],
        [{"kind": "rename", "from": "x", "to": "y"}, added[1]],
    ]


def test_what_cannot_be_counted_off_is_not_guessed(db: Database, capturing: Start, rows_only: None) -> None:
    """Of the two columns that are gone, either may have been the one that the row has."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    started(capturing, db).stop()
    db.run(
        "ALTER TABLE t DROP a",
        "ALTER TABLE t ADD b int",
        "INSERT INTO t VALUES (1, 2)",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (2)",
    )
    assert steps(started(capturing, db).changes()) == [
        [{"kind": "drop", "column": "a"}, {"kind": "add", "column": "b", "type": "integer"}],
        [{"kind": "drop", "column": "b"}],
    ]


SWAP = "ALTER TABLE t RENAME a TO t; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME t TO b"


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (SWAP, [{"kind": "rename", "from": "a", "to": "b"}, {"kind": "rename", "from": "b", "to": "a"}]),
        (
            "ALTER TABLE t RENAME b TO c; ALTER TABLE t RENAME a TO b",
            [{"kind": "rename", "from": "a", "to": "b"}, {"kind": "rename", "from": "b", "to": "c"}],
        ),
        (
            "ALTER TABLE t DROP b; ALTER TABLE t RENAME a TO b",
            [{"kind": "drop", "column": "b"}, {"kind": "rename", "from": "a", "to": "b"}],
        ),
        (
            "ALTER TABLE t DROP b, ADD b int DEFAULT 7",
            [{"kind": "drop", "column": "b"}, {"kind": "add", "column": "b", "type": "integer"}],
        ),
        (
            "ALTER TABLE t DROP b, ADD b text DEFAULT 'seven'",
            [{"kind": "drop", "column": "b"}, {"kind": "add", "column": "b", "type": "text"}],
        ),
        (
            "ALTER TABLE t DROP id; ALTER TABLE t RENAME a TO id; ALTER TABLE t ADD PRIMARY KEY (id)",
            [
                {"kind": "drop", "column": "id"},
                {"kind": "rename", "from": "a", "to": "id"},
                {"kind": "key", "from": ["id"], "to": ["id"]},
            ],
        ),
    ],
)
def test_columns_are_known_by_their_numbers(
    db: Database, capturing: Start, rows_only: None, ahead: bool, statements: str, told: list[Any]
) -> None:
    """Whatever their names do in one transaction, also where the catalog is further than the stream."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    run = started(capturing, db)
    if ahead:
        run.stop()
    db.run("INSERT INTO t VALUES (1, 2, 3)", statements, "INSERT INTO t VALUES (4, 5)")
    rows = (started(capturing, db) if ahead else run).changes()
    assert steps(rows) == [told]
    assert [row["op"] for row in rows] == ["c", "s", "c"]
    [defaults] = [json.loads(row["after"])["defaults"] for row in rows if row["op"] == "s"]
    assert defaults == ({"b": 7} if "DEFAULT 7" in statements else {"b": "seven"} if "seven" in statements else {})


def test_a_column_that_may_be_another_has_its_table_read_anew(db: Database, capturing: Start, rows_only: None) -> None:
    """A transaction that is older than the columns writes to them: numbers of transactions do not tell."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, b int)", "CREATE TABLE other (id int PRIMARY KEY)")
    run = started(capturing, db)
    db.run("INSERT INTO t VALUES (1, 2)")
    run.changes()
    assert run.stream.needs_snapshot == []
    with db.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO other VALUES (1)")
        db.run("ALTER TABLE t DROP b, ADD b int")
        connection.execute("INSERT INTO t VALUES (2, 3)")
    run.changes()
    assert run.stream.needs_snapshot == [Need("public", "t", "columns in doubt")]


def test_a_version_of_the_same_names_is_found_before_any_row(db: Database, capturing: Start, look: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, b int)")
    run = started(capturing, db)
    db.run("INSERT INTO t VALUES (1, 2)")
    run.changes()
    db.run("ALTER TABLE t DROP b, ADD b int DEFAULT 9")
    rows = eventually(lambda: rows if steps(rows := run.changes()) else [])
    assert steps(rows) == [[{"kind": "drop", "column": "b"}, {"kind": "add", "column": "b", "type": "integer"}]]
    assert json.loads(rows[-1]["after"])["defaults"] == {"b": 9}
    assert run.stream.needs_snapshot == []


def test_replica_identity_decides_the_key(db: Database, capturing: Start, rows_only: None) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE)")
    run = started(capturing, db)
    db.run(
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key",
        "INSERT INTO t VALUES (2, 'b')",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (3, 'c')",
    )
    rows = run.changes()
    assert [row["key"] for row in rows if row["op"] == "c"] == ['{"id":1}', '{"code":"b"}', '{"id":3}']
    assert [[step["to"] for step in steps] for steps in steps(rows)] == [[["code"]], [["id"]]]
