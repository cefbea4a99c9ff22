"""A mirror through everything that a source does to its tables, and others to the mirror."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.errors import Action, LogError, SinkError, decide
from tailrace.processors.filter import FilterProcessor
from tailrace.schema import TableSchema
from tailrace.testing.failpoints import dies_at
from tailrace.testing.feed import column_of, schema_of
from tailrace.testing.servers import PostgresServer
from tailrace.testing.suites.tables import ITEMS, ORDERS, FedSink
from tests.capture.running import Database
from tests.processors.steps import Even, Renaming
from tests.sinks.postgres.mirrors import Coded, mirror, read

Make = Callable[..., FedSink]
KEYLESS = schema_of(7, "notes", {"id": "bigint", "note": "text"}, (), relation=700)
SECRET = "4711-secret"


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    with Database(postgres) as database:
        yield database


@pytest.fixture
def make(spark: SparkSession, db: Database, tmp_path: Path) -> Make:
    """`make(*processors, **options)`: a mirror in `db` with a feed of its own."""
    return lambda *processors, **options: FedSink(spark, mirror(db, **options), tmp_path, processors)


def order(number: int, n: int = 0, note: str | None = "a") -> dict[str, Any]:
    return {"id": number, "n": n, "note": note}


def version(
    number: int, columns: dict[int, tuple[str, str]], key: tuple[str, ...] = ("id",), **more: Any
) -> TableSchema:
    """Version `number` of orders; `columns`: number at the source → (name, type)."""
    named = tuple(column_of(name, spelled, place) for place, (name, spelled) in columns.items())
    return TableSchema(number, "shop", "public", "orders", named, key, **{"relation": 100, **more})


def types(db: Database, table: str = "orders") -> dict[str, str]:
    query = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass "
    return dict(db.rows(query + "AND attnum > 0 AND NOT attisdropped ORDER BY attname", table))


# -- columns -------------------------------------------------------------------------------------------------


def test_columns_are_followed_by_their_numbers(make: Make, db: Database) -> None:
    """Two change places, one goes and comes back as another, some come with defaults; all in one transaction."""
    fed = make()
    fed.feed.add(ORDERS, "c", order(1, 10, "ten"))
    fed.keep()
    later = version(
        4,
        {1: ("id", "bigint"), 2: ("note", "bigint"), 3: ("n", "text"), 4: ("raw", "bytea"), 5: ("tags", "text[]")},
    )
    fed.feed.evolve(later, {"raw": "AP8=", "tags": ["a", None]})
    fed.feed.add(later, "c", {"id": 2, "note": 1 << 40, "n": "x", "raw": None, "tags": []})
    fed.keep()
    assert read(db, "orders") == [
        {"id": 1, "note": 10, "n": "ten", "raw": b"\x00\xff", "tags": ["a", None]},
        {"id": 2, "note": 1 << 40, "n": "x", "raw": None, "tags": []},
    ]
    assert types(db)["note"] == "bigint"
    last = version(5, {1: ("id", "bigint"), 2: ("note", "bigint"), 6: ("n", "integer")})
    fed.feed.evolve(last).add(last, "c", {"id": 3, "note": 3, "n": 33})
    fed.keep()
    assert read(db, "orders")[0] == {
        **{"id": 1, "note": 10, "n__dropped": "ten", "n": None, "raw": b"\x00\xff", "tags": ["a", None]}
    }
    assert read(db, "orders")[2]["n"] == 33
    assert fed.keeper.warnings() == ()


def test_a_dropped_column_goes_where_that_is_wanted(make: Make, db: Database) -> None:
    fed = make(dropped_columns="drop")
    fed.feed.add(ORDERS, "c", order(1))
    later = version(4, {1: ("id", "bigint"), 2: ("n", "integer")})
    fed.feed.evolve(later).add(later, "c", {"id": 2, "n": 2})
    fed.keep()
    assert read(db, "orders") == [{"id": 1, "n": 0}, {"id": 2, "n": 2}]


def test_a_type_that_does_not_widen_becomes_text_or_halts(make: Make, db: Database) -> None:
    fed = make(evolutions={"public.items": "halt"})
    fed.feed.add(ITEMS, "c", order(1))
    fed.keep()
    dated = version(4, {1: ("id", "bigint"), 2: ("n", "timestamp with time zone"), 3: ("note", "text")})
    plain = version(5, {1: ("id", "bigint"), 2: ("n", "boolean"), 3: ("note", "text")})
    moment = "2024-02-29T12:00:00.000001Z"
    fed.feed.add(dated, "c", {"id": 1, "n": moment, "note": None}).evolve(plain)
    fed.feed.add(plain, "c", {"id": 2, "n": True, "note": None})
    changed = schema_of(6, "items", {"id": "bigint", "n": "text", "note": "text"}, relation=200)
    fed.feed.add(ITEMS, "c", order(2)).evolve(changed).add(changed, "c", {"id": 3, "n": "x", "note": None})
    fed.keep()
    assert [row["n"] for row in read(db, "orders")] == [moment, "true"]
    assert read(db, "items") == [order(1)]  # nothing of the batch: its savepoint is older
    [warning] = fed.keeper.warnings()
    assert "public.items.n from integer to text" in warning
    fed.again(mirror(db))
    assert [row["n"] for row in read(db, "items")] == ["0", "0", "x"]
    assert fed.keeper.warnings() == ()


def test_another_key_tells_rows_apart(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(ORDERS, "c", order(1, 1)).add(ORDERS, "c", order(2, 2))
    rekeyed = version(4, {1: ("id", "bigint"), 2: ("n", "integer"), 3: ("note", "text")}, ("n", "note"))
    fed.feed.evolve(rekeyed).add(rekeyed, "u", order(7, 1)).add(rekeyed, "c", order(7, 3))
    bare = version(5, {1: ("id", "bigint"), 2: ("n", "integer"), 3: ("note", "text")}, ())
    fed.keep()
    assert read(db, "orders", "n") == [order(7, 1), order(2, 2), order(7, 3)]
    fed.feed.evolve(bare).add(bare, "c", order(7, 3, None))
    fed.keep()
    assert read(db, "orders", "n, note") == [order(7, 1), order(2, 2), order(7, 3), order(7, 3, None)]


def test_a_table_made_anew_holds_nothing_of_the_old_one(make: Make, db: Database) -> None:
    fed = make(dropped_columns="drop")
    fed.feed.add(ORDERS, "c", order(1))
    dropped = version(4, {})
    again = version(5, {1: ("id", "bigint"), 2: ("n", "text")}, relation=101)
    fed.feed.evolve(dropped).evolve(again).add(again, "c", {"id": 2, "n": "new"})
    fed.keep()
    assert read(db, "orders") == [{"id": 2, "n": "new"}]


# -- rows ----------------------------------------------------------------------------------------------------


def test_a_table_without_a_key_is_appended_once(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(KEYLESS, "c", {"id": 1, "note": "a"}).add(KEYLESS, "c", {"id": 1, "note": "a"})
    with dies_at("postgres.mirror.after_commit"):
        fed.keep()
    fed.again()
    fed.keep(0)
    assert read(db, "notes") == [{"id": 1, "note": "a"}] * 2
    fed.feed.add(KEYLESS, "u", {"id": 1, "note": "b"})
    fed.keep()
    assert "has no key: its updates and deletes name no row" in fed.keeper.warnings()[0]
    assert fed.feed.retained["public.notes"] == 2


def test_a_table_without_a_key_halts_where_that_is_wanted(make: Make, db: Database) -> None:
    fed = make(without_key="halt")
    fed.feed.add(KEYLESS, "c", {"id": 1, "note": "a"})
    fed.keep()
    assert "has no key" in fed.keeper.warnings()[0]


def test_keys_that_change_places_and_deletes_that_make_room(make: Make, db: Database) -> None:
    """A constraint of the user's that can wait sees no value twice."""
    fed = make()
    for number in (1, 2, 3):
        fed.feed.add(ORDERS, "c", order(number, number, f"note {number}"))
    fed.keep()
    db.run("ALTER TABLE orders ADD UNIQUE (n) DEFERRABLE")
    lacks = ["note"]
    fed.feed.move(ORDERS, {"id": 1}, {"id": 9, "n": 1}, lacks).move(ORDERS, {"id": 2}, {"id": 1, "n": 2}, lacks)
    fed.feed.move(ORDERS, {"id": 9}, {"id": 2, "n": 1}, lacks)
    fed.feed.add(ORDERS, "d", {"id": 3}).add(ORDERS, "c", order(4, 3))
    fed.keep()
    assert read(db, "orders") == [order(1, 2, "note 2"), order(2, 1, "note 1"), order(4, 3)]
    fed.feed.add(ORDERS, "c", order(5, 3)).add(ITEMS, "c", order(1))
    fed.keep()
    assert "duplicate key value violates unique constraint" in fed.keeper.warnings()[0]
    assert read(db, "items") == [order(1)]


