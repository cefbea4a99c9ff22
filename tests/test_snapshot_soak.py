"""Snapshots of many tables, beside a huge transaction, and beside a benchmark at full speed.

`TAILRACE_SOAK_SCALE=0.01` makes them that much smaller."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable

import pytest

from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.whole import System

SCALE = float(os.environ.get("TAILRACE_SOAK_SCALE", "1"))
HISTORY = (
    "json_build_object('tid', tid, 'bid', bid, 'aid', aid, 'delta', delta, "
    "'mtime', to_char(mtime, 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), 'filler', filler)::text"
)

pytestmark = pytest.mark.soak


def test_two_hundred_tables(system: Callable[..., System]) -> None:
    pipeline = system()
    tables = [f"t{number}" for number in range(max(10, int(200 * SCALE)))]
    for table in tables:
        pipeline.db.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT n, 'v' FROM generate_series(1, 500) n",
        )
    pipeline.start()
    chance = random.Random(4)
    with pipeline.db.connect() as connection:
        while not pipeline.ledger.runs(pipeline.db.name, "done"):
            table, key = chance.choice(tables), chance.randrange(1, 700)
            connection.execute(f"INSERT INTO {table} VALUES ({key}) ON CONFLICT (id) DO UPDATE SET v = 'new'".encode())
            connection.execute(f"DELETE FROM {table} WHERE id = {key - 1}".encode())
    assert pipeline.victim.terminate(120) == 0
    pipeline.catch_up(600)
    assert sum(pipeline.compare_digests(table) for table in tables) > 100 * len(tables)


def test_a_huge_transaction_during_a_snapshot(system: Callable[..., System]) -> None:
    pipeline = system(chunk_size=1000)
    rows = int(5_000_000 * SCALE)
    pipeline.db.run(
        "CREATE TABLE items (id int PRIMARY KEY, v text)",
        f"INSERT INTO items SELECT n, md5(n::text) FROM generate_series(1, {rows // 10}) n",
    )
    pipeline.start()
    runs = eventually(lambda: pipeline.ledger.runs(pipeline.db.name), 120, what=pipeline.victim.output)
    eventually(lambda: pipeline.ledger.count(runs[0].id, "admitted") > 0, 120, what=pipeline.victim.output)
    pipeline.db.run(
        f"INSERT INTO items SELECT n, 'huge' FROM generate_series(1, {rows}) n ON CONFLICT (id) DO UPDATE SET v = 'new'"
    )
    pipeline.victim.kill("both")
    pipeline.catch_up(3600)
    assert pipeline.compare_digests("items") == rows


def test_pgbench_at_full_speed(system: Callable[..., System], postgres: PostgresServer) -> None:
    pipeline = system(chunk_size=2000)
    seconds, dsn = max(10, int(120 * SCALE)), pipeline.db.dsn
    pgbench = str(postgres.bin("pgbench"))
    subprocess.run([pgbench, "-i", "-q", "-s", str(max(1, int(10 * SCALE))), dsn], check=True, capture_output=True)
    pipeline.start()
    eventually(lambda: pipeline.ledger.runs(pipeline.db.name, "done"), 300, what=pipeline.victim.output)
    load = subprocess.Popen([pgbench, "-n", "-c", "4", "-j", "2", "-T", str(seconds), dsn], stdout=subprocess.DEVNULL)
    eventually(lambda: pipeline.db.value("SELECT count(*) FROM pgbench_history") > 100 * seconds * SCALE, seconds)
    run = pipeline.ask("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
    assert load.wait(seconds + 60) == 0
    eventually(lambda: pipeline.ledger.run(run).state == "done", 600, what=pipeline.victim.output)
    assert pipeline.victim.terminate(120) == 0
    pipeline.catch_up(600)
    for table in ("pgbench_accounts", "pgbench_branches", "pgbench_tellers"):
        pipeline.compare_digests(table)
    assert pipeline.compare_digests("pgbench_history", HISTORY) > 100
