"""Both modes of the PostgreSQL sink through the full system: `kill -9` at random, then no event is lost or there twice,
every mirrored table equals its source, and `tailrace verify` agrees.

Seeds are printed; `SEED=n pytest tests/test_mirror_system.py` tells one story again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.events import check_events
from tests.whole import System

KILLS, SOAK_KILLS = 5, 50
ROWS = 400
"""How many events come between two kills, at most."""
SINKS = """
{{type: postgres, config: {{id: copy, mode: mirror, dsn: "DSN", commit_interval: 50ms}}}},
{{type: postgres, config: {{id: events, mode: events, dsn: "DSN", schema_name: cdc, table_name: events}}}}
"""
JOURNAL = (
    "CREATE TABLE journal (at timestamptz DEFAULT clock_timestamp(), name text, id bigint, doc json)",
    "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO journal (name, id, doc) VALUES (TG_TABLE_NAME, NEW.id, to_json(NEW.v)); RETURN NULL; END $$",
)
"""A table without a key, whose rows nothing but the marks keeps from coming twice."""
NOTED = "CREATE TRIGGER note AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION note()"


@pytest.fixture
def place(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[System, Database]]:
    with Database(postgres) as source, Database(postgres) as target:
        system = System(source, tmp_path, SINKS.replace("DSN", target.dsn))
        yield system, target
        if system.victim.process is not None and system.victim.process.poll() is None:
            system.victim.kill("both")


@pytest.mark.timeout(1200)
def test_five_kills(place: tuple[System, Database]) -> None:
    tell(crash.seeds()[0], *place, KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", crash.seeds())
def test_fifty_kills(seed: int, place: tuple[System, Database]) -> None:
    tell(seed, *place, SOAK_KILLS)


def tell(seed: int, system: System, target: Database, kills: int) -> None:
    print(f"mirror seed {seed}")
    writers = crash.Writers(system.db.dsn, seed, rows=300)
    system.db.run(*JOURNAL, *map(NOTED.format, writers.tables))
    system.start()
    writers.start()
    progress = delivered(target)
    eventually(lambda: next(progress) > 0, 60, what=system.victim.output)
    killed = crash.kill_at_random(system.victim, progress, kills, random.Random(seed), crash.EVERYBODY, ROWS)
    writers.stop()
    system.victim.kill("both")
    print(f"killed {killed}")
    system.catch_up()
    compare(system, target, (*writers.tables, "journal"))
    verify(system, target, writers.tables)


def delivered(target: Database) -> Iterator[int]:
    """How many events there are: progress that a kill cannot fake."""
    with target.connect() as connection:
        while True:
            [(there,)] = connection.execute("SELECT to_regclass('cdc.events') IS NOT NULL").fetchall()
            yield int(connection.execute("SELECT count(*) FROM cdc.events").fetchall()[0][0]) if there else 0


def compare(system: System, target: Database, tables: tuple[str, ...]) -> None:
    """Every event is there once, and every table is equal."""
    found = target.rows("SELECT event_id::text, event_value FROM cdc.events ORDER BY source_offset")
    assert [event for event, _ in found] == [value["event_id"] for _, value in found]
    assert check_events(system.folder / "data" / "logs" / system.db.name, [value for _, value in found]) > 500
    for table in tables:
        assert rows(target, table) == rows(system.db, table), table


def verify(system: System, target: Database, tables: tuple[str, ...]) -> None:
    """Every table is equal but for what is made different here."""
    narrow, wide = tables
    [(first, other)] = target.rows(f"SELECT min(id), max(id) FROM {narrow}")
    target.run(f"DELETE FROM {narrow} WHERE id = {first}", f"UPDATE {narrow} SET v = 'else' WHERE id = {other}")
    done = system.tailrace("verify", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {each["table"]: each for each in json.loads(done.stdout)["tables"]}
    assert found[f"public.{narrow}"]["differences"] == {"missing": 1, "changed": 1}
    assert found[f"public.{wide}"]["equal"] and found["public.journal"]["equal"], done.stdout


def rows(db: Database, table: str) -> list[tuple[Any, ...]]:
    """All rows as texts, in one order."""
    with psycopg.connect(db.dsn) as connection:
        return connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1".encode()).fetchall()
