"""Columns that are not always sent, made by the server, gone, or oddly named: no row is misread for any of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

import psycopg
import pytest

from tailrace.testing.servers import PostgresServer
from tests.capture.running import Capturing, Change, Database

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]

every_major = pytest.mark.parametrize("major", [15, 16, 18])
oldest_and_newest = pytest.mark.parametrize("major", [15, 18])


def _of(rows: list[Change], table: str) -> list[tuple[Any, ...]]:
    """A table's changes of rows."""
    mine = [row for row in rows if row["table"] == table and row["op"] != "s"]
    return [(row["op"], row["key"], row["before"], row["after"]) for row in mine]


# -- TOAST -------------------------------------------------------------------------------------------------------

BIG = "CREATE TABLE t (id int PRIMARY KEY, s text, b bytea, j jsonb, a text[], gone text, n int)"
STORED_APART = "ALTER TABLE t " + ", ".join(f"ALTER {column} SET STORAGE EXTERNAL" for column in ("s", "b", "j", "a"))
FILL = (
    "INSERT INTO t VALUES (1, repeat('x', 9000), convert_to(repeat('y', 9000), 'UTF8'), "
    "jsonb_build_object('k', repeat('z', 9000)), ARRAY[repeat('w', 9000)], NULL, 0)"
)
LARGE = {"s": "x" * 9000, "b": "eXl5" * 3000, "j": {"k": "z" * 9000}, "a": ["w" * 9000]}


