from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event
from cloudevents.core.formats.json import JSONFormat
from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace import __version__
from tailrace.capture.postgres.provenance import PROVENANCE
from tailrace.change import EVENT_ID_SQL, OPS, event_id
from tailrace.config import CloudEventsEnvelope, DebeziumEnvelope, Envelope, HeliosEnvelope, NativeEnvelope
from tailrace.contracts import Delivery, Member, Place, Provenance
from tailrace.kinds import OTHER, Kind
from tailrace.processors.chain import Chain
from tailrace.render.envelopes import EVENT_TYPES, value_column
from tailrace.render.rendering import Rendering
from tailrace.schema import Column, TableSchema
from tests.render.changes import DELIVERY, MADE, batch, frame, rows
from tests.spark.sinks import LinesSink

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(GOLDEN.glob("*/*.in.json"))
ENVELOPE: TypeAdapter[Envelope] = TypeAdapter(Envelope)
EVENTS = CloudEventsEnvelope(type_prefix="com.example.shop")
DEBEZIUM = DebeziumEnvelope(values="debezium")
ORDERS = TableSchema(3, "shop", "public", "orders", (Column("id", "integer", nullable=False),), ("id",))

AWKWARD = [
    "orders",
    'say "hi"',
    "back\\slash",
    "tab\there",
    "new\nline",
    "žluť 🚰",
    "a.b/c d",
    "100%+*?#",
    "'",
    "~",
]


def render(
    spark: SparkSession,
    envelope: Envelope,
    *changes: dict[str, Any],
    delivery: Delivery = DELIVERY,
    provenance: Provenance = PROVENANCE,
    table: TableSchema | None = None,
) -> list[str]:
    """The records of the changes, in order, as a sink with this envelope gets them. `table`: what they are of."""
    chain = LinesSink(id="lines", directory="", envelope=envelope).chain()
    processed = bool(chain) or any(change.keys() & MADE.keys() for change in changes)
    if chain:
        place = Place(delivery.pipeline, delivery.tenant, provenance.connector, {table.id: table} if table else {})
        changes = tuple(rows(Chain(chain).open(place)(batch(*changes))))
    value = value_column(envelope, Rendering(delivery, provenance, processed)).alias("value")
    return [row.value for row in frame(spark, *changes, processed=processed).select(value).collect()]


def table_of(described: dict[str, Any]) -> TableSchema:
    """`{"id": "integer", "note": "text null"}`, `key` apart. A column with more to say: `{"type": "text null", …}`."""
    columns = tuple(column_of(name, column) for name, column in described["columns"].items())
    return TableSchema(3, "shop", "public", "orders", columns, tuple(described["key"]))


def column_of(name: str, described: str | dict[str, Any]) -> Column:
    more = {} if isinstance(described, str) else dict(described)
    spelled = described if isinstance(described, str) else str(more.pop("type"))
    kind = Kind.parse(more.pop("kind")) if "kind" in more else OTHER
    labels = tuple(more.pop("labels", ()))
    nullable = spelled.endswith(" null")
    return Column(name, spelled.removesuffix(" null"), nullable=nullable, kind=kind, labels=labels, **more)


@pytest.mark.parametrize("given", CASES, ids=lambda path: f"{path.parent.name}-{path.name[:-8]}")
def test_golden(spark: SparkSession, given: Path) -> None:
    """`<case>.in.json` has the change's unusual fields, and of envelope, delivery and table what matters."""
    case = json.loads(given.read_text())
    envelope = ENVELOPE.validate_python({"type": given.parent.name, **case.get("envelope", {})})
    delivery = Delivery(**{**vars(DELIVERY), **case.get("delivery", {})})
    table = table_of(case["table"]) if "table" in case else None
    (value,) = render(spark, envelope, case["change"], delivery=delivery, table=table)
    expected = given.with_name(given.name.replace(".in.", ".out.")).read_text().rstrip("\n")
    assert value == expected.replace("tailrace-VERSION", f"tailrace-{__version__}")
    json.loads(value)


def test_every_envelope_has_golden_files_for_every_operation() -> None:
    found = {(case.parent.name, json.loads(case.read_text())["change"].get("op", "c")) for case in CASES}
    assert found == {(name, op) for name in ("native", "debezium", "cloudevents", "helios") for op in OPS}


def test_what_processors_made_has_its_own_id_and_says_who_made_it(spark: SparkSession) -> None:
    made = {"tags": ["vip"], "synthetic": 'echo "1"', "part": "echo:1"}
    plain, changed = (json.loads(text) for text in render(spark, NativeEnvelope(), {"tags": []}, made))
    assert changed["event_id"] == event_id("shop-db", "16/B374D848", 0, "echo:1")
    assert plain["event_id"] == event_id("shop-db", "16/B374D848", 0)
    assert (changed["tags"], changed["synthetic"]) == (["vip"], 'echo "1"')
    assert not plain.keys() & {"tags", "synthetic"}


@pytest.mark.parametrize("envelope", [NativeEnvelope(), DebeziumEnvelope(), DEBEZIUM, EVENTS, HeliosEnvelope()])
def test_a_record_may_be_the_row_image_alone(spark: SparkSession, envelope: Envelope) -> None:
    route = {"value": "after", "topic": "t"}
    changes = ({"after": '{"a":1.10}', "route": route}, {"op": "d", "after": None, "route": route})
    assert render(spark, envelope, *changes, table=ORDERS) == ['{"a":1.10}', "null"]


