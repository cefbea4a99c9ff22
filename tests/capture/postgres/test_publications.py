"""Publications of the user's are taken as they are: what they leave out, and how they name partitions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tailrace.changelog import LogReader
from tailrace.errors import TailraceError
from tests.capture.running import Capturing, Database

Start = Callable[..., Capturing]
Fresh = Callable[..., Database]


@pytest.fixture
def parted(db: Database) -> Database:
    db.run(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    return db


@pytest.mark.parametrize("major", [15, 16, 18])
def test_column_lists_and_row_filters(database: Fresh, capturing: Start, major: int) -> None:
    db = database(major)
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, shown text)",
        "CREATE PUBLICATION mine FOR TABLE t (id, shown) WHERE (id < 10)",
    )
    run = capturing(db, publication="mine")
    db.run(
        "INSERT INTO t VALUES (1, 'hush', 'a'), (11, 'hush', 'b')",
        "UPDATE t SET secret = 'husher', shown = 'c'",
        "UPDATE t SET id = 2 WHERE id = 11",  # comes into sight
        "UPDATE t SET id = 12 WHERE id = 1",  # goes out of sight
        "DELETE FROM t",
    )
    assert [(row["op"], row["key"], row["after"]) for row in run.changes()] == [
        ("c", '{"id":1}', '{"id":1,"shown":"a"}'),
        ("u", '{"id":1}', '{"id":1,"shown":"c"}'),
        ("c", '{"id":2}', '{"id":2,"shown":"c"}'),
        ("d", '{"id":1}', None),
        ("d", '{"id":2}', None),
    ]
    [schema] = [schema for schema in LogReader(run.path).schemas.values() if schema.table == "t"]
    assert [column.name for column in schema.columns] == ["id", "shown"]
    assert "hush" not in json.dumps(run.changes())


@pytest.mark.parametrize(("root", "names"), [("true", ["p", "p", "p"]), ("false", ["p_low", "p_high", "p_later"])])
def test_partitions_are_named_as_the_publication_does(
    parted: Database, capturing: Start, root: str, names: list[str]
) -> None:
    """The pattern knows only the root; a partition made later belongs to it too."""
    parted.run(f"CREATE PUBLICATION mine FOR TABLE p, other WITH (publish_via_partition_root = {root})")
    run = capturing(parted, publication="mine", tables=["public.p"])
    parted.run(
        "INSERT INTO p VALUES (1), (11)",
        "INSERT INTO other VALUES (1)",
        "CREATE TABLE p_later PARTITION OF p FOR VALUES FROM (20) TO (30)",
        "INSERT INTO p VALUES (21)",
    )
    assert [(row["table"], row["key"]) for row in run.changes()] == [
        (name, f'{{"id":{key}}}') for name, key in zip(names, (1, 11, 21), strict=True)
    ]


def test_one_partition_of_a_publication_that_names_them(parted: Database, capturing: Start) -> None:
    parted.run("CREATE PUBLICATION mine FOR TABLE p")
    run = capturing(parted, publication="mine", tables=["public.p_high"])
    parted.run("INSERT INTO p VALUES (1), (11)")
    assert [(row["table"], row["key"]) for row in run.changes()] == [("p_high", '{"id":11}')]


def test_one_partition_where_the_root_is_published(parted: Database, capturing: Start) -> None:
    """Its changes come under the root's name: the pattern would match nothing, silently."""
    error = capturing(parted, tables=["public.p_high"]).failure()
    assert isinstance(error, TailraceError)
    assert error.code == "source.table_missing"


def test_a_publication_that_lacks_a_partition(parted: Database, capturing: Start) -> None:
    parted.run("CREATE PUBLICATION mine FOR TABLE p_low, other")
    error = capturing(parted, publication="mine").failure()
    assert isinstance(error, TailraceError)
    assert error.code == "source.publication"
    assert "ADD TABLE public.p_high" in error.hint


def test_a_partitioned_table_without_partitions_yet(db: Database, capturing: Start) -> None:
    db.run("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE PUBLICATION mine FOR ALL TABLES")
    run = capturing(db, publication="mine")
    db.run("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (9)", "INSERT INTO p VALUES (1)")
    assert [row["table"] for row in run.changes()] == ["p_1"]
