"""Lakes through the full system: writers, DDL, `kill -9`, then every table of every format equals its source, and
`tailrace verify` agrees.

Seeds are printed; `SEED=n pytest tests/test_lake_system.py` tells one story again."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace.changelog import LogReader
from tailrace.testing.waiting import eventually
from tests import lakes
from tests.whole import System

NAMES = ("delta", "ice2", "ice3")
SEEDS = 2
KILLS = 1
"""In CI; the soak has more."""
TOGETHER = 2
"""Stories that are told at the same time."""
MORE_KILLS = 5
PACE_S = 0.1
"""Between a writer's transactions."""
LEAD = 1_000
"""Changes that writers may be ahead of the slowest sink: on a busy machine it would have ever more to catch up with."""
PATIENCE_S = 300
TABLE = """CREATE TABLE {} (id bigint PRIMARY KEY, n int, price numeric(10, 2), body text, tags text[],
 at timestamptz DEFAULT clock_timestamp(), day date, raw bytea, flag boolean, ratio double precision, doc jsonb)"""
LOADED = """CREATE TABLE loaded (id bigint PRIMARY KEY, n int, price numeric(10, 2), body text, at timestamptz,
 day date, flag boolean, ratio double precision, doc jsonb)"""
ROWS = """INSERT INTO loaded SELECT g, g, g / 7.0, repeat('é"\\', g % 5),
 '2024-02-29'::timestamptz + g * interval '1.1 s', '2024-02-29'::date + g % 9, g % 2 = 0,
 CASE g % 4 WHEN 0 THEN '-0' ELSE g / 7.0 END,
 jsonb_build_object('k', g / 10.0, 'none', NULL) FROM generate_series(1, 30000) g"""
TOUCHED = (
    "UPDATE loaded SET n = -n WHERE id % 1000 = {}",
    "DELETE FROM loaded WHERE id % 997 = {}",
    "UPDATE loaded SET id = id + 100000 WHERE id % 991 = {}",
    "INSERT INTO loaded (id, n) VALUES (200000 + {}, 1)",
)
CHANGES = (
    "ALTER TABLE {} ADD COLUMN extra{number} text DEFAULT 'more {number}'",
    "ALTER TABLE {} ADD COLUMN plain{number} int",
    "ALTER TABLE {} RENAME COLUMN flag TO flag{number}",
    "ALTER TABLE {} ALTER COLUMN n TYPE bigint",
    "ALTER TABLE {} DROP COLUMN ratio",
)


def seeds(count: int) -> list[int]:
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])]
    first = random.SystemRandom().randrange(1 << 30)
    return list(range(first, first + count))


class Lead:
    """How many changes the log has that the slowest sink has not."""

    def __init__(self, lake: System) -> None:
        self._lake, self._lock = lake, threading.Lock()
        self._log: LogReader | None = None

    def changes(self) -> int:
        with self._lock:
            self._log = self._log or LogReader(self._lake.folder / "data" / "logs" / self._lake.db.name)
            self._log.refresh()
            self._log.forget(self._log.end)
            return self._log.end - min(mark(self._lake.folder, sink) for sink in NAMES)


class Writer(threading.Thread):
    """Changes one table at random until told to stop; large values are often left as they are."""

    def __init__(self, dsn: str, table: str, seed: int, lead: Lead) -> None:
        super().__init__(daemon=True)
        self._dsn, self.table, self._chance, self._lead = dsn, table, random.Random(seed), lead
        self._halt = threading.Event()
        self.done = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._halt.wait(PACE_S):
                    if self._lead.changes() < LEAD:
                        self._transaction(connection)
                        self.done += 1
        except Exception as error:
            self.failure = error

    def stop(self) -> None:
        self._halt.set()
        self.join()
        assert self.failure is None, self.failure

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            for _ in range(self._chance.choice((1, 1, 3, 20))):
                self._change(connection)

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        key, table = self._chance.randrange(200), self.table
        match self._chance.randrange(10):
            case 0 | 1 | 2:
                connection.execute(
                    f"INSERT INTO {table} (id, n, price, body, tags, day, raw, doc) VALUES (%s, %s, %s, %s, %s, "
                    "'2024-02-29', %s, %s) ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n, body = EXCLUDED.body",
                    (key, key, key / 7, self._text(), ["a", None, str(key)], b"\x00\xff", '{"k": [1.10, null]}'),
                )
            case 3 | 4 | 5 | 6:
                connection.execute(f"UPDATE {table} SET n = n + 1, price = price + 0.01 WHERE id = %s", (key,))
            case 7:
                connection.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
            case 8:
                moved = key + 1000 * self._chance.randrange(1, 4)
                free = f"NOT EXISTS (SELECT FROM {table} WHERE id = {moved})"
                connection.execute(f"UPDATE {table} SET id = {moved} WHERE id = %s AND {free}", (key,))
            case _:
                connection.execute(f"UPDATE {table} SET body = NULL, at = now() WHERE id = %s", (key,))

    def _text(self) -> str:
        return "".join(self._chance.choices("abcdefghij", k=self._chance.choice((10, 3000))))


