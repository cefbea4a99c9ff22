"""The SQL processor: what queries may say, and what they make of changes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.change import PROCESSED, PROCESSED_DDL
from tailrace.contracts import Place
from tailrace.errors import ProcessorError
from tailrace.kinds import Kind
from tailrace.processors.sql import SqlProcessor
from tailrace.schema import Column
from tests.processors.batches import ORDERS, PLACE, batch, change

CUSTOMERS = {"customers": {"format": "parquet", "path": "unused"}}


def processor(select: str = "", **settings: Any) -> SqlProcessor:
    selected = {"select": select} if select else {}
    return SqlProcessor.from_document({"id": "sql", **selected, **settings})


def ran(spark: SparkSession, made: SqlProcessor, changes: pa.RecordBatch, place: Place = PLACE) -> list[dict[str, Any]]:
    frame = spark.createDataFrame(pa.Table.from_batches([changes]), PROCESSED_DDL)
    found = made.transform(frame, place)
    assert found.columns == PROCESSED.names
    rows: list[dict[str, Any]] = found.toArrow().sort_by("seq").to_pylist()
    return rows


class TestQueries:
    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("SELECT after.* FROM", "not valid SQL"),
            ("SELECT after.*\nFROM changes WHERE (", "line 2"),
            ("SELECT 1 AS x FROM changes; SELECT 2", "more than one statement"),
            ("DELETE FROM changes", "no SELECT"),
            ("SELECT * FROM changes", "`after.*`"),
            ("SELECT after.* FROM other", "something else than changes"),
            ("SELECT after.* FROM changes LIMIT 1", "LIMIT"),
            ("SELECT DISTINCT after.* FROM changes", "DISTINCT"),
            ("SELECT after.id FROM changes GROUP BY after.id", "GROUP"),
            ("SELECT count(*) AS n FROM changes", "no aggregates"),
            ("SELECT row_number() OVER (ORDER BY after.id) AS n FROM changes", "windows"),
            ("SELECT explode(after.tags) AS n FROM changes", "not of one change"),
            ("SELECT stack(2, 1, 2) AS n FROM changes", "not of one change"),
            ("SELECT (SELECT 1) AS n FROM changes", "subqueries"),
            ("SELECT after.* FROM changes WHERE after.id IN (SELECT 1)", "subqueries"),
            ("SELECT rand() AS x FROM changes", "when it is repeated"),
            ("SELECT after.*, now() AS x FROM changes", "when it is repeated"),
            ("SELECT after.id + 1 FROM changes", "has no name"),
            ("SELECT after.id AS x, 1 AS x FROM changes", "two outputs have the name `x`"),
            ("SELECT id FROM changes", "`after.id`"),
            ("SELECT other.id FROM changes", "there is no `other`"),
            ("SELECT after.* FROM changes JOIN customers c ON c.id = after.id", "LEFT JOIN"),
            ("SELECT after.* FROM changes LEFT JOIN people c ON c.id = after.id", "tables_read"),
            ("SELECT after.* FROM changes LEFT JOIN customers c ON c.id > after.id", "by columns"),
        ],
    )
    def test_what_is_refused(self, query: str, said: str) -> None:
        with pytest.raises(ValidationError) as caught:
            processor(query=query, tables_read=CUSTOMERS)
        [problem] = caught.value.errors()
        assert problem["type"] == "config.bad_query"
        assert said in problem["msg"]

    def test_one_of_select_and_query(self) -> None:
        for settings in ({}, {"select": "after.*", "query": "SELECT after.* FROM changes"}):
            with pytest.raises(ValidationError, match="one of `select` and `query`"):
                processor(**settings)

    def test_a_version_of_what_has_none(self) -> None:
        with pytest.raises(ValidationError, match="parquet has no versions"):
            processor("after.*", tables_read={"c": {"format": "parquet", "path": "x", "version": 1}})

    def test_traits(self) -> None:
        made = processor("after.*, after.total * 2 AS twice")
        assert made.preserves() == {"key", "rows"}
        assert made.breaks_mirror() is None
        assert pickle.loads(pickle.dumps(made)) == made
        filtering = processor(query="SELECT after.* FROM changes WHERE op <> 'd'")
        assert filtering.preserves() == {"key"}
        assert "`op`" in str(filtering.breaks_mirror())
        query = "SELECT after.*, c.name FROM changes LEFT JOIN customers c ON c.id = after.id"
        assert "version" in str(processor(query=query, tables_read=CUSTOMERS).breaks_mirror())
        pinned = {"customers": {"format": "delta", "path": "x", "version": 3}}
        assert processor(query=query, tables_read=pinned).breaks_mirror() is None

    def test_the_shape_of_a_table(self) -> None:
        select = "after.* EXCEPT (note), after.id AS number, after.total * 2 AS twice"
        assert processor(select).shape(ORDERS) is None
        shape = processor(select, columns={"twice": "decimal(13,2)"}).shape(ORDERS)
        assert shape is not None
        assert [(each.name, str(each.kind)) for each in shape.columns] == [
            ("id", "int64"), ("total", "decimal(12,2)"), ("number", "int64"), ("twice", "decimal(13,2)")
        ]  # fmt: skip
        assert processor(select, tables=["items"]).shape(ORDERS) == ORDERS
        assert processor(select).unsent(["total", "note"], ORDERS) == ("total", "twice")


class TestChanges:
    def test_untouched_text_stays_and_the_rest_is_computed(self, spark: SparkSession) -> None:
        image = '{"id": 9223372036854775807,"total":"10.50", "note":"\\u00e9"}'
        select = (
            "after.*, after.total * 2 AS twice, upper(after.note) AS loud, after.id AS number, after.id IS NULL AS n"
        )
        [row] = ran(spark, processor(select), batch(change(0, image, before='{"id":1,"note":"x"}', op="u")))
        assert row["after"] == (
            '{"id":9223372036854775807,"total":"10.50","note":"\\u00e9","twice":"21.00","loud":"É",'
            '"number":9223372036854775807,"n":false}'
        )
        assert row["before"] == '{"id":1,"note":"x","number":1}'
        assert (row["key"], row["dropped"]) == ('{"id":0}', None)

    def test_where_drops(self, spark: SparkSession) -> None:
        rows = [
            change(0, {"id": 0, "total": "10.00"}),
            change(1, {"id": 1, "total": "9.99"}),
            change(2, {"id": 2, "total": None}),
            change(3, op="d"),
            change(4, op="d", before={"id": 4, "total": "1.00"}),
            change(5, op="t", key=None),
            change(6, {"id": 6}, table="items", schema_id=2),
        ]
        made = processor(query="SELECT after.* FROM changes WHERE after.total >= 10", tables=["orders"])
        found = ran(spark, made, batch(*rows))
        assert [row["dropped"] for row in found] == [None, "where", "where", None, "where", None, None]
        assert found[6]["after"] == '{"id":6}'

    def test_columns_that_the_source_did_not_send(self, spark: SparkSession) -> None:
        select = "after.* EXCEPT (total), after.total AS amount, upper(after.note) AS loud"
        unsent = change(0, {"id": 0}, op="u", unchanged=["note", "total"])
        known = change(1, {"id": 1}, op="u", unchanged=["note"], before={"id": 1, "note": "a"})
        found = ran(spark, processor(select), batch(unsent, known))
        assert [(row["after"], row["unchanged"]) for row in found] == [
            ('{"id":0}', ["note", "amount", "loud"]),
            ('{"id":1,"loud":"A"}', ["note"]),
        ]
        made = processor(query="SELECT after.* FROM changes WHERE after.note = 'a'")
        assert ran(spark, made, batch(known))[0]["dropped"] is None
        with pytest.raises(PySparkException, match="did not send"):
            ran(spark, made, batch(unsent))

    def test_every_kind(self, spark: SparkSession) -> None:
        kinds = {
            "b": ("bool", "true"), "f": ("float64", "1.5"), "d": ("date", '"2024-02-29"'), "y": ("bytes", '"aGk="'),
            "t": ("timestamp", '"2024-02-29T01:02:03.000400"'), "z": ("timestamp_tz", '"2024-02-29T01:02:03.000000Z"'),
            "a": ("array<int32>", "[1,2]"), "u": ("uint64", "18446744073709551615"), "x": ("text", '"a\\"b"'),
        }  # fmt: skip
        columns = tuple(Column(name, kind, kind=Kind.parse(kind)) for name, (kind, _) in kinds.items())
        image = "{" + ",".join(f'"{name}":{text}' for name, (_, text) in kinds.items()) + "}"
        select = ", ".join(f"coalesce(after.{name}, null) AS {name}" for name in kinds)
        place = replace(PLACE, tables={1: replace(ORDERS, columns=columns, key=())})
        [row] = ran(spark, processor(select), batch(change(0, image)), place)
        assert row["after"] == image.replace("18446744073709551615", '"18446744073709551615"')

    def test_look_ups(self, spark: SparkSession, tmp_path: Path) -> None:
        path = str(tmp_path / "customers")
        spark.createDataFrame([(0, "Grace"), (1, "Ada"), (1, "Ada again")], "id long, name string").write.parquet(path)
        made = processor(
            query="SELECT after.*, c.name FROM changes LEFT JOIN customers AS c ON c.id = after.id",
            tables_read={"customers": {"format": "parquet", "path": path}},
        )
        found = ran(spark, made, batch(change(0, {"id": 0}), change(7, {"id": 7})))
        assert [row["after"] for row in found] == ['{"id":0,"name":"Grace"}', '{"id":7,"name":null}']
        with pytest.raises(PySparkException, match="several rows of customers"):
            ran(spark, made, batch(change(1, {"id": 1})))
        assert not [each for each in spark.catalog.listTables() if each.name.startswith("tailrace_")]

    def test_a_pinned_version(self, spark: SparkSession, tmp_path: Path) -> None:
        path = str(tmp_path / "customers")
        for name in ("old", "new"):
            frame = spark.createDataFrame([(0, name)], "id long, name string")
            frame.write.format("delta").mode("overwrite").save(path)
        made = processor(
            query="SELECT c.name, after.id FROM changes LEFT JOIN customers AS c ON c.id = after.id",
            tables_read={"customers": {"format": "delta", "path": path, "version": 0}},
        )
        assert ran(spark, made, batch(change(0, {"id": 0})))[0]["after"] == '{"name":"old","id":0}'

    def test_what_spark_refuses(self, spark: SparkSession) -> None:
        with pytest.raises(ProcessorError) as caught:
            ran(spark, processor("after.*, after.nope AS x, no_such(after.id) AS y"), batch(change(0, {"id": 0})))
        assert (caught.value.code, caught.value.where) == ("processor.bad_query", "public.orders")

    @pytest.mark.parametrize("select", ["after.total", "after.* EXCEPT (id)", "after.*, after.id + 1 AS id"])
    def test_the_key_must_stay(self, spark: SparkSession, select: str) -> None:
        with pytest.raises(ProcessorError) as caught:
            ran(spark, processor(select), batch(change(0, {"id": 0})))
        assert caught.value.code == "processor.lost_key"
