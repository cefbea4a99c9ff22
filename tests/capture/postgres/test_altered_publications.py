"""Somebody alters a publication: what was changed meanwhile is in no stream. It is read anew, or the tap stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.capture.postgres import health, publications
from tailrace.capture.postgres.publication_watch import ALTERED
from tailrace.contracts import Need
from tailrace.errors import TailraceError
from tailrace.testing.waiting import eventually
from tests.capture.postgres.ddl import Fresh, Start, looked, started
from tests.capture.running import Capturing, Database, TapProcess
from tests.capture.snapshot_process import Planner, config_of
from tests.capture.snapshotting import Snapshotting, contents, source_rows

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, v text)",
    "INSERT INTO items SELECT n, 'old' FROM generate_series(1, 25) n",
    "CREATE TABLE other (id int PRIMARY KEY)",
)
UNSEEN = "DELETE FROM items WHERE id <= 5; UPDATE items SET v = 'new' WHERE id = 6; INSERT INTO items VALUES (99)"
ALTERATIONS = {
    "a table dropped": "ALTER PUBLICATION {name} DROP TABLE items",
    "inserts only": "ALTER PUBLICATION {name} SET (publish = 'insert')",
    "a row filter": "ALTER PUBLICATION {name} SET TABLE items WHERE (id > 1000), other",
    "a column list": "ALTER PUBLICATION {name} SET TABLE items (id), other",
}
altered_by = pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)


@pytest.fixture
def filled(db: Database) -> Database:
    db.run(*TABLES)
    return db


def alter(db: Database, alteration: str, name: str = "", then: str = UNSEEN) -> None:
    """One transaction: no look comes between the alteration and what is changed then."""
    db.run(f"{alteration.format(name=name or db.source().publication_name)}; {then}")


def equal(run: Snapshotting, db: Database) -> bool:
    found = [row for (table, _), row in contents(run.finish()).items() if table == "items"]
    return sorted(found, key=lambda row: row["id"]) == sorted(source_rows(db), key=lambda row: row["id"])


def read_anew(run: Snapshotting, db: Database) -> set[str]:
    """Once a run is done that was requested for an altered publication: the tables of such runs."""

    def done() -> bool:
        found = [each for each in run.ledger.runs(db.name) if each.reason == ALTERED]
        return bool(found) and all(each.state == "done" for each in found)

    run.work(until=done)
    runs = [each.id for each in run.ledger.runs(db.name) if each.reason == ALTERED]
    return {table.table for each in runs for table in run.ledger.tables(each)}


def refused(run: Capturing, code: str) -> TailraceError:
    """The error that the capture ends with; it has closed its log."""
    run.failure()
    with pytest.raises(TailraceError) as caught:
        run.stop()
    assert caught.value.code == code
    assert caught.value.hint
    return caught.value


@altered_by
def test_while_the_tap_runs(
    filled: Database, tmp_path: Path, look: None, alteration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is put back, the table is read anew, and the status says why."""
    monkeypatch.setattr(health, "POLL_S", 0.1)
    with Snapshotting(filled, tmp_path) as run:
        run.begin()
        run.finish()
        looked(run.capturing)
        alter(filled, alteration)
        assert "items" in read_anew(run, filled)
        assert equal(run, filled)
        filled.run("UPDATE items SET v = 'later' WHERE id = 7")
        assert equal(run, filled)
        [warning] = eventually(lambda: run.capturing.stream.warnings)
        assert "was altered" in warning
        assert "public.items" in warning