class Story:
    """Two tables and their writers."""

    def __init__(self, lake: System, seed: int, lead: Lead) -> None:
        self.lake, self._chance = lake, random.Random(seed)
        self.tables = [f"one_{seed}", f"two_{seed}"]
        for table in self.tables:
            lake.db.run(TABLE.format(table), f"ALTER TABLE {table} ALTER COLUMN body SET STORAGE EXTERNAL")
            lake.db.run(
                f"INSERT INTO {table} (id, n, body) SELECT g, g, repeat('x', 3000) FROM generate_series(1, 50) g"
            )
        self._writers = [Writer(lake.db.dsn, table, seed + place, lead) for place, table in enumerate(self.tables)]

    def begin(self) -> None:
        for writer in self._writers:
            writer.start()

    def end(self) -> None:
        for writer in self._writers:
            writer.stop()

    def alter(self) -> None:
        table, number = self._chance.choice(self.tables), self._chance.randrange(1 << 20)
        statement = self._chance.choice(CHANGES).format(table, number=number)
        try:
            self.lake.db.run(statement)
            print(statement)
        except psycopg.errors.UndefinedColumn:
            pass

    def choose(self) -> tuple[int, str]:
        """(after how many more changes something dies, what)."""
        return self._chance.choice((1, 30, 300)), self._chance.choice(("driver", "both", "tap"))


def tell(lake: System, stories: list[Story], kills: int) -> None:
    """Some stories at once; the first decides when what is killed."""
    for story in stories:
        story.begin()
    for _ in range(kills):
        for story in stories:
            story.alter()
        changes, who = stories[0].choose()
        wait_for(lake, changes)
        print(f"kill {who}")
        lake.victim.kill(who)
        if who != "tap":
            lake.victim.start()
    for story in stories:
        story.end()


def wait_for(lake: System, count: int) -> None:
    """Until the slowest sink has so many more changes."""
    target = {sink: mark(lake.folder, sink) + count for sink in NAMES}
    eventually(lambda: all(mark(lake.folder, sink) >= target[sink] for sink in target), 300, what=lake.victim.output)


def mark(folder: Path, sink: str) -> int:
    try:
        return int(json.loads((folder / "data" / "pipelines" / "system" / sink / "tables.json").read_text())["mark"])
    except FileNotFoundError:
        return 0


@pytest.mark.timeout(900)
def test_every_table_equals_its_source(system: Callable[..., System]) -> None:
    lake = system(sinks=lakes.SINKS)
    prove(lake, tell_all(lake, seeds(SEEDS), KILLS))


@pytest.mark.timeout(900)
def test_killed_inside_a_first_load(system: Callable[..., System]) -> None:
    """While its first files are written; the stream touches rows before, meanwhile and afterwards."""
    lake = system(sinks=lakes.SINKS, chunk_size=5_000)
    lake.db.run(LOADED, ROWS)
    lake.start()
    lake.db.run(*(each.format(1) for each in TOUCHED))
    eventually(lambda: any(lake.folder.rglob("public__loaded/**/*.parquet")), PATIENCE_S, what=lake.victim.output)
    lake.db.run(*(each.format(2) for each in TOUCHED))
    lake.victim.kill("both")
    lake.db.run(*(each.format(3) for each in TOUCHED))
    lake.catch_up(PATIENCE_S)
    compare(lake, "loaded")


@pytest.mark.soak
def test_many_lakes(system: Callable[..., System]) -> None:
    """With upkeep beside the batches."""
    lake = system(sinks=lakes.TENDED)
    prove(lake, tell_all(lake, seeds(int(os.environ.get("TAILRACE_SOAK_SEEDS", SEEDS))), MORE_KILLS))


def prove(lake: System, stories: list[Story]) -> None:
    """`tailrace verify` finds every table equal, and so do other engines."""
    lake.start()
    agreed = lake.tailrace("verify", "--json", "--patience", str(PATIENCE_S), timeout=2 * PATIENCE_S)
    assert agreed.returncode == 0, agreed.stdout + agreed.stderr + lake.victim.output()
    tables = [(sink, f"public.{table}") for sink in NAMES for story in stories for table in story.tables]
    assert sorted((each["sink"], each["table"]) for each in json.loads(agreed.stdout)["tables"]) == sorted(tables)
    for story in stories:
        for table in story.tables:
            compare(lake, table)


def tell_all(lake: System, chosen: list[int], kills: int) -> list[Story]:
    """Then everything is dead."""
    lead = Lead(lake)
    stories = {seed: Story(lake, seed, lead) for seed in chosen}
    lake.start()
    for first in range(0, len(chosen), TOGETHER):
        together = chosen[first : first + TOGETHER]
        print(f"seeds {together}")
        tell(lake, [stories[seed] for seed in together], kills)
    lake.victim.kill("both")
    return list(stories.values())


def compare(lake: System, table: str) -> None:
    """In every format, read by other engines."""
    columns, expected = lakes.source_rows(lake.db, table)
    assert len(expected) > 10
    readers: dict[str, Callable[[], pa.Table | None]] = {
        "delta": lambda: lakes.delta(lake.folder, table),
        "delta by delta-rs": lambda: lakes.delta_rs(lake.folder, table),
        "ice2": lambda: lakes.iceberg(lake.folder, "ice2", table),
        "ice3": lambda: lakes.iceberg(lake.folder, "ice3", table),
    }
    tables = {name: made for name, read in readers.items() if (made := read()) is not None}
    for name, read_table in tables.items():
        found = lakes.rows_of(read_table, columns)
        assert [row["id"] for row in found] == [row["id"] for row in expected], name
        assert differing(found, expected) == [], name


def differing(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[tuple[Any, str, Any, Any]]:
    """(key, column, what was found, what the source has), of rows with the same keys."""
    return [
        (row["id"], name, mine[name], value)
        for mine, row in zip(found, expected, strict=True)
        for name, value in row.items()
        if mine[name] != value
    ]