def test_a_source_says_itself_where_a_change_stands(spark: SparkSession) -> None:
    members = (Member("gtid", "position"), Member("pos", "cast(seq as string)", "number"), Member("row", "null"))
    mysql = Provenance("mysql", members, "io.debezium.connector.mysql", (Member("table", "`table`"), *members))
    for envelope in (NativeEnvelope(), DEBEZIUM):
        (text,) = render(spark, envelope, {"position": 'a"1'}, provenance=mysql)
        record = json.loads(text)
        source = record.get("payload", record)["source"]
        assert (source["connector"], source["gtid"], source["pos"], source["row"]) == ("mysql", 'a"1', 42, None)
        assert not source.keys() & {"lsn", "txId"}


def test_helios_metadata_are_the_changes_own_headers_first(spark: SparkSession) -> None:
    long = '{"text":"' + "x" * 200 + '"}'
    plain, own = render(spark, HeliosEnvelope(), {"after": long}, {"headers": {"source": "mine", 'q"': "1"}})
    assert json.loads(plain)["metadata"] == {"source": "shop-db", "schema": "public", "tenant": "demo"}
    assert base64.b64decode(json.loads(plain)["value"]).decode() == long
    assert json.loads(own)["metadata"] == {"source": "mine", "schema": "public", "tenant": "demo", 'q"': "1"}


@pytest.mark.parametrize(
    "envelope",
    [NativeEnvelope(), DebeziumEnvelope(), DEBEZIUM, EVENTS, HeliosEnvelope()],
    ids=["native", "debezium", "debezium's values", "cloudevents", "helios"],
)
def test_any_name_gives_valid_json_that_says_the_name(spark: SparkSession, envelope: Envelope) -> None:
    changes = [{"database": name, "schema": name, "table": name} for name in AWKWARD]
    delivery = Delivery(pipeline='a "b"/ž', tenant='t"\\', source="shop-db")
    for name, value in zip(AWKWARD, render(spark, envelope, *changes, delivery=delivery), strict=True):
        record = json.loads(value)
        record = record.get("payload", record)
        if envelope is EVENTS:
            assert record["subject"] == f"{name}.{name}"
            continue
        if "operation" in record:
            assert (record["database"], record["table"], record["metadata"]["schema"]) == (name, name, name)
            continue
        source = record["source"]
        assert (source["db"], source["schema"], source["table"], source["name"]) == (
            name,
            name,
            name,
            'a "b"/ž',
        )
        if envelope is not DEBEZIUM:
            assert record["tenant_id"] == 't"\\'


def test_row_images_are_embedded_untouched(spark: SparkSession) -> None:
    image = '{"n":1.10,"big":12345678901234567890.000,"j":{"b":1,"a":2,"b":3},"t":"\\u00e9\\n"}'
    for value in (render(spark, found, {"after": image})[0] for found in (NativeEnvelope(), EVENTS)):
        assert f'"after":{image},' in value


def test_lsn_is_the_number_that_debezium_gives(spark: SparkSession) -> None:
    positions = ["0/0", "0/1", "16/B374D848", "1/A", "FFFFFFFF/FFFFFFFF"]
    values = render(spark, NativeEnvelope(), *({"position": position} for position in positions))
    numbers = [json.loads(value)["source"]["lsn"] for value in values]
    assert numbers == [(int(high, 16) << 32) + int(low, 16) for high, low in (p.split("/") for p in positions)]


def test_event_ids_are_those_of_python(spark: SparkSession) -> None:
    changes = [{"source": "š|", "position": f"0/{n:X}", "tx_ordinal": n} for n in range(50)]
    rows = frame(spark, *changes).select(F.expr(EVENT_ID_SQL).alias("id")).collect()
    assert [row.id for row in rows] == [event_id("š|", f"0/{n:X}", n) for n in range(50)]


def test_events_are_valid_for_the_official_sdk(spark: SparkSession) -> None:
    changes = [{"op": op, "schema": name, "table": name} for op in OPS for name in AWKWARD]
    delivery = Delivery(pipeline="shop & söhne", tenant="demo", source="shop-db")
    for change, value in zip(changes, render(spark, EVENTS, *changes, delivery=delivery), strict=True):
        message = HTTPMessage({"content-type": "application/cloudevents+json"}, value.encode())
        event = from_structured_event(message, JSONFormat())
        name = f"{change['schema']}.{change['table']}"
        assert event.get_type() == f"com.example.shop.{EVENT_TYPES[change['op']]}"
        assert event.get_subject() == name
        assert event.get_id() == event_id("shop-db", "16/B374D848", 0)
        assert event.get_time() == datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
        assert event.get_data() == {"before": None, "after": {"id": 1}, "op": change["op"]}
        assert_uri_reference(event.get_source(), ["tailrace", "shop & söhne", name])


def assert_uri_reference(text: str, segments: list[str]) -> None:
    assert urlsplit(text).path == text, "no scheme, query or fragment"
    assert text.isascii()
    assert not set(text) & set(' "<>\\^`{|}')
    assert [unquote(segment) for segment in text.split("/")] == segments


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_event_time_is_utc_whatever_the_session_says(spark: SparkSession, zone: str) -> None:
    moments = [0, 1, 951_782_399_999_999, 1_767_225_600_123_456, 4_102_444_799_000_000]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        values = render(spark, EVENTS, *({"ts_us": moment} for moment in moments))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    expected = [datetime.fromtimestamp(moment // 10**6, UTC).replace(microsecond=moment % 10**6) for moment in moments]
    assert [json.loads(value)["time"] for value in values] == [f"{time:%Y-%m-%dT%H:%M:%S.%f}Z" for time in expected]