def test_a_row_that_comes_back_without_its_columns_halts_the_table(make: Make, db: Database) -> None:
    fed = make(_small())
    fed.feed.add(ORDERS, "c", order(1, 20, "large"))
    fed.keep()
    fed.feed.add(ORDERS, "u", {"id": 1, "n": 1}, unchanged=["note"])
    fed.keep()
    assert "comes back without columns" in fed.keeper.warnings()[0]


# -- tables that halt ----------------------------------------------------------------------------------------


def test_a_table_halts_alone_says_no_value_and_catches_up(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(ORDERS, "c", order(1)).add(ITEMS, "c", order(1))
    fed.keep()
    db.run(f"ALTER TABLE orders ADD CONSTRAINT decent CHECK (note <> '{SECRET}')")
    fed.feed.add(ORDERS, "c", order(2, 2, SECRET)).add(ITEMS, "c", order(2, 2, SECRET))
    fed.keep()
    fed.feed.add(ORDERS, "u", order(2, 3, "mended")).add(ITEMS, "d", {"id": 1})
    fed.keep()
    assert read(db, "orders") == [order(1)]
    assert read(db, "items") == [order(2, 2, SECRET)]
    [warning] = fed.keeper.warnings()
    assert "public.orders cannot be written" in warning and '"decent"' in warning
    assert SECRET not in warning
    assert fed.feed.retained["public.orders"] == 2
    fed.again()  # it is as it was
    assert fed.keeper.warnings() == (warning,)
    db.run("ALTER TABLE orders DROP CONSTRAINT decent")
    with dies_at("postgres.catch_up.between"):
        fed.again()
    fed.again()
    assert fed.keeper.warnings() == () and "public.orders" not in fed.feed.retained
    assert read(db, "orders") == [order(1), order(2, 3, "mended")]


def test_a_table_that_waits_for_what_the_log_dropped_says_so(make: Make, db: Database) -> None:
    fed = make(without_key="halt")
    fed.feed.add(KEYLESS, "c", {"id": 1, "note": "a"})
    fed.keep()
    fed.feed.trim()
    fed.again(mirror(db))
    assert "the log begins at" in fed.keeper.warnings()[0]


@pytest.mark.parametrize("evolution", ["adapt", "halt"])
def test_a_value_that_does_not_fit_a_table_of_the_users(make: Make, db: Database, evolution: str) -> None:
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, n int, note varchar(3), more text DEFAULT 'mine')")
    fed = make(evolution=evolution)
    fed.feed.add(ORDERS, "c", order(1, 1, "abc"))
    fed.keep()
    fed.feed.add(ORDERS, "c", order(2, 2, SECRET))
    fed.keep()
    if evolution == "adapt":
        assert types(db)["note"] == "text"
        assert [row["note"] for row in read(db, "orders")] == ["abc", SECRET]
    else:
        assert "public.orders.note does not fit its column, character varying(3)" in fed.keeper.warnings()[0]
        assert SECRET not in fed.keeper.warnings()[0]
    assert {row["more"] for row in read(db, "orders")} == {"mine"}


