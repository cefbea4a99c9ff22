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

from tailrace.spec import load_pipelines, load_platform
from tailrace.supervisor.verify import Options, Verification
from tailrace.supervisor.verify.report import TableReport
from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database

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
        return Verification(pipeline, load_platform(self.platform), Options(**{"patience_s": 60.0, **options}))

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


@pytest.mark.parametrize("sink", SINKS)
def test_what_was_done_behind_its_back_is_found_and_repaired(shop: Shop, spark: SparkSession, sink: str) -> None:
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
    assert all(each.equal for each in shop.verification(sink=sink).compare(spark))
