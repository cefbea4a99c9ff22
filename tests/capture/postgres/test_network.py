"""The network goes away for longer than the server waits: afterwards the log has everything, once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tailrace.testing.waiting import eventually
from tests.capture.postgres.proxy import Proxy
from tests.capture.running import Database, TapProcess, folded

ROUNDS = 60
ROWS = 50


@pytest.fixture
def proxy(db: Database) -> Iterator[Proxy]:
    with Proxy(db.server.port) as running:
        yield running


@pytest.mark.parametrize("after_rows", [0, 20 * ROWS])
def test_a_cut_longer_than_the_server_waits(
    db: Database, proxy: Proxy, tap: Callable[..., TapProcess], after_rows: int
) -> None:
    """At the start, and in the middle of the work. The server has ended the session before the network is back."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    dsn = make_conninfo(db.dsn, port=proxy.port, options="-c wal_sender_timeout=1s")
    running = tap(db, config={"dsn": dsn})
    running.until("running")
    writer = threading.Thread(target=_write, args=(db,))
    writer.start()
    eventually(lambda: running.status().get("rows", 0) >= after_rows)
    proxy.cut()
    eventually(lambda: not _senders(db))
    writer.join()
    proxy.mend()
    rows = {key: row for (_, key), row in folded(running.changes()).items()}
    assert rows == {json.dumps({"id": key}, separators=(",", ":")): {"id": key, "v": v} for key, v in _rows(db)}


def _write(db: Database) -> None:
    with db.connect() as connection:
        for turn in range(ROUNDS):
            first = turn * ROWS
            connection.execute(
                "INSERT INTO t SELECT g, 0 FROM generate_series(%s::int, %s::int) g", [first, first + ROWS - 1]
            )
            connection.execute("UPDATE t SET v = v + 1 WHERE id %% 7 = %s", [turn % 7])


def _rows(db: Database) -> list[tuple[int, int]]:
    return db.rows("SELECT id, v FROM t")


def _senders(db: Database) -> int:
    query = "SELECT count(*) FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid WHERE database = %s"
    return int(db.value(query, db.name))
