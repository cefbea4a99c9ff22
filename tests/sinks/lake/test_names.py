"""Names and values that mean something to paths, to SQL or to Spark, which stay what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.schema import TableSchema
from tailrace.sinks.iceberg import IcebergSink
from tailrace.sinks.lake import LakeSink
from tailrace.sinks.lake.target import Compaction
from tailrace.spark.compare import Comparison
from tailrace.testing.feed import Image, schema_of
from tests.sinks.lake.conftest import sink_of
from tests.sinks.lake.lake import Lake

PATHS = {
    "../../x": "%2E.%2F..%2Fx",
    "..": "%2E%2E",
    "a/b": "a%2Fb",
    "a%2Fb": "a%252Fb",
    "back\\slash": "back%5Cslash",
    "col:on": "col%3Aon",
    "end. ": "end.%20",
}
"""Tables, and their folders."""


def sink_in(kind: str, folder: Path) -> LakeSink:
    if kind != "warehouse":
        return sink_of(kind, folder, table_name="{table}")
    document = {"id": "lake", "write_mode": "upsert", "table_name": "{table}", "warehouse": str(folder / "lake")}
    return IcebergSink.from_document(document)


@pytest.mark.parametrize("kind", ["delta", "iceberg3", "warehouse"])
def test_no_table_is_written_outside_the_lake(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    deep = tmp_path / "deep" / "er"
    deep.mkdir(parents=True)
    lake = Lake(spark, sink_in(kind, deep), deep)
    before = set(deep.iterdir())
    schemas = [schema_of(number, name, {"id": "bigint"}) for number, name in enumerate(PATHS, start=1)]
    for schema in schemas:
        lake.feed.add(schema, "c", {"id": schema.id})
    lake.keep()
    assert lake.keeper.warnings() == ()
    assert [lake.rows(schema.table) for schema in schemas] == [[{"id": schema.id}] for schema in schemas]
    tables = deep / "lake" if kind == "delta" else deep / "lake" / "default"
    assert {each.name for each in tables.iterdir()} == set(PATHS.values())
    assert [each.name for each in tmp_path.iterdir()] == ["deep"]
    assert {each.name for each in set(deep.iterdir()) - before} - {"catalog.db"} == {"lake"}


HOSTILE = (
    "a${zz}",
    "${env:HOME}",
    "it's",
    'say "so"',
    "back\\slash\\",
    "\\' OR 1=1 --",
    "'; DROP TABLE t; --",
    "/* a */ -- b",
    ":low0 :default0 ?",
    "line\nbreak\r\n\ttab",
    "\x01\x1f\x7f",
    "😀 é \u2028",
    "`tick`s``",
    "dot.dot {hole} %s $1 \\1",
    "null",
)
"""Texts that mean something to SQL, to Spark, to JSON or to whoever replaces one text by another."""
TABLE = "t${zz}'\"`\\;--\n😀 {}"
FIRST = {f"k {HOSTILE[0]}{HOSTILE[12]}": "text", **dict.fromkeys(HOSTILE, "text")}
KEY = next(iter(FIRST))
GONE, OLD, NEW, ADDED, DOCUMENT = HOSTILE[3], HOSTILE[4], "new \\' ${zz} `x`", "added ${env:HOME} '`\\", "j '`${zz}"


@pytest.mark.parametrize("kind", ["delta", "iceberg3"])
def test_names_and_values_stay_what_they_are_through_every_statement(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Each hostile text is a column's name and, in turn, the value of every column and of the key."""
    lake = Lake(spark, sink_of(kind, tmp_path, dropped_columns="drop"), tmp_path)
    mirror = Mirror(lake)
    v1 = schema_of(1, TABLE, FIRST, (KEY,))
    for place, text in enumerate(HOSTILE):
        mirror.change(v1, "c", {name: HOSTILE[(place + turn) % len(HOSTILE)] for turn, name in enumerate(FIRST)})
        assert mirror.rows[text][KEY] == text
    mirror.check()

    for text in HOSTILE[:9]:  # a merge, also of a column that is not sent, and of keys that change
        mirror.change(v1, "u", {**mirror.rows[text], HOSTILE[1]: text, HOSTILE[2]: None}, unsent=OLD)
    mirror.change(v1, "d", mirror.rows[HOSTILE[10]])
    mirror.move(v1, HOSTILE[11], HOSTILE[11] + HOSTILE[0], unsent=OLD)
    mirror.check()

    names = {**{NEW if name == OLD else name: FIRST[name] for name in FIRST if name != GONE}, ADDED: "text"}
    numbers = {column.name: column.number for column in v1.columns} | {NEW: v1.columns[list(FIRST).index(OLD)].number}
    v2 = schema_of(2, TABLE, {**names, DOCUMENT: "jsonb"}, (KEY,))
    columns = tuple(replace(each, number=numbers.get(each.name, 90 + each.number)) for each in v2.columns)
    v2 = replace(v2, columns=columns)
    mirror.evolve(v2, {ADDED: HOSTILE[5], DOCUMENT: None})
    document = json.dumps({text: text for text in HOSTILE}, ensure_ascii=False)
    mirror.change(v2, "u", {**mirror.rows[HOSTILE[6]], ADDED: HOSTILE[0]}, documents={DOCUMENT: document})
    before = mirror.check()
    mirror.change(v2, "u", {**mirror.rows[HOSTILE[7]], ADDED: HOSTILE[7]})
    mirror.check()
    mirror.compare(v2)

    target = lake.target(f"public__{TABLE}")
    target.compact(Compaction(files=100, below=1 << 30))
    target.expire(datetime.now(UTC) - timedelta(days=1))
    assert target.files() and target.versions() and target.delete_files() >= 0
    mirror.check()
    assert before is not None
    target.roll_back(before)
    lake.again()
    mirror.check()
    mirror.compare(v2)

    lake.feed.add(v2, "t")
    mirror.rows.clear()
    mirror.check()