@every_major
def test_unchanged_toast_is_named_and_never_null(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run(BIG, STORED_APART)
    run = capturing(db)
    db.run(FILL, "UPDATE t SET n = 1", "UPDATE t SET s = NULL, n = 2", "UPDATE t SET id = 2", "UPDATE t SET a = '{}'")
    created, first, second, deleted, moved, last = run.changes()
    assert json.loads(created["after"]) == {"id": 1, **LARGE, "gone": None, "n": 0}
    assert (first["after"], first["unchanged"]) == ('{"id":1,"gone":null,"n":1}', ["s", "b", "j", "a"])
    assert (second["after"], second["unchanged"]) == ('{"id":1,"s":null,"gone":null,"n":2}', ["b", "j", "a"])
    assert (deleted["op"], deleted["unchanged"]) == ("d", None)
    assert (moved["op"], moved["key"], moved["unchanged"]) == ("c", '{"id":2}', ["b", "j", "a"])
    assert (last["after"], last["unchanged"]) == ('{"id":2,"s":null,"a":[],"gone":null,"n":2}', ["b", "j"])


@oldest_and_newest
def test_unchanged_toast_is_filled_from_the_old_row(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run(BIG, STORED_APART, "ALTER TABLE t REPLICA IDENTITY FULL")
    run = capturing(db)
    db.run(FILL, "UPDATE t SET n = 1", "UPDATE t SET id = 2", "UPDATE t SET s = NULL", "DELETE FROM t")
    rows = run.changes()
    assert [row["op"] for row in rows] == ["c", "u", "d", "c", "u", "d"]
    assert [row["unchanged"] for row in rows] == [None] * 6
    whole = [{"id": number, **LARGE, "gone": None, "n": n} for number, n in ((1, 0), (1, 1), (2, 1))]
    short = {**whole[2], "s": None}
    before, after = ([row[side] and json.loads(row[side]) for row in rows] for side in ("before", "after"))
    assert before == [None, whole[0], whole[1], None, whole[2], short]
    assert after == [whole[0], whole[1], None, whole[2], short, None]


@oldest_and_newest
def test_a_key_that_is_stored_apart_is_whole(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run("CREATE TABLE t (k text PRIMARY KEY, n int)", "ALTER TABLE t ALTER k SET STORAGE EXTERNAL")
    run = capturing(db)
    key = "k" * 2500
    db.run(f"INSERT INTO t VALUES ('{key}', 0)", "UPDATE t SET n = 1", "DELETE FROM t")
    rows = run.changes()
    assert [(row["op"], json.loads(row["key"]), row["unchanged"]) for row in rows] == [
        (op, {"k": key}, None) for op in "cud"
    ]
    assert json.loads(rows[1]["after"]) == {"k": key, "n": 1}


# -- made by the server ------------------------------------------------------------------------------------------


@every_major
def test_generated_columns(database: Fresh, capturing: Start, major: int) -> None:
    """18 can publish stored ones, and refuses the user's UPDATE where the identity has one that is not published."""
    db = database(major)
    virtual = ", v int GENERATED ALWAYS AS (a * 3) VIRTUAL" if major >= 18 else ""
    generated = f"s int GENERATED ALWAYS AS (a * 2) STORED{virtual}"
    db.run(
        f"CREATE TABLE kept (a int, {generated}, id int PRIMARY KEY)",
        "CREATE TABLE whole (a int, s text GENERATED ALWAYS AS (a::text) STORED, id int PRIMARY KEY)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
    )
    run = capturing(db)
    for table in ("kept", "whole"):
        db.run(f"INSERT INTO {table} (id, a) VALUES (1, 5)", f"UPDATE {table} SET a = 6", f"DELETE FROM {table}")
    rows, sent = run.changes(), major >= 18
    assert _of(rows, "kept") == [
        ("c", '{"id":1}', None, '{"a":5,"s":10,"id":1}' if sent else '{"a":5,"id":1}'),
        ("u", '{"id":1}', None, '{"a":6,"s":12,"id":1}' if sent else '{"a":6,"id":1}'),
        ("d", '{"id":1}', '{"id":1}', None),
    ]
    five, six = ('{"a":5,"s":"5","id":1}', '{"a":6,"s":"6","id":1}') if sent else ('{"a":5,"id":1}', '{"a":6,"id":1}')
    assert _of(rows, "whole") == [
        ("c", '{"id":1}', None, five),
        ("u", '{"id":1}', five, six),
        ("d", '{"id":1}', six, None),
    ]
    assert run.stream.warnings == []


@every_major
def test_generated_columns_in_the_identity(database: Fresh, capturing: Start, major: int) -> None:
    """A key of which a part is not sent is no key; a table that has none stays usable."""
    db = database(major)
    db.run(
        "CREATE TABLE t (a int, k int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY, n int)",
        "CREATE TABLE whole (a int, k int GENERATED ALWAYS AS (a * 2) STORED, n int, PRIMARY KEY (a, k))",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
    )
    run = capturing(db)
    for table in ("t", "whole"):
        db.run(f"INSERT INTO {table} (a) VALUES (1)", f"UPDATE {table} SET n = 1", f"DELETE FROM {table}")
    rows = run.changes()
    if major >= 18:
        assert [row[:2] for row in _of(rows, "t")] == [(op, '{"k":2}') for op in "cud"]
        assert [row[:2] for row in _of(rows, "whole")] == [(op, '{"a":1,"k":2}') for op in "cud"]
        assert run.stream.warnings == []
    else:
        assert [row[:2] for row in _of(rows, "t")] == [("c", None)]
        assert [row[:2] for row in _of(rows, "whole")] == [(op, None) for op in "cud"]
        assert [warning.split()[0] for warning in run.stream.warnings] == ["public.t"]


def test_virtual_columns_under_full_identity(db: Database, capturing: Start) -> None:
    """18 cannot publish them and would refuse the user's UPDATE: only inserts are published."""
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id * 3) VIRTUAL, n int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    run = capturing(db)
    db.run("INSERT INTO t (id) VALUES (1)", "UPDATE t SET n = 1", "DELETE FROM t")
    assert _of(run.changes(), "t") == [("c", '{"id":1}', None, '{"id":1,"n":null}')]
    assert [warning.split()[0] for warning in run.stream.warnings] == ["public.t"]


@pytest.mark.parametrize(("publish", "image"), [("none", '{"id":1,"n":7}'), ("stored", '{"id":1,"s":2,"n":7}')])
def test_generated_columns_of_your_own_publication(db: Database, capturing: Start, publish: str, image: str) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id * 3) VIRTUAL, "
        "s int GENERATED ALWAYS AS (id * 2) STORED, n int)",
        f"CREATE PUBLICATION mine FOR TABLE t WITH (publish_generated_columns = {publish})",
    )
    run = capturing(db, publication="mine")
    db.run("INSERT INTO t (id, n) VALUES (1, 7)", "UPDATE t SET n = 7", "DELETE FROM t")
    assert _of(run.changes(), "t") == [
        ("c", '{"id":1}', None, image),
        ("u", '{"id":1}', None, image),
        ("d", '{"id":1}', '{"id":1}', None),
    ]


