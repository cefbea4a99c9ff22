"""A tap whose control store is in PostgreSQL: killed, and cut off from the store, it loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.config import Dsn
from tailrace.control import Store
from tailrace.control.schemas import SchemaRegistry
from tailrace.testing.waiting import eventually
from tests.capture.running import Database, TapProcess

PASSWORD = "canary-7261"


@pytest.fixture
def store_db(database: Callable[..., Database]) -> Iterator[Database]:
    """A database with a role that may be locked out of it, unlike a superuser."""
    db = database()
    db.run(f"CREATE ROLE {db.name} LOGIN PASSWORD '{PASSWORD}'", f"GRANT CREATE ON SCHEMA public TO {db.name}")
    yield db
    db.run(f"DROP OWNED BY {db.name}", f"DROP ROLE {db.name}")


def _url(db: Database) -> str:
    return f"postgresql://{db.name}:{PASSWORD}@127.0.0.1:{db.server.port}/{db.name}"


def _versions(url: str, source: str) -> list[str]:
    with closing(Store(Dsn(url))) as store:
        names = [each.schema.table for each in SchemaRegistry(store).versions(source)]
    return [name for name in names if not name.startswith("mark-")]


def test_a_tap_goes_on_after_a_kill_and_an_outage_of_the_store(
    db: Database, store_db: Database, tap: Callable[..., TapProcess]
) -> None:
    url = _url(store_db)
    db.run("CREATE TABLE a (id int PRIMARY KEY)")
    first = tap(db, store=url)
    first.until("running")
    db.run("INSERT INTO a SELECT generate_series(1, 50)")
    eventually(lambda: _versions(url, db.name) == ["a"])
    arguments = Path(f"/proc/{first.process.pid}/cmdline").read_text()
    assert "tailrace.capture.tap" in arguments
    assert PASSWORD not in arguments
    first.process.kill()
    first.wait()

    store_db.run(f"ALTER ROLE {store_db.name} CONNECTION LIMIT 0", _end_sessions(store_db))
    second = tap(db, store=url, status="second.json")
    told = second.until("waiting")
    assert told["error"]["code"] == "store.unavailable"
    assert PASSWORD not in str(told)
    db.run("INSERT INTO a SELECT generate_series(51, 100)", "CREATE TABLE b (id int PRIMARY KEY)")
    store_db.run(f"ALTER ROLE {store_db.name} CONNECTION LIMIT -1")
    second.until("running")

    store_db.run(f"ALTER ROLE {store_db.name} CONNECTION LIMIT 0", _end_sessions(store_db))
    db.run("INSERT INTO b VALUES (1)")  # whose first version is to be entered in the store
    eventually(lambda: second.status().get("error", {}).get("code") == "store.unavailable")
    store_db.run(f"ALTER ROLE {store_db.name} CONNECTION LIMIT -1")
    found = [(change["table"], json.loads(change["key"])["id"]) for change in second.changes() if change["op"] == "c"]
    assert found == [*(("a", n) for n in range(1, 101)), ("b", 1)]
    eventually(lambda: _versions(url, db.name) == ["a", "b"])


def _end_sessions(db: Database) -> str:
    return f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{db.name}'"
