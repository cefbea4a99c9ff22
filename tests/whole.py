"""A whole pipeline as a child process, from a database of the test's own to files, and the two compared by content."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tailrace.changelog import LogReader
from tailrace.control import Store
from tailrace.control.ledger import SnapshotLedger, TableRequest
from tailrace.testing import crash
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.capture.snapshotting import contents

FILES = "{{type: file, config: {{id: files, path: {folder}/files, format: parquet, roll: {{every: 500ms}}}}}}"


class System:
    """A pipeline from a database of its own to files, or to `sinks`, in which `{folder}` is the test's."""

    def __init__(self, db: Database, folder: Path, sinks: str = FILES, **snapshot: Any) -> None:
        self.db, self.folder = db, folder
        settings = json.dumps({"chunk_size": 50, **snapshot})
        self.document, platform = folder / "pipeline.yaml", folder / "platform.yaml"
        self.document.write_text(
            f"""
metadata: {{name: system}}
spec:
  source: {{type: postgres, config: {{id: {db.name}, dsn: "{db.dsn}", tables: [public.*], snapshot: {settings}}}}}
  sinks: [{sinks.format(folder=folder)}]
"""
        )
        platform.write_text(
            f"{{data_dir: {folder}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 100ms, max: 1s}}}}"
        )
        self.platform = platform
        self.victim = crash.Victim([self.document], platform, folder / "data", db.name)
        self.ledger = SnapshotLedger(Store(folder / "data" / "control.db"))

    def start(self) -> None:
        self.victim.start()
        eventually(self.victim.tap_pid, 60, what=self.victim.output)

    def ask(self, *tables: str) -> str:
        """As `tailrace snapshot --table … --no-wait` does."""
        log = LogReader(self.folder / "data" / "logs" / self.db.name)
        wanted = [TableRequest("public", table) for table in tables]
        return self.ledger.request(self.db.name, "asked", wanted, log_id=log.log_id, since=0)

    def catch_up(self, timeout: float = 120) -> None:
        self.victim.start("--until-caught-up")
        assert self.victim.finish(timeout) == 0, self.victim.output()
        assert not self.ledger.runs(self.db.name, "active")

    def events(self) -> list[dict[str, Any]]:
        """What the files hold, in the log's order; each once."""
        files = sorted((self.folder / "files").glob("[!_]*/**/*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        assert len({row["seq"] for row in rows}) == len(rows), "the file sink is exactly-once"
        return sorted(rows, key=lambda row: row["seq"])

    def tailrace(self, command: str, *options: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A command about the pipeline, as a user gives it."""
        line = [sys.executable, "-m", "tailrace", command, str(self.document), "--platform-config", str(self.platform)]
        return subprocess.run([*line, *options], capture_output=True, text=True, check=False, timeout=timeout)

    def compare(self, *tables: str) -> None:
        """The files, folded by key, are the tables, in every column."""
        events = self.events()
        state = contents([row for row in events if row["op"] in "curdt"])
        for table in tables:
            found = [row for (name, _), row in state.items() if name == table]
            rows = [json.loads(row) for (row,) in self.db.rows(f"SELECT to_json(t)::text FROM {table} t")]
            assert ordered(found) == ordered(rows), table

    def compare_digests(self, table: str, row: str = "to_json(t)::text") -> int:
        """The same for tables too large to hold, whose updates bring every column; returns how many rows there are.
        `row` is SQL that spells a row as the log does. Without a key, rows are counted."""
        truth: Counter[bytes] = Counter()
        with self.db.connect() as connection, connection.cursor("rows", withhold=True) as cursor:
            cursor.execute(f"SELECT {row} FROM {table} t".encode())
            for (text,) in cursor:
                truth[_digest(text)] += 1
        assert self._digests(table) == truth, table
        return truth.total()

    def _digests(self, table: str) -> Counter[bytes]:
        by_key: dict[Any, bytes] = {}
        for number, event in enumerate(self._images(table)):
            key = event["key"] if event["key"] is not None else number
            assert not event["unchanged"]
            if event["op"] == "t":
                by_key.clear()
            elif event["op"] == "d":
                by_key.pop(key, None)
            else:
                by_key[key] = _digest(event["after"])
        return Counter(by_key.values())

    def _images(self, table: str) -> Iterator[dict[str, Any]]:
        """A table's changes: within a key, and across what concerns all keys, in order."""
        for file in sorted((self.folder / "files" / f"public.{table}").rglob("*.parquet"), key=lambda path: path.name):
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(columns=["op", "key", "after", "unchanged"]):
                    yield from (event for event in batch.to_pylist() if event["op"] in "curdt")


def ordered(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def _digest(text: str) -> bytes:
    return hashlib.md5(json.dumps(json.loads(text), sort_keys=True).encode()).digest()