def test_a_text_that_postgresql_does_not_store(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(ORDERS, "c", order(1, 1, f"\0{SECRET}")).add(ITEMS, "c", order(1))
    fed.keep()
    assert "a character that PostgreSQL does not store" in fed.keeper.warnings()[0]
    assert SECRET not in fed.keeper.warnings()[0]
    assert read(db, "items") == [order(1)]


# -- the tables of others ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("(id bigint PRIMARY KEY, n int)", "it lacks note"),
        ("(id bigint, n int, note text)", "it lacks a unique index on id"),
        ("(id bigint PRIMARY KEY, n date, note text)", "of another type: n date"),
    ],
)
def test_a_table_that_cannot_keep_the_rows_is_refused(make: Make, db: Database, made: str, told: str) -> None:
    db.run(f"CREATE TABLE orders {made}")
    fed = make()
    fed.feed.add(ORDERS, "c", order(1))
    fed.keep()
    assert told in fed.keeper.warnings()[0]
    db.run("DROP TABLE orders")
    fed.again()
    assert read(db, "orders") == [order(1)]


def test_a_mirror_that_somebody_dropped_is_not_made_with_holes(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(ORDERS, "c", order(1))
    fed.keep()
    db.run("DROP TABLE orders")
    fed.feed.add(ORDERS, "c", order(2))
    fed.keep()
    assert "is gone, which kept public.orders" in fed.keeper.warnings()[0]
    db.run("DELETE FROM _tailrace.tables")
    fed.again()
    assert read(db, "orders") == [order(2)]


def test_a_source_is_not_copied_into_itself(make: Make, db: Database) -> None:
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, n int, note text)")
    columns = {1: ("id", "bigint"), 2: ("n", "integer"), 3: ("note", "text")}
    own = version(1, columns, relation=db.value("SELECT 'orders'::regclass::oid::bigint"))
    own = TableSchema.from_dict({**own.as_dict(), "database": db.name})
    fed = make()
    fed.feed.add(own, "c", order(1))
    fed.keep()
    assert "the target is the source's own table" in fed.keeper.warnings()[0]
    assert read(db, "orders") == []


