"""The outbox: which changes are messages, what becomes of them, and where they go."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from tailrace.contracts import UNKNOWN, BatchProcessor, OutboxNames, Place
from tailrace.errors import ConfigError, ProcessorError
from tailrace.processors.chain import OpenChain
from tailrace.processors.flatten import FlattenProcessor
from tailrace.processors.outbox import OutboxProcessor, payloads
from tailrace.processors.outbox.payloads import objects
from tailrace.processors.route import RouteProcessor
from tailrace.spec import load_pipelines
from tailrace.testing.suites.processors import ProcessorSuite
from tests.compiled import digests
from tests.processors.changes import ORDERS, PLACE, batch, opened, processor
from tests.processors.documents import document

EVENT = {
    "table": "outbox",
    "schema_id": 7,
    "after": (
        '{"id":"e-1","aggregate_type":"order","aggregate_id":42,"event_type":"paid","topic":"own",'
        '"payload": {"n": 1.10,"who":"\\u017dofie"} ,"trace":"t-1","retry":true,"tags":["a"],"none":null}'
    ),
}
TAGGED = {"headers": {"tailrace.outbox": "true", "origin": "x"}}
HEADERS = {
    "df-source-kind": "outbox",
    "df-event-id": "e-1",
    "df-aggregate-type": "order",
    "df-aggregate-id": "42",
    "df-event-type": "paid",
}


def chained(**settings: Any) -> OpenChain:
    return opened(processor(OutboxProcessor, **{"tables": ["outbox"], **settings}))


def event(**settings: Any) -> dict[str, Any]:
    """What becomes of `EVENT`."""
    [row] = chained(**settings)(batch(EVENT)).to_pylist()
    return {**row, "route": dict(row["route"])}


def of(image: str, **settings: Any) -> dict[str, Any]:
    """What becomes of this row of an outbox table."""
    [row] = chained(**settings)(batch({**EVENT, "after": image})).to_pylist()
    return {**row, "route": dict(row["route"])}


def drops(chain: OpenChain) -> dict[str, int]:
    return {drop.reason: count for drop, count in chain.drops.items()}


def test_an_insert_becomes_its_payload_with_a_way_of_its_own() -> None:
    row = event()
    assert (row["op"], row["before"], row["after"]) == ("c", None, '{"n": 1.10,"who":"\\u017dofie"}')
    assert row["route"].keys() == {"topic", "key", "headers"}
    assert (row["route"]["topic"], row["route"]["key"]) == ("own", "42")
    assert json.loads(row["route"]["headers"]) == HEADERS
    assert row["key"] == '{"id":1}'


def test_everything_else_passes_as_it_is() -> None:
    others = batch(
        {"after": '{"payload":{}}'}, {"op": "m", "schema": "", "table": "outbox", "key": None, "after": "{}"}
    )
    assert chained()(others).equals(others)


@pytest.mark.parametrize(
    ("settings", "topic"),
    [
        ({}, "own"),
        ({"topic": "${after.aggregate_type}.events"}, "order.events"),
        ({"topic": "${after.missing}.events"}, "own"),  # nobody wants `.events`
        ({"topic": "${after.none}"}, "own"),
        ({"topic": "${after.missing}.events", "columns": {"topic": "trace"}}, "t-1"),
        ({"columns": {"topic": "missing"}, "default_topic": "rest"}, "rest"),
        ({"columns": {"topic": "none"}, "default_topic": "rest"}, "rest"),
        ({"columns": {"topic": "tags"}, "default_topic": "rest"}, "rest"),
        ({"columns": {"topic": "missing"}}, None),
        ({"topic": "${source.table}.${op}.${after.payload.n}"}, "outbox.c.1.10"),
    ],
)
def test_topics(settings: Mapping[str, Any], topic: str | None) -> None:
    assert event(**settings)["route"].get("topic") == topic


def test_an_empty_topic_is_none() -> None:
    assert of('{"topic":"","payload":{}}', topic="${after.topic}", default_topic="rest")["route"]["topic"] == "rest"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "42"),
        ({"key": "${after.aggregate_type}-${after.trace}"}, "order-t-1"),
        ({"key": "${after.missing}"}, "42"),
        ({"columns": {"aggregate_id": "trace"}}, "t-1"),
        ({"columns": {"aggregate_id": "none"}}, None),
    ],
)
def test_keys(settings: Mapping[str, Any], key: str | None) -> None:
    assert event(**settings)["route"].get("key") == key


def test_columns_and_headers() -> None:
    columns = {"event_id": "trace", "aggregate_type": "none", "aggregate_id": "tags", "event_type": "retry"}
    more = {"trace": "trace", "tags": "tags", "none": "none", "missing": "missing", "kind": "aggregate_type", "n": "id"}
    row = event(columns=columns, additional_headers=more)
    assert json.loads(row["route"]["headers"]) == {
        "df-source-kind": "outbox",
        "df-event-id": "t-1",
        "df-event-type": "true",
        "trace": "t-1",
        "kind": "order",
        "n": "e-1",
    }


def test_the_payload_alone() -> None:
    assert event(raw_payload=True)["route"]["value"] == "after"
    assert "value" not in event()["route"]


@pytest.mark.parametrize(
    ("image", "payload"),
    [
        ('{"id":1,"payload":{"a": 1}}', '{"a": 1}'),
        ('{"id":1,"payload":"{\\"a\\":\\n [1.10]}\\n"}', '{"a":  [1.10]}'),
        ('{"id":1,"payload":"{\\"a\\":\\"\\\\u00e9\\"}"}', '{"a":"\\u00e9"}'),
        ('{"id":1,"aggregate_id":2,"more": 1.10,"t":[1, 2]}', '{"more": 1.10,"t":[1, 2]}'),
        ('{"id":1}', "{}"),
    ],
)
def test_payloads(image: str, payload: str) -> None:
    """Without a column of the payload, what no other column has is the payload."""
    assert of(image)["after"] == payload


def test_the_rest_of_a_row_has_no_columns_that_became_headers() -> None:
    row = of('{"id":1,"trace":"t","a":1}', additional_headers={"trace": "trace"}, columns={"payload": "body"})
    assert row["after"] == '{"a":1}'


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("null", "null_payload"),
        ("[1]", "non_object"),
        ("5", "non_object"),
        ('"{"', "non_object"),
        ('"x"', "non_object"),
    ],
)
def test_what_is_no_payload_is_dropped(payload: str, reason: str) -> None:
    chain = chained()
    assert chain(batch({**EVENT, "after": f'{{"id":1,"payload":{payload}}}'})).num_rows == 0
    assert drops(chain) == {reason: 1}


def test_what_else_happens_to_an_outbox_table_is_dropped_and_counted() -> None:
    image = EVENT["after"]
    chain = chained()
    made = chain(
        batch(
            {**EVENT, "op": "u", "before": image},
            {**EVENT, "op": "d", "before": image, "after": None, "headers": {"new_key": '{"id":2}'}},
            {**EVENT, "headers": {"old_key": '{"id":1}'}},
            {**EVENT, "op": "t", "key": None, "after": None},
            {**EVENT, "op": "s", "key": None},
            {**EVENT, "op": "r"},
        )
    ).to_pylist()
    assert [(row["seq"], row["op"]) for row in made] == [(5, "r")]
    assert drops(chain) == {"non_insert": 5}


MESSAGE = {"op": "m", "schema": "", "table": "mail.welcome", "key": None, "schema_id": 2}


def test_logical_messages_by_prefix() -> None:
    chain = opened(processor(OutboxProcessor, prefixes=["mail.*"], topic="${source.table}"))
    own = {**MESSAGE, "after": '{"id":9,"aggregate_id":"u-1","payload":{"to":"x"}}'}
    made = chain(batch(own, {**own, "table": "mail"}, {**own, "after": '{"to": "x"}'})).to_pylist()
    assert [(row["op"], row["after"]) for row in made] == [
        ("c", '{"to":"x"}'),
        ("m", own["after"]),
        ("c", '{"to": "x"}'),
    ]
    assert {name: dict(made[0]["route"])[name] for name in ("topic", "key")} == {"topic": "mail.welcome", "key": "u-1"}
    assert made[1]["route"] is None
    table = {**EVENT, "table": "mail.welcome"}
    assert chain(batch(table)).equals(batch(table))


def test_without_names_it_is_about_what_the_source_calls_its_outbox() -> None:
    plain = processor(OutboxProcessor)
    source = replace(UNKNOWN, outbox=OutboxNames(("public.outbox",), ("mail.*",)))
    of_source = plain.of_source(source)
    assert of_source != plain
    assert pickle.loads(pickle.dumps(of_source)) == of_source
    chain = opened(of_source)
    partition = {**EVENT, "table": "outbox_2026", **TAGGED}
    changes = batch(
        *(EVENT, {**EVENT, "op": "u"}, partition),
        *({**EVENT, "schema": "other"}, {**MESSAGE, "after": "{}"}, {**MESSAGE, "table": "x", "after": "{}", **TAGGED}),
    )
    made = chain(changes).to_pylist()
    assert [row["seq"] for row in made if row["route"]] == [0, 2, 4, 5]
    assert [row["seq"] for row in made] == [0, 2, 3, 4, 5]
    assert drops(chain) == {"non_insert": 1}
    named = processor(OutboxProcessor, tables=["public.a"])
    assert named.of_source(source) is named
    assert opened(named)(batch(partition)).equals(batch(partition))
    with pytest.raises(PydanticCustomError, match="nobody says which tables"):
        plain.of_source(UNKNOWN)


def test_strict_stops_at_the_first_message_that_lacks_something() -> None:
    whole = batch(EVENT)
    assert chained(strict=True)(whole).num_rows == 1
    lacking = {
        "topic": '{"id":1,"aggregate_type":"a","aggregate_id":1,"event_type":"x","payload":{}}',
        "aggregate_type and no event_type": '{"topic":"t","aggregate_id":1,"event_type":null,"payload":{}}',
        "aggregate_id": '{"topic":"t","aggregate_type":"a","event_type":"x","payload":{}}',
        "payload": '{"topic":"t","aggregate_type":"a","aggregate_id":1,"event_type":"x","payload":null}',
        "payload (it is no JSON object)": (
            '{"topic":"t","aggregate_type":"a","aggregate_id":1,"event_type":"x","payload":[]}'
        ),
    }
    for names, image in lacking.items():
        with pytest.raises(ProcessorError, match=rf"public\.outbox has no {re.escape(names)} \(") as failure:
            chained(strict=True)(batch(EVENT, {**EVENT, "after": image}))
        assert failure.value.code == "processor.incomplete_message"
        assert failure.value.where == "public.outbox, c at offset 1, position 16/B374D848"
    with pytest.raises(ProcessorError, match="has no payload"):
        chained(strict=True, columns={"payload": "missing"})(whole)


def test_a_strict_outbox_still_drops_what_is_no_insert() -> None:
    chain = chained(strict=True)
    assert chain(batch({**EVENT, "op": "d", "after": None})).num_rows == 0
    assert drops(chain) == {"non_insert": 1}


def test_what_other_processors_said_and_say() -> None:
    first = processor(RouteProcessor, rules=[{"topic": "first", "headers": {"x": "1"}, "key": "k"}])
    flatten = processor(FlattenProcessor)
    chain = opened(first, processor(OutboxProcessor, tables=["outbox"], columns={"topic": "missing"}), flatten)
    [row] = chain(batch({**EVENT, "after": '{"id":1,"aggregate_id":2,"payload":{"a":{"b":1}}}'})).to_pylist()
    assert row["after"] == '{"a__b":1}'
    route = dict(row["route"])
    assert (route["topic"], route["key"]) == ("first", "2")
    assert json.loads(route["headers"]) == {
        "x": "1",
        "df-source-kind": "outbox",
        "df-event-id": "1",
        "df-aggregate-id": "2",
    }


def test_it_is_no_step_before_a_mirror_and_only_the_data_tells_what_payloads_have() -> None:
    outbox = processor(OutboxProcessor, tables=["outbox"])
    assert "no rows of a table" in outbox.breaks_mirror()
    assert outbox.shape(ORDERS) == ORDERS
    assert outbox.shape(replace(ORDERS, table="outbox")) is None
    assert processor(OutboxProcessor).shape(ORDERS) is None


DOCUMENT = """
metadata: {name: shop}
spec:
  source: {type: postgres, config: {id: shop, dsn: postgresql://h/d, tables: [public.*]SOURCE}}
  processors: [{type: flatten, columns: {}}, {type: outboxOUTBOX}]
  sinks: [{type: delta, config: {id: lake, path: /lake, write_mode: MODE}}]
"""


@pytest.mark.parametrize(
    ("source", "outbox", "mode", "code"),
    [
        (", outbox: {tables: [public.o]}", "", "append", None),
        ("", ", prefixes: [mail]", "append", None),
        ("", "", "append", "config.invalid_value"),
        ("", ", tables: [o]", "upsert", "config.breaks_mirror"),
    ],
)
def test_in_a_pipeline(source: str, outbox: str, mode: str, code: str | None, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(DOCUMENT.replace("SOURCE", source).replace("OUTBOX", outbox).replace("MODE", mode))
    if code is not None:
        with pytest.raises(ConfigError) as refused:
            load_pipelines([file], {})
        assert refused.value.code == code
        return
    [pipeline] = load_pipelines([file], {})
    found = pipeline.chain(pipeline.sinks[0])[1]
    assert isinstance(found, OutboxProcessor)
    assert found.names() == (OutboxNames(("public.o",)) if source else OutboxNames((), ("mail",)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": "${aggregate_type}"}, "a change has no `aggregate_type`"),
        ({"key": "${after}"}, "a change has no `after`"),
        ({"columns": {"payload": ""}}, "at least 1"),
        ({"columns": {"body": "payload"}}, "Extra inputs"),
        ({"additional_headers": {"df-event-id": "x"}}, "the header 'df-event-id' is there already"),
        ({"tables": ["a.b.c.d"]}, "no pattern of tables"),
    ],
)
def test_what_is_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        processor(OutboxProcessor, **settings)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except ValueError:
        return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)


BROKEN = (
    *("", " ", "{", "}", "{}", " {} ", "{}{}", "{},", "[]", "[{}]", "{]", '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}'),
    *('{"a":01}', '{"a":1.}', '{"a":.5}', '{"a":-}', '{"a":-0}', '{"a":1e}', '{"a":1e+}', '{"a":1E-7}', '{"a":+1}'),
    *('{"a":tru}', '{"a":nul', '{"a":true}', '{"a":truee}', '{"a":NaN}', '{"a":-Infinity}', "{a:1}", "{'a':1}"),
    *('{"a":"\n"}', '{"a":"\\x"}', '{"a":"\\u12"}', '{"a":"\\u12g4"}', '{"a":"\\u00e9"}', '{"a":"x}', '{"a":"\\"}'),
    *('{"a":[1,]}', '{"a":[,1]}', '{"a":[1 2]}', '{"a":[[[]]]}', '{"a" : {"b":[{}]}}', '{"a"::1}', '{"a":1 "b":2}'),
    *('{1:2}', '{"a":1}x', "\ufeff{}", '{"a":"\x7f"}', "\u00a0{}", '{"\\ud83d\\ude00":"\\ud83d"}'),
)  # fmt: skip


def test_texts_that_are_objects() -> None:
    found = objects(pa.array([*BROKEN, None])).is_valid().to_pylist()
    assert dict(zip(BROKEN, found, strict=False)) == {text: _is_object(text) for text in BROKEN}
    assert found[-1] is False


@pytest.mark.parametrize("seed", range(5))
def test_random_texts_are_objects_where_python_says_so(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    texts = []
    for _ in range(400):
        text = list(document(chance, 2, blank=True))
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(text) + 1)
            text[at : at + chance.randrange(2)] = chance.choice(['"', "{", "}", "[", "]", ",", ":", "1", "\\", " ", ""])
        texts.append("".join(text))
    assert objects(pa.array(texts)).is_valid().to_pylist() == [_is_object(text) for text in texts]


@pytest.mark.parametrize("module", [payloads])
def test_the_cached_functions_have_those_of_today(module: ModuleType) -> None:
    assert digests(module) == module.INLINED, f"write INLINED = {digests(module)} into {module.__name__}"


class TestOutbox(ProcessorSuite):
    """The sample's orders are no outbox, but its message is."""

    touches = frozenset({"to"})
    refuses = frozenset({"m"})

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        made: BatchProcessor = processor(OutboxProcessor, prefixes=["mail.*"], default_topic="mail")
        return made


class TestOutboxTable(ProcessorSuite):
    touches = frozenset({"id", "total", "status", "email", "tags"})
    refuses = frozenset({"t", "s"})

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        columns = {"payload": "details", "aggregate_id": "total", "aggregate_type": "email"}
        made: BatchProcessor = processor(OutboxProcessor, tables=["public.*"], columns=columns, topic="${after.status}")
        return made

    @pytest.fixture
    def place(self) -> Place:
        return PLACE