@oldest_and_newest
def test_identity_columns(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "other int8 GENERATED BY DEFAULT AS IDENTITY (START 9223372036854775806), old smallserial, v text DEFAULT 'd')"
    )
    run = capturing(db)
    db.run("INSERT INTO t DEFAULT VALUES", "UPDATE t SET v = NULL", "DELETE FROM t")
    assert _of(run.changes(), "t") == [
        ("c", '{"id":1}', None, '{"id":1,"other":9223372036854775806,"old":1,"v":"d"}'),
        ("u", '{"id":1}', None, '{"id":1,"other":9223372036854775806,"old":1,"v":null}'),
        ("d", '{"id":1}', '{"id":1}', None),
    ]


# -- gone, and oddly named ---------------------------------------------------------------------------------------


@oldest_and_newest
def test_dropped_columns(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    for table in ("t", "whole"):
        db.run(f"CREATE TABLE {table} (gone int, a text, lost jsonb, id int PRIMARY KEY, last int)")
        db.run(f"INSERT INTO {table} VALUES (1, 'a', '{{}}', 1, 2)", f"ALTER TABLE {table} DROP gone, DROP lost")
    db.run("ALTER TABLE whole REPLICA IDENTITY FULL")
    run = capturing(db)
    for table in ("t", "whole"):
        db.run(f"UPDATE {table} SET last = 3", f"ALTER TABLE {table} DROP last", f"UPDATE {table} SET a = 'b'")
        db.run(f"ALTER TABLE {table} ADD last text", f"UPDATE {table} SET last = 'x'", f"DELETE FROM {table}")
    rows = run.changes()
    after = ['{"a":"a","id":1,"last":3}', '{"a":"b","id":1}', '{"a":"b","id":1,"last":"x"}', None]
    before = ['{"a":"a","id":1,"last":2}', '{"a":"a","id":1}', '{"a":"b","id":1,"last":null}', after[2]]
    assert [row[3] for row in _of(rows, "t")] == [row[3] for row in _of(rows, "whole")] == after
    assert [row[2] for row in _of(rows, "t")] == [None, None, None, '{"id":1}']
    assert [row[2] for row in _of(rows, "whole")] == before


ODD = ['Mixed "Ké"', "a.b,c", "{x}", "back\\slash", "line\nbreak\x01", "sélect", "50% %s", "'", "鍵" * 21, " "]


@oldest_and_newest
def test_odd_names(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    quoted = ['"' + name.replace('"', '""') + '"' for name in ODD]
    for table in quoted:
        db.run(f"CREATE TABLE {table} ({', '.join(f'{name} text' for name in quoted)}, PRIMARY KEY ({quoted[0]}))")
    run = capturing(db)
    each = ", ".join(["'v'"] * len(ODD))
    for table in quoted:
        db.run(f"INSERT INTO {table} VALUES ({each})")
        db.run(f"UPDATE {table} SET {quoted[4]} = NULL", f"DELETE FROM {table}")
    rows = run.changes()
    assert [row["table"] for row in rows] == [name for name in ODD for _ in range(3)]
    row = dict.fromkeys(ODD, "v")
    for created, updated, deleted in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert json.loads(created["after"]) == row
        assert json.loads(updated["after"]) == {**row, ODD[4]: None}
        assert json.loads(deleted["before"]) == json.loads(deleted["key"]) == {ODD[0]: "v"}


class Latin(Database):
    """A database that keeps its text in LATIN1."""

    def __enter__(self) -> Self:
        self._admin(f"CREATE DATABASE {self.name} ENCODING 'LATIN1' TEMPLATE template0")
        return self

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, client_encoding="UTF8")


@oldest_and_newest
def test_a_database_in_another_encoding(
    postgres_server: Callable[[int], PostgresServer], capturing: Start, major: int
) -> None:
    """Everything arrives in UTF-8: names, values, elements."""
    with Latin(postgres_server(major)) as db:
        db.run('CREATE TABLE "tä" ("ïd" int PRIMARY KEY, "é" text, l text[], j json)')
        run = capturing(db)
        db.run("""INSERT INTO "tä" VALUES (1, 'größe', '{é,"ü ß"}', '{"ñ": "ø"}')""")
        image = '{"ïd":1,"é":"größe","l":["é","ü ß"],"j":{"ñ": "ø"}}'
        assert _of(run.changes(), "tä") == [("c", '{"ïd":1}', None, image)]
        run.stop()
