"""The step at the end of a chain: which changes it rewrites, and what travels beside them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailrace import __version__
from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.change import PROCESSED
from tailrace.config import DebeziumEnvelope
from tailrace.contracts import Delivery, Place, Step
from tailrace.render.debezium import DebeziumValues
from tailrace.render.debezium.schemas import with_entries
from tailrace.render.envelopes import key_column, value_column
from tailrace.render.rendering import Rendering
from tailrace.schema import Column, TableSchema
from tests.render.changes import batch, frame, rows

RECORDED = json.loads(Path(__file__).with_name("recorded_events.json").read_text())
EVENTS = RECORDED["events"]
"""Each with what the tap captured, and the key and the value that Debezium wrote; `schema` counts in `schemas`."""
DAY = '{"id":1,"day":"1970-01-02"}'


def version(number: int, *columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(number, "shop", "public", f"t{number}", (Column("id", "integer", nullable=False), *columns), key)


TABLES = {
    1: version(1, Column("day", "date")),
    2: version(2, Column("day", "text")),
    3: version(3, Column("b", "date", primary=2), Column("a", "numeric(5,1)", primary=1), key=("b", "a")),
    4: version(4, Column("b", "date"), Column("a", "numeric(5,1)"), key=("b", "a")),
}


def step(tables: dict[int, TableSchema] = TABLES, *, schemas: bool = False) -> Step:
    return DebeziumValues(id="values", schemas=schemas).open(Place("shop", "demo", "postgresql", tables))


def test_every_version_is_rewritten_by_its_own_columns() -> None:
    chance = random.Random(7)
    versions = chance.choices([1, 2, 9], k=100)
    changes = ({"schema_id": version, "key": '{"id":1}', "after": DAY, "seq": n} for n, version in enumerate(versions))
    made = step()(batch(*changes))
    expected = {1: '{"id":1,"day":1}', 2: DAY, 9: DAY}
    assert made.column("after").to_pylist() == [expected[version] for version in versions]
    assert made.column("seq").to_pylist() == list(range(100))
    assert made.schema == PROCESSED


@pytest.mark.parametrize("op", ["t", "m", "s"])
def test_what_is_no_row_stays_as_it_is(op: str) -> None:
    before = batch({"op": op, "schema_id": 1, "after": DAY, "key": None})
    assert step()(before).equals(before)


def test_a_record_that_is_the_row_image_alone_stays_as_it_is() -> None:
    raw = {"schema_id": 1, "after": DAY, "route": {"topic": "x", "value": "after"}}
    other = {"schema_id": 1, "after": DAY, "route": {"topic": "value"}}
    made = rows(step(schemas=True)(batch(raw, other, {"schema_id": 1, "after": DAY})))
    assert [row["after"] for row in made] == [DAY, '{"id":1,"day":1}', '{"id":1,"day":1}']
    assert made[0]["route"] == raw["route"]
    assert made[1]["route"] == {"topic": "value", **made[2]["route"]}
    assert [field["field"] for field in json.loads(made[2]["route"]["schema"])] == ["id", "day"]


def test_keys_have_their_columns_in_the_order_of_the_primary_key() -> None:
    """In the table's where the log does not know that order."""
    change = {"op": "d", "key": '{"b":"1970-01-02","a":"1.5"}', "after": None}
    made = step(schemas=True)(batch({**change, "schema_id": 3}, {**change, "schema_id": 4}))
    assert made.column("key").to_pylist() == ['{"a":"Dw==","b":1}', '{"b":1,"a":"Dw=="}']
    schemas = [json.loads(row["route"]["key_schema"]) for row in rows(made)]
    assert [[field["field"] for field in schema] for schema in schemas] == [["a", "b"], ["b", "a"]]


def test_an_empty_batch_stays_one() -> None:
    assert step(schemas=True)(batch()).num_rows == 0


@pytest.mark.parametrize("seed", range(20))
def test_more_in_maps_is_what_dicts_would_have(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(0, 12)
    given: list[dict[str, str] | None] = [
        None if chance.random() < 0.3 else {name: "x" for name in chance.sample("abcd", chance.randint(0, 3))}
        for _ in range(size)
    ]
    more = {name: [chance.choice([None, "1", ""]) for _ in range(size)] for name in ("e", "f")}
    kind = pa.map_(pa.string(), pa.string())
    whole = pa.array([None, *(None if each is None else list(each.items()) for each in given)], kind)
    made = with_entries(whole.slice(1), {name: pa.array(texts, pa.string()) for name, texts in more.items()})
    for place, (old, new) in enumerate(zip(given, made.to_pylist(), strict=True)):
        added = {name: texts[place] for name, texts in more.items() if texts[place] is not None}
        assert (None if new is None else dict(new)) == ({**(old or {}), **added} if added or old is not None else None)


def test_records_are_what_debezium_wrote(spark: SparkSession) -> None:
    """The same database, captured by both: all of each record but what docs/envelopes.md declares."""
    tables = {int(number): TableSchema.from_dict(table) for number, table in RECORDED["tables"].items()}
    envelope = DebeziumEnvelope(values="debezium", schemas=True)
    changes = rows(step(tables, schemas=True)(batch(*(event["change"] for event in EVENTS))))
    rendering = Rendering(Delivery("shop", "demo", "db"), PROVENANCE, processed=True)
    columns = value_column(envelope, rendering).alias("value"), key_column(envelope, rendering).alias("key")
    made = frame(spark, *changes, processed=True).select(*columns).collect()
    for event, row in zip(EVENTS, made, strict=True):
        name = (event["change"]["table"], event["change"]["op"])
        assert _comparable(json.loads(row.value)) == _comparable(_whole(event["value"])), name
        assert (row.key and json.loads(row.key)) == (event["key"] and _whole(event["key"])), name


def _comparable(record: dict[str, Any]) -> dict[str, Any]:
    payload = dict(record["payload"])
    source = {name: value for name, value in payload["source"].items() if not name.startswith("ts_")}
    for name in ("version", "lsn", "sequence"):
        assert name in source
        del source[name]
    payload = {name: value for name, value in payload.items() if not name.startswith("ts_")} | {"source": source}
    return {"schema": _without_labels(record["schema"]), "payload": payload}


def _whole(recorded: dict[str, Any]) -> dict[str, Any]:
    return {"schema": RECORDED["schemas"][recorded["schema"]], "payload": recorded["payload"]}


def _without_labels(schema: Any) -> Any:
    """Labels of the enums of users are not known, and arrays of them may have nulls here."""
    if isinstance(schema, list):
        return [_without_labels(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    labelled = schema.get("name") == "io.debezium.data.Enum" and schema.get("field") != "snapshot"
    unlike = () if not labelled else ("parameters",) if "field" in schema else ("parameters", "optional")
    return {name: _without_labels(value) for name, value in schema.items() if name not in unlike}


def test_the_version_is_ours(spark: SparkSession) -> None:
    rendering = Rendering(Delivery("shop", "demo", "db"), PROVENANCE, processed=True)
    value = value_column(DebeziumEnvelope(values="debezium", wrapper=False), rendering).alias("value")
    (row,) = frame(spark, {}, processed=True).select(value).collect()
    assert json.loads(row.value)["source"]["version"] == f"tailrace-{__version__}"