def test_two_tables_are_not_one(make: Make, db: Database) -> None:
    fed = make(table_name="all")
    fed.feed.add(ORDERS, "c", order(1)).add(ITEMS, "c", order(2))
    fed.keep()
    assert read(db, "all") == [order(1)]
    assert "would be one table" in fed.keeper.warnings()[0]


def test_missing_tables_are_made_only_where_that_is_wanted(make: Make, db: Database) -> None:
    fed = make(auto_create_table=False, schema_name="copy_of_{schema}")
    fed.feed.add(ORDERS, "c", order(1))
    fed.keep()
    assert 'there is no table "copy_of_public"."orders"' in fed.keeper.warnings()[0]
    fed.again(mirror(db, schema_name="copy_of_{schema}"))
    assert db.rows("SELECT id FROM copy_of_public.orders") == [(1,)]


# -- the database --------------------------------------------------------------------------------------------


def test_a_lock_of_somebody_else_is_waited_for(make: Make, db: Database) -> None:
    fed = make(lock_timeout="50ms")
    fed.feed.add(ORDERS, "c", order(1))
    fed.keep()
    fed.feed.add(ORDERS, "c", order(2))
    with db.connect() as other, other.transaction():
        other.execute("LOCK TABLE orders")
        with pytest.raises(SinkError) as failure:
            fed.keep()
    assert decide(failure.value) is Action.RETRY and "pg_locks" in failure.value.hint
    fed.keep(0)
    assert read(db, "orders") == [order(1), order(2)]


def test_what_is_delivered_twice_at_once_is_there_once(make: Make, db: Database) -> None:
    """A driver that was given up still holds its batch when the next begins: one of them brings it."""
    fed = make()
    span = fed.feed.add(KEYLESS, "c", {"id": 1, "note": "a"}).flush(0)
    others = [fed.keeper, fed._open()]
    threads = [threading.Thread(target=keeper.keep, args=(span,)) for keeper in others]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert read(db, "notes") == [{"id": 1, "note": "a"}]


def test_a_database_that_was_restored_gets_what_it_lacks(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(ORDERS, "c", order(1))
    fed.keep()
    fed.feed.add(ORDERS, "c", order(2))
    fed.keep()
    db.run("DELETE FROM orders WHERE id = 2", "UPDATE _tailrace.marks SET mark = 1")
    fed.feed.add(ORDERS, "c", order(3))
    fed.keep()
    assert [row["id"] for row in read(db, "orders")] == [1, 2, 3]
    db.run("UPDATE _tailrace.marks SET mark = 1")
    fed.at = fed.feed.trim()
    fed.feed.add(ORDERS, "c", order(4))
    with pytest.raises(LogError, match="the log begins at"):
        fed.keep()


def test_a_mark_that_is_lost_stops_the_sink(make: Make, db: Database) -> None:
    fed = make()
    fed.feed.add(ORDERS, "c", order(1))
    fed.keep()
    db.run("DROP SCHEMA _tailrace CASCADE")
    with pytest.raises(SinkError) as failure:
        fed.again()
    assert failure.value.code == "sink.mark_lost"


def _small() -> FilterProcessor:
    return FilterProcessor.from_document({"id": "small", "fields": [{"path": "n", "op": "lt", "value": 10}]})


@pytest.mark.parametrize("even", [Even(id="even"), Coded(id="even")], ids=["here", "in tasks"])
def test_a_mirror_equals_its_source_under_the_chain(make: Make, db: Database, even: Even) -> None:
    """Rows leave it and come back as their values go in and out of what is wanted."""
    fed = make(even, Renaming(id="renaming"))
    fed.feed.add(ORDERS, "c", order(1, 0)).add(ORDERS, "c", order(2, 1)).add(ORDERS, "c", order(3, 2))
    fed.keep()
    assert [(row["id"], row["number"]) for row in read(db, "orders")] == [(1, 0), (3, 2)]
    fed.feed.add(ORDERS, "u", order(1, 5)).add(ORDERS, "u", order(2, 4, "b"))
    fed.feed.add(ORDERS, "u", {"id": 3, "n": 8}, unchanged=["note"])
    fed.keep()
    assert read(db, "orders") == [{"id": 2, "number": 4, "note": "b"}, {"id": 3, "number": 8, "note": "a"}]
