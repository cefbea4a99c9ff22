"""The transform: every option by cases, everywhere a value can be."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.contracts import BatchProcessor, Place
from tailrace.errors import ProcessorError
from tailrace.processors.transform import TransformProcessor
from tailrace.testing.suites.processors import ProcessorSuite
from tests.processors.changes import MIRROR, ORDERS, PLACE, batch, opened, processor, table
from tests.processors.documents import document, plain


def made(settings: Mapping[str, Any], *changes: Mapping[str, Any], place: Place = PLACE) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = opened(processor(TransformProcessor, **settings), place=place)(
        batch(*changes)
    ).to_pylist()
    return rows


def after(settings: Mapping[str, Any], image: str) -> str:
    [row] = made(settings, {"after": image})
    return str(row["after"])


@pytest.mark.parametrize(
    ("mask", "value", "expected"),
    [
        ({}, '"Žofie"', '"***"'),
        ({}, "12", '"***"'),
        ({}, "null", "null"),
        ({}, '{"a": 1}', '"***"'),
        ({"with": 'x"'}, '"Žofie"', '"x\\""'),
        ({"how": "partial", "keep_last": 4}, '"4111111111111111"', '"************1111"'),
        ({"how": "partial", "keep_last": 4}, "41111111", '"****1111"'),
        ({"how": "partial", "keep_first": 1, "keep_last": 1}, '"Žofi\\u00e9"', '"Ž***é"'),
        ({"how": "partial", "keep_first": 2, "with": "<>"}, '"abcd"', '"ab<><>"'),
        ({"how": "partial", "keep_first": 2, "keep_last": 2}, '"abcd"', '"****"'),
        ({"how": "partial", "keep_first": 2}, '""', '""'),
        ({"how": "partial", "keep_first": 1}, '"a\\"b"', '"a**"'),
        ({"how": "partial", "keep_first": 1}, '{"a":1}', '"***"'),
        ({"how": "partial", "keep_first": 1}, "null", "null"),
        ({"how": "regex", "pattern": "[0-9]", "with": "#"}, '"a1b22"', '"a#b##"'),
        ({"how": "regex", "pattern": "(.)@.*", "with": "\\1@***"}, '"jan@x.cz"', '"jan@***"'),
        ({"how": "regex", "pattern": "1"}, "121", '"***2***"'),
        ({"how": "regex", "pattern": "1"}, "[1]", '"***"'),
        ({"how": "fixed", "value": 0}, '"x"', "0"),
        ({"how": "fixed", "value": "é"}, "12", '"é"'),
        ({"how": "fixed"}, "12", "null"),
        ({"how": "fixed", "value": False}, "null", "null"),
    ],
)
def test_masks(mask: Mapping[str, Any], value: str, expected: str) -> None:
    image = '{"id":1,"status":%s,"ratio":1.10}'
    assert after({"mask": [{"columns": ["status"], **mask}]}, image % value) == image % expected


@pytest.mark.parametrize(
    ("value", "hashed"), [('"Žofie\\n"', "Žofie\n"), ("12", "12"), ("1.10", "1.10"), ('{"a": 1}', '{"a": 1}')]
)
def test_hashes(value: str, hashed: str) -> None:
    image = '{"id":1,"status":%s}'
    salted = hashlib.sha256(b"pepper" + hashed.encode()).hexdigest()
    keyed = hmac.new(b"pepper", hashed.encode(), hashlib.sha256).hexdigest()
    assert after({"hash": [{"columns": ["status"], "salt": "pepper"}]}, image % value) == image % f'"{salted}"'
    assert after({"hash": [{"columns": ["status"], "key": "pepper"}]}, image % value) == image % f'"{keyed}"'
    assert after({"hash": [{"columns": ["status"], "key": "pepper"}]}, image % "null") == image % "null"


WHOLE: dict[str, Any] = {
    "op": "u",
    "key": '{"id":7}',
    "before": '{"id":7,"status":"secret-1","details":{"ssn":"secret-2"}}',
    "after": '{"id":7,"status":"secret-3","details":{"ssn":"secret-4","n":1.10}}',
}


def test_a_masked_value_survives_nowhere() -> None:
    settings = {"mask": [{"columns": ["status", "details.ssn", "id"]}]}
    moved = {**WHOLE, "op": "c", "key": '{"id":8}', "headers": {"old_key": '{"id":7}', "x": "y", "new_key": '{"id":8}'}}
    rows = made(settings, WHOLE, {**WHOLE, "op": "d", "after": None}, moved, {**WHOLE, "op": "r"})
    assert not re.search(
        r"secret|:[78]\b", repr([{k: v for k, v in row.items() if k != "lane"} for row in rows]).replace("'", "")
    )
    assert rows[2]["headers"] == [("x", "y"), ("old_key", '{"id":"***"}'), ("new_key", '{"id":"***"}')]
    assert rows[0]["after"] == '{"id":"***","status":"***","details":{"ssn":"***","n":1.10}}'


def test_equal_keys_stay_equal_when_hashed() -> None:
    rows = made({"hash": [{"columns": ["id"], "key": "k"}]}, WHOLE, {**WHOLE, "op": "d", "after": None, "before": None})
    digest = hmac.new(b"k", b"7", hashlib.sha256).hexdigest()
    assert {row["key"] for row in rows} == {f'{{"id":"{digest}"}}'}
    assert json.loads(rows[0]["after"])["id"] == json.loads(rows[0]["before"])["id"] == digest


def test_columns_are_renamed_dropped_and_kept() -> None:
    image = '{"id":1,"total":"12.50","status":"new","details":{"a": 1, "b": 2}}'
    assert after({"rename": [{"columns": {"total": "amount", "id": "order id"}}]}, image) == (
        '{"order id":1,"amount":"12.50","status":"new","details":{"a": 1, "b": 2}}'
    )
    assert after({"drop": [{"columns": ["total", "details.a"]}]}, image) == '{"id":1,"status":"new","details":{"b": 2}}'
    assert after({"keep": [{"columns": ["status"]}]}, image) == '{"id":1,"status":"new"}'
    mapping = [
        {"source_column": "total", "sink_column": "amount"},
        {"source_column": "status", "enabled": False},
        {"source_column": "details"},
    ]
    assert (
        after({"field_mapping": [{"columns": mapping}]}, image)
        == '{"id":1,"amount":"12.50","details":{"a": 1, "b": 2}}'
    )
    assert after({"rename": [{"columns": {"total": "status", "status": "total"}}]}, image) == (
        '{"id":1,"status":"12.50","total":"new","details":{"a": 1, "b": 2}}'
    )


def test_a_renamed_key_is_renamed_everywhere() -> None:
    moved = {**WHOLE, "headers": {"old_key": '{"id":6}'}}
    [row] = made({"rename": [{"columns": {"id": "order_id"}}]}, moved)
    assert (row["key"], row["headers"]) == ('{"order_id":7}', [("old_key", '{"order_id":6}')])
    assert json.loads(row["before"])["order_id"] == json.loads(row["after"])["order_id"] == 7


def test_all_at_once() -> None:
    settings = {
        "mask": [{"columns": ["status"], "how": "partial", "keep_last": 1}],
        "hash": [{"columns": ["big"], "salt": "s"}],
        "drop": [{"columns": ["details"]}],
        "rename": [{"columns": {"status": "state", "total": "amount"}}],
        "add_metadata": [{"key": "dc", "value": "eu", "as": "column"}, {"key": "via", "value": 'x"', "as": "header"}],
    }
    image = '{"id":1,"total":"1.10","status":"new","big":5,"details":{}}'
    [row] = made(settings, {"after": image})
    digest = hashlib.sha256(b"s5").hexdigest()
    assert row["after"] == f'{{"id":1,"amount":"1.10","state":"**w","big":"{digest}","dc":"eu"}}'
    assert row["headers"] == [("via", 'x"')]


def test_metadata() -> None:
    header = {"add_metadata": [{"key": "dc", "value": "eu"}]}
    rows = made(header, {}, {"headers": {"a": "b", "dc": "us"}}, {"op": "m", "after": "{}"}, {"op": "t"})
    assert [row["headers"] for row in rows] == [
        [("dc", "eu")],
        [("a", "b"), ("dc", "eu")],
        [("dc", "eu")],
        [("dc", "eu")],
    ]
    column = {"add_metadata": [{"key": "é", "value": "\n", "as": "column"}]}
    rows = made(column, {**WHOLE, "before": "{}"}, {"op": "d"}, {"op": "m", "after": '{"a":1}'})
    assert rows[0]["before"] == '{"é":"\\n"}'
    assert json.loads(rows[0]["after"])["é"] == "\n"
    assert (rows[1]["before"], rows[1]["after"], rows[2]["after"]) == (None, None, '{"a":1}')


def test_what_was_not_sent_stays_so_under_its_new_name() -> None:
    settings = {
        "rename": [{"columns": {"status": "state"}}],
        "drop": [{"columns": ["big"]}],
        "mask": [{"columns": ["total"]}],
    }
    unsent = {"op": "u", "after": '{"id":1}', "unchanged": ["status", "big", "details", "total"]}
    rows = made(
        settings, unsent, {"op": "u", "after": '{"id":1}', "unchanged": ["big"]}, {"after": "{}"}, {"unchanged": []}
    )
    assert [row["unchanged"] for row in rows] == [["state", "details", "total"], [], None, []]
    step = processor(TransformProcessor, **settings)
    assert step.unsent(["status", "big", "total"], ORDERS) == ("state", "total")


def test_it_concerns_only_the_tables_it_names() -> None:
    users = replace(table(2, "users", id="int64", status="text"), schema="private")
    place = replace(PLACE, tables={1: ORDERS, 2: users})
    settings = {
        "mask": [{"columns": ["status"], "tables": ["private.*"]}, {"columns": ["total"], "tables": ["orders"]}],
        "rename": [{"columns": {"status": "state"}, "tables": ["shop.public.orders"]}],
        "add_metadata": [{"key": "dc", "value": "eu", "tables": ["users"]}],
    }
    image = '{"id":1,"status":"new","total":"1"}'
    own = {"schema": "private", "table": "users", "schema_id": 2}
    rows = made(settings, {"after": image}, {"after": image, **own}, {"after": image}, place=place)
    assert [row["after"] for row in rows] == [
        '{"id":1,"state":"new","total":"***"}',
        '{"id":1,"status":"***","total":"1"}',
        '{"id":1,"state":"new","total":"***"}',
    ]
    assert [row["headers"] for row in rows] == [None, [("dc", "eu")], None]


def test_a_version_that_nobody_knows_is_changed_all_the_same() -> None:
    settings = {"mask": [{"columns": ["status", "a.b"]}], "rename": [{"columns": {"id": "n"}}]}
    [row] = made(settings, {"schema_id": 99, "after": '{"id":1,"status":"x","a":{"b":1},"a.b":2}'})
    assert row["after"] == '{"n":1,"status":"***","a":{"b":"***"},"a.b":"***"}'
    assert row["key"] == '{"n":1}'


def test_its_shape() -> None:
    settings = {
        "mask": [{"columns": ["total"]}, {"columns": ["big"], "how": "fixed", "value": 1}, {"columns": ["details.x"]}],
        "hash": [{"columns": ["id"], "key": "k"}],
        "drop": [{"columns": ["paid"]}],
        "rename": [{"columns": {"id": "order_id", "ratio": "r"}}],
        "add_metadata": [{"key": "dc", "value": "eu", "as": "column"}],
    }
    shape = processor(TransformProcessor, **settings).shape(ORDERS)
    assert [(c.name, str(c.kind), c.number) for c in shape.columns] == [
        ("order_id", "text", 1),
        ("total", "text", 2),
        ("status", "text", 3),
        ("big", "int64", 4),
        ("r", "float64", 5),
        ("details", "json", 7),
        ("tags", "array<text>", 8),
        ("dc", "text", 0),
    ]
    assert (shape.key, shape.id) == (("order_id",), ORDERS.id)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"drop": [{"columns": ["id"]}]}, "processor.lost_key"),
        ({"field_mapping": [{"columns": [{"source_column": "id", "enabled": False}]}]}, "processor.lost_key"),
        ({"rename": [{"columns": {"status": "total"}}]}, "processor.same_name"),
        ({"add_metadata": [{"key": "total", "value": "x", "as": "column"}]}, "processor.same_name"),
        ({"mask": [{"columns": ["status"]}], "hash": [{"columns": ["status"], "key": "k"}]}, "processor.hidden_twice"),
        ({"mask": [{"columns": ["details"]}, {"columns": ["details.a"]}]}, "processor.hidden_twice"),
        ({"mask": [{"columns": ["id"]}]}, "processor.masked_key"),
    ],
)
def test_what_does_not_fit_a_table_stops_it(settings: Mapping[str, Any], code: str) -> None:
    with pytest.raises(ProcessorError) as failure:
        made(settings, WHOLE, place=MIRROR)
    assert (failure.value.code, failure.value.where) == (code, "public.orders")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "does nothing"),
        ({"mask": [{"columns": []}]}, "at least 1"),
        ({"mask": [{"columns": ["a"], "keep_last": 1}]}, "belongs to `how: partial`"),
        ({"mask": [{"columns": ["a"], "how": "partial"}]}, "leaves nothing"),
        ({"mask": [{"columns": ["a"], "how": "regex"}]}, "needs a `pattern`"),
        ({"mask": [{"columns": ["a"], "how": "regex", "pattern": "("}]}, "cannot be compiled"),
        ({"mask": [{"columns": ["a"], "how": "regex", "pattern": "a", "with": "\\7"}]}, "cannot be compiled"),
        ({"mask": [{"columns": ["a"], "how": "fixed", "with": "x"}]}, "says nothing"),
        ({"mask": [{"columns": ["a"], "value": 1}]}, "belongs to `how: fixed`"),
        ({"hash": [{"columns": ["a"]}]}, "needs a `salt` or a `key`"),
        ({"hash": [{"columns": ["a"], "salt": ""}]}, "needs a `salt` or a `key`"),
        ({"hash": [{"columns": ["a"], "salt": "a", "key": "b"}]}, "needs a `salt` or a `key`"),
        ({"add_metadata": [{"key": "old_key", "value": ""}]}, "Tailrace's own"),
        (
            {"field_mapping": [{"columns": [{"source_column": "a", "sink_column": "b", "enabled": False}]}]},
            "no other name",
        ),
    ],
)
def test_what_is_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        processor(TransformProcessor, **settings)


def test_secrets_are_never_shown() -> None:
    step = processor(
        TransformProcessor, hash=[{"columns": ["a"], "salt": "pepper"}, {"columns": ["b"], "key": "pepper"}]
    )
    shown = repr(step) + str(step) + step.model_dump_json()
    assert "pepper" not in shown
    assert pickle.loads(pickle.dumps(step)).hash[0].salt.get_secret_value() == "pepper"


@pytest.mark.parametrize("seed", range(5))
def test_random_documents_keep_what_is_not_touched(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    names = ("a", "b", "ab", "é", 'q"')
    place = replace(PLACE, tables={1: table(1, "orders", (), **dict.fromkeys(names, "json"))})
    images = [document(chance, 2, names=names) for _ in range(100)]
    settings = {
        "mask": [{"columns": ["a"]}],
        "drop": [{"columns": ["b"]}],
        "rename": [{"columns": {"ab": "x", "é": 'y"'}}],
    }
    rows = made(settings, *({"after": image} for image in images), place=place)
    for image, row in zip(images, rows, strict=True):
        names_now = {"ab": "x", "é": 'y"'}
        expected = [
            (names_now.get(name, name), "***" if name == "a" and value is not None else value)
            for name, value in plain(image).items()
            if name != "b"
        ]
        assert list(plain(row["after"]).items()) == expected, image


class TestTransform(ProcessorSuite):
    touches = frozenset({"id", "email", "status", "total", "details"})

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        made: BatchProcessor = processor(
            TransformProcessor,
            mask=[{"columns": ["email"], "how": "partial", "keep_last": 4}, {"columns": ["details.who.name"]}],
            hash=[{"columns": ["id"], "key": "pepper"}],
            drop=[{"columns": ["status"]}],
            rename=[{"columns": {"total": "amount", "details": "more"}}],
            add_metadata=[{"key": "dc", "value": "eu"}, {"key": "region", "value": "eu", "as": "column"}],
        )
        return made


class TestTransformThatDropsWhatMayBeUnsent(ProcessorSuite):
    @pytest.fixture
    def processor(self) -> BatchProcessor:
        made: BatchProcessor = processor(TransformProcessor, keep=[{"columns": ["total"]}])
        return made
