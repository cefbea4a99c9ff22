"""Whatever happens while a snapshot runs, the log folded by key equals the source.

Seeds are printed; `SEED=n pytest tests/capture/test_snapshot_properties.py` tells one story again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.contracts import Admitted
from tailrace.control.ledger import SnapshotLedger
from tests.capture.running import Database
from tests.capture.snapshotting import Snapshotting, contents

SEEDS = 200
GROUPS = 10
KEYS = 40
STEPS = 40
BIG = 4000
"""Long enough to be stored out of line."""


class Crash(Exception):
    """Stands for a `kill -9` of the tap."""


class Fragile(SnapshotLedger):
    """A ledger whose process may die right after the log took a chunk in, before it is entered here."""

    dying = False

    def enter(self, source: str, log_id: str, offset: int, admitted: Admitted | None) -> None:
        if self.dying and admitted is not None:
            raise Crash
        super().enter(source, log_id, offset, admitted)


class Story:
    """A random workload of several writers, with snapshots that start, crash and start again."""

    def __init__(self, seed: int, db: Database, folder: Path) -> None:
        self.random, self.db, self.folder = random.Random(seed), db, folder
        self.table = self.random.choice(["narrow", "wide", "keyless"])
        self.stack = ExitStack()
        self.writers: list[psycopg.Connection[Any]] = []
        self.text = 0

    def tell(self) -> None:
        with self.stack:
            self._set_the_stage()
            for _ in range(STEPS):
                self.random.choices(
                    (self._write, self._commit, self._truncate, self._step, self._hold, self._crash, self._ask),
                    (40, 20, 1, 20, 4, 3, 2),
                )[0]()
            self._end()

    def _set_the_stage(self) -> None:
        connection = self.stack.enter_context(self.db.connect())
        connection.execute("DROP TABLE IF EXISTS narrow, wide, keyless")
        connection.execute("CREATE TABLE narrow (id int PRIMARY KEY, big text, v text)")
        connection.execute('CREATE TABLE wide (a text COLLATE "C", id int, big text, v text, PRIMARY KEY (a, id))')
        connection.execute("CREATE TABLE keyless (id int, big text, v text)")
        connection.execute("ALTER TABLE narrow ALTER big SET STORAGE EXTERNAL")
        connection.execute("ALTER TABLE wide ALTER big SET STORAGE EXTERNAL")
        for _ in range(3):
            writer = self.stack.enter_context(psycopg.connect(self.db.dsn))
            writer.execute("SET lock_timeout = '20ms'")
            writer.commit()
            self.writers.append(writer)
        for _ in range(self.random.randrange(60)):
            self._write(self.writers[0])
        self.writers[0].commit()
        self.run = self._start()

    def _start(self) -> Snapshotting:
        run = Snapshotting(self.db, self.folder, ledger=Fragile)
        run.__enter__()
        run.begin()
        return run

    # -- what may happen -------------------------------------------------------------------------------------

    def _write(self, writer: psycopg.Connection[Any] | None = None) -> None:
        writer = writer or self.random.choice(self.writers)
        with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            try:
                self._statement(writer)
            except psycopg.Error:
                writer.rollback()
                raise

    def _statement(self, writer: psycopg.Connection[Any]) -> None:
        number, v = self.random.randrange(KEYS), self._value()
        big = self.random.choice("abc") * BIG
        if self.table == "keyless":
            writer.execute("INSERT INTO keyless VALUES (%s, %s, %s)", (number, big, v))
            return
        where = "id = %s" if self.table == "narrow" else "a = 'k' || (%s % 7)::text"
        action = self.random.choice(("insert", "insert", "update", "update", "big", "move", "delete"))
        if action == "insert":
            values = (
                "(%(n)s, %(big)s, %(v)s)"
                if self.table == "narrow"
                else "('k' || (%(n)s %% 7)::text, %(n)s, %(big)s, %(v)s)"
            )
            writer.execute(f"INSERT INTO {self.table} VALUES {values}", {"n": number, "big": big, "v": v})
        elif action == "update":
            writer.execute(f"UPDATE {self.table} SET v = %s WHERE {where}".replace("% 7", "%% 7"), (v, number))
        elif action == "big":
            writer.execute(f"UPDATE {self.table} SET big = %s WHERE {where}".replace("% 7", "%% 7"), (big, number))
        elif action == "move":
            writer.execute(f"UPDATE {self.table} SET id = id + %s WHERE id = %s", (KEYS, number))
        else:
            writer.execute(f"DELETE FROM {self.table} WHERE id = %s", (number,))

    def _value(self) -> str:
        self.text += 1
        return f"v{self.text}"

    def _commit(self) -> None:
        writer = self.random.choice(self.writers)
        writer.commit() if self.random.random() < 0.8 else writer.rollback()

    def _truncate(self) -> None:
        with self.db.connect() as connection, suppress(psycopg.errors.LockNotAvailable):
            connection.execute("SET lock_timeout = '20ms'")
            connection.execute(f"TRUNCATE {self.table}".encode())

    def _step(self) -> None:
        self.run.snapshots.step()

    def _hold(self) -> None:
        self.run.admitting = not self.run.admitting

    def _ask(self) -> None:
        self.run.request(self.table)

    def _crash(self) -> None:
        self.run.die(Crash(), late=self.random.random() < 0.5)
        self.run = self._start()

    # -- the end ---------------------------------------------------------------------------------------------

    def _end(self) -> None:
        for writer in self.writers:
            writer.commit()
        self.run.admitting = True
        found = self.run.finish()
        self.run.__exit__(None, None, None)
        state = contents(found) if self.table != "keyless" else None
        rows = [row for (row,) in self.db.rows(f"SELECT to_json(t)::text FROM {self.table} t ORDER BY 1")]
        got = [row for row in bag(found, self.table)] if state is None else list(state.values())
        assert sorted(map(canonical, got)) == sorted(canonical(json.loads(row)) for row in rows)
        self.db.drop_slots()


def canonical(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def bag(found: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    """A table without a key, after its inserts and resets."""
    rows: list[dict[str, Any]] = []
    for each in found:
        if each["table"] == table:
            rows = [] if each["op"] == "t" else [*rows, json.loads(each["after"])]
    return rows


def tell(seeds: Iterable[int], db: Database, folder: Path) -> None:
    for seed in seeds:
        print("seed", seed)
        Story(seed, db, folder / str(seed)).tell()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_log_equals_the_source(group: int, database: Callable[..., Database], tmp_path: Path) -> None:
    first = random.SystemRandom().randrange(1 << 30)
    given = os.environ.get("SEED")
    tell([int(given)] if given else range(first, first + SEEDS // GROUPS), database(18), tmp_path)


@pytest.mark.soak
def test_many_more_stories(database: Callable[..., Database], tmp_path: Path) -> None:
    first = random.SystemRandom().randrange(1 << 30)
    tell(range(first, first + 200 * int(os.environ.get("TAILRACE_SOAK_SEEDS") or "1")), database(18), tmp_path)
