"""`tailrace lakehouse` on a real lake, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.changelog import LogReader, LogWriter
from tailrace.contracts import Delivery
from tailrace.sinks.iceberg import IcebergSink
from tailrace.spark.query import start_query
from tailrace.spec import Pipeline, Platform, load_pipelines
from tailrace.supervisor import lakehouse as service
from tailrace.supervisor.layout import Layout, run_lock
from tailrace.surfaces.cli import app
from tailrace.testing import crash
from tailrace.testing.captures import Row, capture, insert
from tailrace.testing.waiting import eventually


class Shop:
    """A pipeline that keeps `public.items` in a lake."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.layout = spark, folder, Layout(folder / "data")
        self.document, self.platform = folder / "pipeline.yaml", folder / "platform.yaml"
        upkeep = "{compaction_file_threshold: 2, expire_snapshots_older_than_seconds: 0}"
        lake = f"warehouse: {folder}/lake, catalog_uri: 'sqlite:///{folder}/catalog.db', maintenance: {upkeep}"
        self.document.write_text(
            f"""
metadata: {{name: shop-lake}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@localhost/shop", tables: [public.*]}}}}
  sinks: [{{type: iceberg, config: {{id: lake, write_mode: upsert, commit_interval: 10ms, {lake}}}}}]
"""
        )
        self.platform.write_text(f"{{data_dir: {folder}/data, spark: {crash.QUICK_SPARK}}}")
        self.writer = LogWriter(self.layout.log("shop"), "shop")

    @property
    def pipeline(self) -> Pipeline:
        return load_pipelines([self.document])[0]

    def deliver(self, *changes: Row) -> None:
        """One batch."""
        self.writer.append(capture(changes, first_xid=self.writer.end + 1))
        pipeline, log = self.pipeline, self.layout.log("shop")
        query = start_query(
            self.spark,
            log,
            pipeline.sinks[0],
            Delivery(pipeline.name, pipeline.metadata.tenant, "shop"),
            provenance=PROVENANCE,
            state_dir=self.layout.sink(pipeline.name, "lake"),
        )
        end = LogReader(log).end
        eventually(lambda: query.progress().offset >= end or not query.is_active(), 120)
        query.drain(60)
        assert query.error() is None

    def tailrace(self, command: str, *options: str, answer: str = "") -> Result:
        line = ["lakehouse", command, str(self.document), "--platform-config", str(self.platform), *options]
        return CliRunner().invoke(app, line, input=answer)

    def machine(self, command: str, *options: str) -> dict[str, Any]:
        done = self.tailrace(command, *options, "--json")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def values(self, *options: str) -> list[str]:
        rows = self.machine("query", "--table", "public.items", *options)["rows"]
        return sorted(row["v"] for row in rows)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Commands of this process use its one Spark session."""

    @contextmanager
    def opened(pipeline: Pipeline, platform: Platform, sink: str | None = None) -> Iterator[service.Lakehouse]:
        sinks, layout = service._lake_sinks(pipeline, sink), Layout(platform.data_dir)
        yield service.Lakehouse(spark, pipeline, layout, sinks, LogReader(layout.log("shop")))

    monkeypatch.setattr(service, "open_lakehouse", opened)
    made = Shop(spark, tmp_path)
    yield made
    made.writer.close()


def test_look_travel_roll_back_and_tend(shop: Shop) -> None:
    shop.deliver(insert(1, "a"), insert(2, "b"))
    shop.deliver(Row("u", {"id": 1}, after={"id": 1, "v": "c"}))
    [table] = shop.machine("tables")["tables"]
    assert (table["source"], table["name"], table["rows"], table["mark"]) == ("public.items", "public__items", 2, 3)
    assert table["debt"]["snapshots"] == 2 and table["debt"]["delete_files"] == 1
    assert "2 rows, mark 3" in shop.tailrace("tables").stdout

    first, second = shop.machine("snapshots", "--table", "items")["snapshots"]
    assert (first["mark"], second["mark"], second["current"]) == (2, 3, True)
    looks_back(shop, first)
    has_a_process_of_its_own(shop)
    refuses(shop)
    rolls_back(shop, first["id"])
    tends(shop)


def looks_back(shop: Shop, first: dict[str, Any]) -> None:
    assert shop.values() == ["b", "c"]
    assert shop.values("--snapshot-id", str(first["id"])) == shop.values("--version", str(first["id"])) == ["a", "b"]
    assert shop.values("--as-of", first["at"]) == ["a", "b"]
    assert shop.values("--where", "v > 'b'") == ["c"] and len(shop.values("--limit", "1")) == 1
    done = shop.tailrace("query", "--table", "items", "--columns", "v", "--where", "id = 2")
    assert done.stdout.split() == ["v", "b", "1", "rows"]


def has_a_process_of_its_own(shop: Shop) -> None:
    """Starts Spark, says so, and ends cleanly."""
    line = [sys.executable, "-m", "tailrace", "lakehouse", "query", str(shop.document), "--table", "items", "--json"]
    line += ["--platform-config", str(shop.platform)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(row["v"] for row in json.loads(done.stdout)["rows"]) == ["b", "c"]
    assert done.stderr == "starting Spark…\n"


def refuses(shop: Shop) -> None:
    """With the way out, and exit code 2."""
    wrong: list[tuple[Sequence[str], str]] = [
        (["--table", "public.itms"], "did you mean `public.items`?"),
        (["--table", "items", "--columns", "w"], "use one of: id, v"),
        (["--table", "items", "--where", "1 = 1; DROP TABLE x"], "bad_query"),
        (["--table", "items", "--where", "SELECT 1"], "bad_query"),
        (["--table", "items", "--where", "w = 1"], "bad_query"),
        (["--table", "items", "--as-of", "yesterday"], "bad_time"),
        (["--table", "items", "--as-of", "2030-01-01", "--version", "1"], "two_times"),
    ]
    for options, said in wrong:
        done = shop.tailrace("query", *options)
        assert done.exit_code == 2 and said in done.output, done.output
    gone = shop.tailrace("query", "--table", "items", "--snapshot-id", "77")
    assert gone.exit_code == 1 and "lakehouse.no_version" in gone.output


def rolls_back(shop: Shop, to: int) -> None:
    options = ["--table", "public.items", "--snapshot-id", str(to)]
    asked = shop.tailrace("rollback", *options, answer="n\n")
    assert asked.exit_code == 1 and shop.values() == ["b", "c"]
    assert "at its next start, the pipeline applies the changes from offset 2 on again" in asked.output
    with run_lock(shop.layout, "shop-lake"):
        asked = shop.tailrace("rollback", *options, answer="n\n")
        with patch.object(IcebergSink, "one_writer", True):  # as where commits of two may undo each other
            refused = [shop.tailrace("rollback", *options, "--yes"), shop.tailrace("maintain")]
    assert "with the table's next change, the pipeline applies" in asked.output
    assert [each.exit_code for each in refused] == [1, 1] and shop.values() == ["b", "c"]
    assert all("lakehouse.one_writer" in each.output and "stop the pipeline first" in each.output for each in refused)
    done = shop.machine("rollback", *options, "--yes")
    assert (done["before"], done["mark"], done["replayable"]) == (3, 2, True)
    assert shop.values() == ["a", "b"]
    shop.deliver(insert(3, "d"))
    assert shop.values() == ["b", "c", "d"]


def tends(shop: Shop) -> None:
    [done] = shop.machine("maintain")["tables"]
    assert done["before"]["small_files"] > 1 and done["after"]["small_files"] == 0
    assert done["after"]["snapshots"] < done["before"]["snapshots"]
    assert shop.values() == ["b", "c", "d"] and shop.machine("tables")["tables"][0]["mark"] == 4


def test_a_pipeline_without_a_lake(shop: Shop) -> None:
    shop.document.write_text(shop.document.read_text().split("sinks:")[0] + "sinks: [{type: console, config: {id: x}}]")
    done = shop.tailrace("tables")
    assert done.exit_code == 2 and "keeps no lake tables" in done.output