def test_just_after_the_publication_was_found_to_be_right(
    filled: Database, capturing: Start, look: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same look does not find the table published; the next one puts it back."""
    run, ensure, left = started(capturing, filled), publications.ensure, [filled]

    def ensure_then_altered(*arguments: Any) -> tuple[str, ...]:
        names = ensure(*arguments)
        if left:
            alter(left.pop(), ALTERATIONS["a table dropped"])
        return names

    monkeypatch.setattr(publications, "ensure", ensure_then_altered)
    eventually(lambda: run.error or run.stream.needs_snapshot)
    assert run.error is None
    assert run.stream.needs_snapshot == [Need("public", "items", ALTERED, whole=True)]


@pytest.mark.parametrize("put_back", [False, True])
@pytest.mark.parametrize("alteration", [ALTERATIONS["a table dropped"], ALTERATIONS["inserts only"]])
def test_while_nothing_ran(filled: Database, tmp_path: Path, look: None, alteration: str, put_back: bool) -> None:
    """Also where the publication looks as before by the time somebody looks."""
    name = filled.source().publication_name
    with Snapshotting(filled, tmp_path) as run:
        run.begin()
        run.finish()
        looked(run.capturing)
        run.capturing.stop()
    alter(filled, alteration)
    if put_back:
        filled.run(
            f"ALTER PUBLICATION {name} SET TABLE items, other",
            f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')",
        )
    with Snapshotting(filled, tmp_path) as run:
        assert "items" in read_anew(run, filled)
        assert equal(run, filled)


def test_it_is_not_forgotten_by_a_crash_before_the_snapshot_is_requested(
    filled: Database, capturing: Start, look: None
) -> None:
    started(capturing, filled).stop()
    alter(filled, ALTERATIONS["a table dropped"])
    for _ in range(2):  # the need is never taken: as often as it starts it finds it
        run = started(capturing, filled)
        eventually(lambda run=run: run.stream.needs_snapshot)  # type: ignore[misc]
        assert run.stream.needs_snapshot == [Need("public", "items", ALTERED, whole=True)]
        run.stop()


@pytest.mark.parametrize("major", [15, 18])
def test_our_own_changes_are_no_alteration(database: Fresh, capturing: Start, look: None, major: int) -> None:
    db = database(major)
    db.run(*TABLES, "CREATE TABLE keyless (n int)")
    run = started(capturing, db)
    db.run("CREATE TABLE later (id int PRIMARY KEY)", "CREATE TABLE more (n int)", "DROP TABLE other")
    eventually(lambda: len(run.stream.needs_snapshot) == 2)
    assert {need.reason for need in run.stream.needs_snapshot} == {"new table"}
    assert run.stream._catalog_watch.warnings == []


def test_a_table_that_gets_a_key_is_read_anew(filled: Database, tmp_path: Path, look: None) -> None:
    """Its updates were published by nobody until it changed from the publication of inserts to that of all changes."""
    filled.run("ALTER TABLE items DROP CONSTRAINT items_pkey")
    with Snapshotting(filled, tmp_path) as run:
        run.begin()
        run.finish()
        looked(run.capturing)
        filled.run("ALTER TABLE items ADD PRIMARY KEY (id); UPDATE items SET v = 'new' WHERE id < 9")
        assert read_anew(run, filled) == {"items"}
        last = {row["after"] for row in run.finish() if row["op"] in "ru" and row["key"] == '{"id":8}'}
        assert last == {'{"id":8,"v":"new"}'}


def test_a_publication_of_the_users_that_loses_a_table(filled: Database, capturing: Start, look: None) -> None:
    filled.run("CREATE PUBLICATION mine FOR TABLE items, other")
    run = started(capturing, filled, publication="mine")
    alter(filled, ALTERATIONS["a table dropped"], "mine")
    error = refused(run, "source.publication")
    assert error.hint == 'ALTER PUBLICATION "mine" ADD TABLE public.items'
    filled.run(error.hint)
    again = started(capturing, filled, publication="mine")
    eventually(lambda: again.stream.needs_snapshot)
    assert again.stream.needs_snapshot == [Need("public", "items", ALTERED, whole=True)]


def test_a_publication_of_the_users_that_publishes_less(filled: Database, capturing: Start, look: None) -> None:
    """It stops, whenever it starts, until somebody decides; put back, every table is read anew."""
    filled.run("CREATE PUBLICATION mine FOR TABLE items, other")
    run = started(capturing, filled, publication="mine")
    alter(filled, ALTERATIONS["inserts only"], "mine")
    refused(run, "source.publication_altered")
    error = refused(capturing(filled, publication="mine"), "source.publication_altered")
    assert "published insert, update, delete, truncate, and now insert" in error.message
    filled.run(error.hint.partition(", and its tables")[0])
    again = started(capturing, filled, publication="mine")
    eventually(lambda: len(again.stream.needs_snapshot) == 2)


def test_going_on_with_what_the_user_publishes_now(
    filled: Database, tap: Callable[..., TapProcess], tmp_path: Path
) -> None:
    """By a repair: the tables are read as they are, and inserts go on."""
    filled.run("CREATE PUBLICATION mine FOR TABLE items, other")
    config = config_of(filled, publication="mine")
    with Snapshotting(filled, tmp_path, publication="mine") as run:
        run.begin()
        run.finish()
        looked(run.capturing)
    alter(filled, ALTERATIONS["inserts only"], "mine")
    stopped = tap(filled, config=config)
    assert stopped.wait() == 1
    assert stopped.status()["error"]["code"] == "source.publication_altered"
    with Planner(config, tmp_path) as planner:
        planner.ask_for_repair()
        again = tap(filled, config=config)
        again.until("running")
        planner.work()
        filled.run("INSERT INTO items VALUES (100)")
        found = {key for table, key in contents(again.changes()) if table == "items"}
    assert found == {f'{{"id":{key}}}' for (key,) in filled.rows("SELECT id FROM items")}


@pytest.fixture
def reader(filled: Database) -> Iterator[str]:
    """The DSN of a role that may replicate and read nothing."""
    name = f"role_{filled.name}"
    filled.run(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'hush-hush'")
    yield f"postgresql://{name}:hush-hush@127.0.0.1:{filled.server.port}/{filled.name}"
    filled.drop_slots()
    filled.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_a_role_that_may_not_read_the_table_anew(filled: Database, capturing: Start, look: None, reader: str) -> None:
    filled.run("CREATE PUBLICATION mine FOR TABLE items, other")
    started(capturing, filled, publication="mine", dsn=reader).stop()
    alter(filled, ALTERATIONS["a table dropped"], "mine")
    filled.run("ALTER PUBLICATION mine ADD TABLE items")
    error = refused(capturing(filled, publication="mine", dsn=reader), "source.privilege")
    assert "items" in error.message
    assert "GRANT SELECT" in error.hint
