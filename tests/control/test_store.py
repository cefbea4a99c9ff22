"""The store's promises: its tables, its versions, its transactions."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tailrace.control import Store, migrations, text_of
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.control.schemas import SchemaRegistry
from tailrace.control.tables import METADATA, indexed, store_version
from tailrace.errors import Action, SetupError, decide

PROCESSES, ROUNDS = 4, 40
_OPENER = """
import sys
from pathlib import Path
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger
print("ready", flush=True)
for line in sys.stdin:
    store = Store(Path(line.strip()))
    print(len(SnapshotLedger(store).runs("shop")), flush=True)
    store.close()
"""
_COUNTS = """
from contextlib import closing
from pathlib import Path
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger
with closing(Store(Path(sys.argv[1]))) as store:
    print(len(SnapshotLedger(store).runs("shop")))
"""
_DIES = """
import os, sys
from tailrace.control import Store, place_of
from tailrace.control.tables import indexed
with Store(place_of(sys.stdin.read())).transaction() as connection:
    connection.execute(indexed.insert().values(source="shop", log_id="log", log_offset=1))
    os._exit(9)
"""


def _shape(engine: sa.Engine) -> dict[str, Any]:
    """Everything the database tells of its tables."""
    look = sa.inspect(engine)
    return {
        name: {
            "columns": [{**column, "type": str(column["type"])} for column in look.get_columns(name)],
            "key": look.get_pk_constraint(name),
            "references": look.get_foreign_keys(name),
            "indexes": sorted(look.get_indexes(name), key=lambda index: str(index["name"])),
        }
        for name in look.get_table_names()
    }


def test_migrations_lead_to_the_declared_tables(
    open_store: Callable[[str], Store], engine: Callable[[str], sa.Engine], dialect: str
) -> None:
    declared = engine(dialect)
    METADATA.create_all(declared)
    with closing(open_store(dialect)) as store:
        assert _shape(store._engine) == _shape(declared)
    assert len(_shape(declared)) == len(METADATA.tables)


def test_a_newer_store_is_refused_and_left_alone(store: Store) -> None:
    newer = len(migrations.MIGRATIONS) + 1
    with store.transaction() as connection:
        connection.execute(sa.update(store_version).values(version=newer))
    with pytest.raises(SetupError) as caught:
        Store(store.place)
    assert (caught.value.code, caught.value.where) == ("store.newer", store.where)
    assert _version_of(store) == newer


def test_an_older_store_is_brought_up_to_date_with_what_it_has(
    open_store: Callable[[str], Store], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        with closing(open_store(dialect)) as store:
            run = SnapshotLedger(store).request("shop", "asked", [TableRequest("public", "a")], log_id="log", since=0)
            assert _version_of(store) == 1
    with closing(open_store(dialect)) as store:
        assert [each.id for each in SnapshotLedger(store).runs("shop")] == [run]
        assert SchemaRegistry(store).sources() == ()
        assert _version_of(store) == len(migrations.MIGRATIONS)


def test_a_step_that_fails_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "control.db"
    Store(path).close()
    broken = ("CREATE TABLE half (id BIGINT)", "CREATE TABLE snapshot_runs (id BIGINT)")
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
        with pytest.raises(sa.exc.OperationalError):
            Store(path)
    with closing(Store(path)) as store:
        assert set(sa.inspect(store._engine).get_table_names()) == set(METADATA.tables)


def test_processes_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    opener = [sys.executable, "-c", _OPENER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    processes = [subprocess.Popen(opener, **pipes) for _ in range(PROCESSES)]  # type: ignore[call-overload]
    try:
        assert [each.stdout.readline() for each in processes] == ["ready\n"] * PROCESSES
        for number in range(ROUNDS):
            for each in processes:
                each.stdin.write(f"{tmp_path / str(number) / 'control.db'}\n")
            assert [each.stdout.readline() for each in processes] == ["0\n"] * PROCESSES
    finally:
        for each in processes:
            each.communicate()


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    with suppress(RuntimeError), store.transaction() as connection:
        connection.execute(sa.insert(indexed).values(source="shop", log_id="log", log_offset=1))
        raise RuntimeError
    assert SnapshotLedger(store).indexed("shop", "log") == 0


def test_a_process_that_dies_in_a_transaction_leaves_nothing(store: Store) -> None:
    died = subprocess.run([sys.executable, "-c", _DIES], input=text_of(store.place), text=True, check=False)
    assert died.returncode == 9
    assert SnapshotLedger(store).indexed("shop", "log") == 0
    SnapshotLedger(store).enter("shop", "log", 2, None)  # nor does it keep others waiting


def test_transactions_are_one_after_another(store: Store) -> None:
    """Each reads, then writes what it read plus one: none may read what another is about to change."""
    SnapshotLedger(store).enter("shop", "log", 0, None)

    def count() -> None:
        for _ in range(20):
            with store.transaction() as connection:
                seen = connection.execute(sa.select(indexed.c.log_offset)).scalar_one()
                connection.execute(sa.update(indexed).values(log_offset=seen + 1))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert SnapshotLedger(store).indexed("shop", "log") == 60


def test_whoever_reads_waits_for_no_writer_and_sees_one_moment(store: Store) -> None:
    ledger = SnapshotLedger(store)
    ledger.enter("shop", "log", 1, None)
    offset = sa.select(indexed.c.log_offset)
    with store.reading() as reader:
        assert reader.execute(offset).scalar_one() == 1
        ledger.enter("shop", "log", 2, None)
        assert reader.execute(offset).scalar_one() == 1
    with store.transaction() as writer:
        writer.execute(sa.update(indexed).values(log_offset=3))
        with store.reading() as reader:
            assert reader.execute(offset).scalar_one() == 2


def test_a_store_that_is_closed_twice_is_closed_once(store: Store) -> None:
    with closing(Store(store.place)) as other:
        other.close()
    assert SnapshotLedger(store).runs("shop") == []


def _version_of(store: Store) -> int:
    with store.reading() as connection:
        found: int = connection.execute(sa.select(store_version.c.version)).scalar_one()
    return found


def test_a_turn_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the store in vain is told so, and may try again."""
    monkeypatch.setattr("tailrace.control.sqlite.BUSY_MS", 10)
    path = tmp_path / "control.db"
    with closing(Store(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for attempt in (lambda: SnapshotLedger(store).runs("shop"), lambda: Store(path)):
            with pytest.raises(SetupError, match=r"for more than 0.01 s") as caught:
                attempt()
            assert (caught.value.code, caught.value.where) == ("store.busy", str(path))
            assert "data directory" in caught.value.hint
            assert decide(caught.value) is Action.RETRY
        other.execute("ROLLBACK")
        assert SnapshotLedger(store).runs("shop") == []


def test_a_disk_without_space_is_a_wait(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    with closing(Store(path)) as store, pytest.raises(SetupError) as caught, store.transaction() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # SQLite then says what it says of a full disk
        connection.exec_driver_sql("CREATE TABLE large AS SELECT randomblob(1000000)")
    assert (caught.value.code, caught.value.where) == ("disk.full", str(path))
    assert decide(caught.value) is Action.RETRY


def test_what_is_wrong_otherwise_is_not_called_busy(tmp_path: Path) -> None:
    with (
        closing(Store(tmp_path / "control.db")) as store,
        pytest.raises(sa.exc.OperationalError, match="no such table"),
        store.transaction() as connection,
    ):
        connection.execute(sa.text("SELECT * FROM nowhere"))


def test_a_second_handle_in_a_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """Whoever closes the store in another process must not take itself for the last, and remove what we still use."""
    path = tmp_path / "control.db"
    with closing(Store(path)) as first, closing(Store(path)):
        _open_and_close_elsewhere(path)
        SnapshotLedger(first).request("shop", "asked", [TableRequest("public", "orders")], log_id="log", since=0)
        assert _open_and_close_elsewhere(path) == "1"


def _open_and_close_elsewhere(path: Path) -> str:
    """How many runs another process finds."""
    code = f"import sys; sys.argv.append({str(path)!r})\n{_COUNTS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
