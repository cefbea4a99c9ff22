"""`tailrace verify` on a pipeline that runs: PostgreSQL to Delta and Iceberg."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.errors import ConfigError, SetupError
from tailrace.spec import load_pipelines, load_platform
from tailrace.supervisor.verify import Verification, VerifyOptions, table
from tailrace.supervisor.verify.report import TableReport
from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database

pytestmark = pytest.mark.timeout(400)
SINKS = ("delta", "iceberg")
TABLES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(12, 2), note text, at timestamptz, ratio float8, "
    "raw bytea, tags text[], doc jsonb)",
    "INSERT INTO orders SELECT g, g / 7.0, 'note ' || g, now(), g / 3.0, decode(md5(g::text), 'hex'), "
    "ARRAY['a', NULL, g::text], jsonb_build_object('n', g) FROM generate_series(1, 200) g",
    'CREATE TABLE people (name text COLLATE "C", part int, born date, PRIMARY KEY (name, part))',
    "INSERT INTO people SELECT 'Zoë \"' || g, g % 3, DATE '2000-01-01' + g FROM generate_series(1, 60) g",
    "CREATE TABLE bare (word text, n int)",
    "INSERT INTO bare SELECT 'w' || g % 5, g % 3 FROM generate_series(1, 30) g",
)


class Shop:
    """A pipeline into both formats, and what is verified of it."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db, self.folder = db, folder
        self.document, self.platform = folder / "pipeline.yaml", folder / "platform.yaml"
        quick = "write_mode: upsert, commit_interval: 200ms"
        self.document.write_text(
            f"""
metadata: {{name: shop}}
spec:
  source:
    type: postgres
    config: {{id: {db.name}, dsn: "{db.dsn}", tables: [public.*], snapshot: {{chunk_size: 50}}}}
  sinks:
    - {{type: delta, config: {{id: delta, path: {folder}/delta, {quick}}}}}
    - {{type: iceberg, config: {{id: iceberg, warehouse: {folder}/iceberg, {quick}}}}}
"""
        )
        self.platform.write_text(
            f"{{data_dir: {folder}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 100ms, max: 1s}}}}"
        )
        self.victim = crash.Victim([self.document], self.platform, folder / "data", db.name)

    def verification(self, **options: Any) -> Verification:
        [pipeline] = load_pipelines([self.document])
        return Verification(pipeline, load_platform(self.platform), VerifyOptions(**{"patience_s": 60.0, **options}))

    def tailrace(self, *options: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tailrace", "verify", str(self.document), "--platform-config", str(self.platform)]
        return subprocess.run([*line, "--json", *options], capture_output=True, text=True, check=False, timeout=150)

    def sql(self, spark: SparkSession, sink: str, table: str, statement: str) -> None:
        """Behind Tailrace's back. `{}` is the table's name."""
        [pipeline] = load_pipelines([self.document])
        [found] = [each for each in pipeline.sinks if each.id == sink]
        target = found.target(spark, f"public__{table}", "somebody")  # type: ignore[attr-defined]
        target.execute(statement.format(target.sql_name))


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Database(postgres) as db:
        db.run(*TABLES)
        made = Shop(db, tmp_path_factory.mktemp("shop"))
        made.victim.start()
        try:
            eventually(made.victim.tap_pid, 120, what=made.victim.output)
            yield made
        finally:
            made.victim.kill("both")


def of(reports: list[TableReport], table: str) -> TableReport:
    [found] = [each for each in reports if each.table == f"public.{table}"]
    return found


@pytest.mark.soak
def test_equal_tables_are_equal(shop: Shop, spark: SparkSession) -> None:
    reports = shop.verification().compare(spark)
    assert [(each.sink, each.table, each.rows) for each in reports] == [
        (sink, f"public.{table}", rows)
        for sink in SINKS
        for table, rows in (("bare", 30), ("orders", 200), ("people", 60))
    ]
    assert all(each.equal for each in reports), reports
    kept = json.loads((shop.folder / "data/pipelines/shop/delta/verified.json").read_text())
    assert kept["public.orders"]["equal"] and kept["public.orders"]["offset"] >= 290


@pytest.mark.parametrize("sink", [pytest.param("delta", marks=pytest.mark.soak), "iceberg"])
def test_what_was_done_behind_its_back_is_found_and_repaired(shop: Shop, spark: SparkSession, sink: str) -> None:
    assert all(each.equal for each in shop.verification(sink=sink).compare(spark))
    values = "amount, note, at, ratio, raw, tags, doc"
    for statement in (
        "UPDATE {} SET note = NULL, tags = array('a', '7', NULL) WHERE id = 7",
        "DELETE FROM {} WHERE id = 55",
        f"INSERT INTO {{}} (id, {values}) SELECT 100000, {values} FROM {{}} WHERE id = 60",
        f"INSERT INTO {{}} (id, {values}) SELECT id, {values} FROM {{}} WHERE id = 80",
    ):
        shop.sql(spark, sink, "orders", statement.replace("{}", "{0}"))
    shop.sql(spark, sink, "people", "UPDATE {} SET born = DATE '1999-01-01' WHERE part = 2 AND name LIKE '%8'")

    found = shop.verification(sink=sink).compare(spark)
    orders = of(found, "orders")
    assert orders.differences == {"changed": 1, "missing": 1, "extra": 1, "duplicate": 1}
    assert [(each.key, each.kind, each.columns) for each in orders.shown] == [
        ({"id": "100000"}, "extra", ()),
        ({"id": "55"}, "missing", ()),
        ({"id": "7"}, "changed", ("note", "tags")),
        ({"id": "80"}, "duplicate", ()),
    ]
    changed = of(found, "people").shown
    assert {(each.key["name"], each.columns) for each in changed} == {
        (f'Zoë "{n}', ("born",)) for n in range(1, 61) if n % 3 == 2 and n % 10 == 8
    }
    assert of(found, "bare").equal

    repaired = shop.verification(sink=sink, tables=("public.orders", "public.people"), repair=True).compare(spark)
    assert [(each.table, each.differing, each.repaired) for each in repaired] == [
        ("public.orders", 0, 4),
        ("public.people", 0, 2),
    ]


class Writer(threading.Thread):
    """Never lets a few rows rest: they change, move, go and come back."""

    def __init__(self, db: Database) -> None:
        super().__init__(daemon=True)
        self._db, self._halt = db, threading.Event()
        self.done = 0

    def run(self) -> None:
        with self._db.connect() as connection:
            while not self._halt.wait(0.5):
                self.done += 1
                connection.execute("UPDATE orders SET ratio = ratio + 1, doc = doc || '{\"x\": 1.10}' WHERE id <= 5")
                connection.execute("DELETE FROM orders WHERE id = %s", (100 + self.done % 3,))
                connection.execute("UPDATE orders SET id = 303 - id WHERE id IN (1, 302) OR id = 11")
                connection.execute("UPDATE orders SET id = 303 - id WHERE id = 292")
                connection.execute(
                    "INSERT INTO orders (id, note) SELECT g, 'again' FROM generate_series(100, 102) g "
                    "ON CONFLICT DO NOTHING"
                )

    def stop(self) -> None:
        self._halt.set()
        self.join()


@pytest.mark.soak
def test_rows_that_never_rest_are_no_differences(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "ROUNDS", 1)  # so that rows are soon held against the log, too
    shop.sql(spark, "iceberg", "orders", "UPDATE {} SET note = 'secret' WHERE id = 150")
    writer = Writer(shop.db)
    writer.start()
    try:
        eventually(lambda: writer.done > 2)
        [report] = shop.verification(sink="iceberg", tables=("orders",)).compare(spark)
    finally:
        writer.stop()
    assert (report.differences, report.unsettled) == ({"changed": 1}, 0), report
    assert [(each.key, each.columns) for each in report.shown] == [({"id": "150"}, ("note",))]


@pytest.mark.soak
def test_the_command_names_the_rows_and_keeps_their_values_to_itself(shop: Shop) -> None:
    shop.db.run("UPDATE orders SET note = 'private' WHERE id = 150")
    done = shop.tailrace("--sink", "iceberg", "--table", "public.orders")
    assert done.returncode == 0, done.stdout + done.stderr
    [table] = json.loads(done.stdout)["tables"]
    assert table["equal"] and table["rows"] == 200
    for options, code, problem in (
        (("--sink", "nobody"), 2, "verify.no_sink"),
        (("--table", "nothing"), 2, "verify.no_table"),
    ):
        refused = shop.tailrace(*options)
        assert (refused.returncode, json.loads(refused.stdout)["problems"][0]["code"]) == (code, problem)


def test_a_sink_that_appends_is_refused(shop: Shop) -> None:
    text = shop.document.read_text().replace("write_mode: upsert", "write_mode: append")
    appending = shop.folder / "appending.yaml"
    appending.write_text(text)
    [pipeline] = load_pipelines([appending])
    with pytest.raises(ConfigError, match="keeps tables as the source has them") as refused:
        Verification(pipeline, load_platform(shop.platform), VerifyOptions())
    assert refused.value.code == "verify.not_a_mirror"


def test_without_a_running_pipeline_it_compares_what_was_delivered_or_says_what_it_waits_for(
    shop: Shop, spark: SparkSession
) -> None:
    first = shop.verification(sink="delta", tables=("orders",), patience_s=300.0)  # its pipeline may just have begun
    assert of(first.compare(spark), "orders").equal
    shop.victim.kill("both")
    shop.db.run("CREATE SCHEMA elsewhere", "CREATE TABLE elsewhere.t AS SELECT 1", "CHECKPOINT")
    assert of(shop.verification(sink="delta", tables=("orders",), patience_s=1.0).compare(spark), "orders").equal
    shop.db.run("UPDATE orders SET note = 'later' WHERE id = 9")
    with pytest.raises(SetupError, match="waited 1 s for the log to pass") as ended:
        shop.verification(sink="delta", tables=("orders",), patience_s=1.0).compare(spark)
    assert "start the pipeline" in ended.value.hint
