"""Snapshots beside the stream: the log, folded by key, equals the source."""

from __future__ import annotations

from pathlib import Path

from tests.capture.running import Database
from tests.capture.snapshotting import Snapshotting, contents


def test_rows_from_before_the_stream_are_read(db: Database, tmp_path: Path) -> None:
    db.run(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)",
        "INSERT INTO items SELECT n, 'item ' || n, n * 1.5 FROM generate_series(1, 95) n",
    )
    with Snapshotting(db, tmp_path) as run:
        run.begin()
        found = run.finish()
    assert sorted(row["key"] for row in found) == sorted(f'{{"id":{number}}}' for number in range(1, 96))
    assert {row["op"] for row in found} == {"r"}
    assert contents(found)["items", '{"id":7}'] == {"id": 7, "name": "item 7", "price": "10.5"}
    assert len({row["tx_id"] for row in found}) == 10
    assert all(row["tx_last"] == (row["tx_ordinal"] == last) for row in found for last in [9 if row["seq"] < 90 else 4])