class Mirror:
    """What a table of the lake should hold, by key."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.rows: dict[str, Image] = {}

    def change(
        self,
        schema: TableSchema,
        op: str,
        row: Image,
        *,
        unsent: str | None = None,
        documents: Mapping[str, str] | None = None,
    ) -> None:
        """One change. `unsent`: a column that keeps its value. `documents`: JSON texts of columns."""
        sent = {name: each for name, each in row.items() if name != unsent and name not in (documents or {})}
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}:{json.dumps(each, ensure_ascii=False)}"
            for name, each in sent.items()
        ]
        parts += [f"{json.dumps(name, ensure_ascii=False)}:{each}" for name, each in (documents or {}).items()]
        if op == "d":
            self.lake.feed.add(schema, "d", {KEY: row[KEY]})
            del self.rows[row[KEY]]
            return
        unchanged = None if unsent is None else [unsent]
        self.lake.feed.add(schema, op, row, after=f"{{{','.join(parts)}}}", unchanged=unchanged)
        self.rows[row[KEY]] = {**row, **(documents or {})}

    def move(self, schema: TableSchema, old: str, new: str, *, unsent: str) -> None:
        row = self.rows.pop(old)
        sent = {name: each for name, each in row.items() if name != unsent}
        self.lake.feed.move(schema, row, {**sent, KEY: new}, unchanged=[unsent])
        self.rows[new] = {**row, KEY: new}

    def evolve(self, schema: TableSchema, defaults: Mapping[str, str | None]) -> None:
        """The table's next version: a column less, one of another name, and two more."""
        self.lake.feed.evolve(schema, {name: each for name, each in defaults.items() if each is not None})
        for row in self.rows.values():
            del row[GONE]
            row[NEW] = row.pop(OLD)
            row.update(defaults)

    def check(self) -> int | None:
        """Deliver, and compare by content."""
        self.lake.keep()
        assert self.lake.keeper.warnings() == ()
        target = self.lake.target(f"public__{TABLE}")
        found = {row[KEY]: row for row in (each.asDict() for each in target.read().collect())}
        assert found == self.rows
        return target.state()

    def compare(self, schema: TableSchema) -> None:
        """As `verify` does."""
        target = self.lake.target(f"public__{TABLE}")
        comparison = Comparison(target.session, schema, {each.name: each.dataType for each in target.existing().schema})
        images = comparison.images((json.dumps({KEY: key}), self.image(row)) for key, row in self.rows.items())
        state = target.state()
        assert state is not None
        table = comparison.lake(target.at(state))
        compared = comparison.compare(comparison.source(images), table, comparison.touched([json.dumps({KEY: "x"})]))
        assert compared.differences(10) == []
        compared.close()

    def image(self, row: Image) -> str:
        texts = {name: each if name == DOCUMENT and each else json.dumps(each) for name, each in row.items()}
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{each}" for name, each in texts.items()) + "}"


def test_names_with_dots_are_not_taken_for_one_another(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, sink_of("iceberg3", tmp_path), tmp_path)
    one = replace(schema_of(1, "c", {"id": "bigint"}, relation=1), schema="a.b")
    other = replace(schema_of(2, "b.c", {"id": "bigint"}, relation=2), schema="a")
    lake.feed.add(one, "c", {"id": 1}).add(other, "c", {"id": 2})
    lake.keep()
    assert lake.keeper.warnings() == ()
    assert (lake.rows("a.b__c"), lake.rows("a__b.c")) == ([{"id": 1}], [{"id": 2}])
