"""Flatten: every option by cases, and against a slow oracle."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.contracts import BatchProcessor, Place
from tailrace.errors import ProcessorError
from tailrace.processors.chain import Chain
from tailrace.processors.flatten import FlattenProcessor
from tailrace.testing.suites.processors import ProcessorSuite
from tests.processors.changes import MIRROR, ORDERS, PLACE, batch, opened, processor, table
from tests.processors.documents import document
from tests.processors.flattening import CollisionError, Options, flattened, parts


def made(settings: Mapping[str, Any], *changes: Mapping[str, Any], place: Place = PLACE) -> list[dict[str, Any]]:
    step = opened(processor(FlattenProcessor, **settings), place=place)
    rows: list[dict[str, Any]] = step(batch(*changes)).to_pylist()
    return rows


def after(settings: Mapping[str, Any], image: str) -> str:
    [row] = made(settings, {"after": image})
    return str(row["after"])


IMAGE = (
    '{"id":1 ,"details": {"n": 1.10,"who":{"name":"\\u017dofie","none":{}, "deep":{"er":{"x":12345678901234567890}}},'
    '"list":[1, {"a":2},[]],"empty":[]} ,"tags":["a", "b"]}'
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {},
            '"details__n":1.10,"details__who__name":"\\u017dofie","details__who__none":{},'
            '"details__who__deep__er__x":12345678901234567890,"details__list":[1, {"a":2},[]],"details__empty":[],'
            '"tags": ["a", "b"]',
        ),
        (
            {"separator": ".", "max_depth": 2},
            '"details.n":1.10,"details.who.name":"\\u017dofie","details.who.none":{},'
            '"details.who.deep":{"er":{"x":12345678901234567890}},"details.list":[1, {"a":2},[]],"details.empty":[],'
            '"tags": ["a", "b"]',
        ),
        (
            {"max_depth": 1, "empty_object": "null", "empty_list": "null"},
            '"details__n":1.10,"details__who":{"name":"\\u017dofie","none":{}, '
            '"deep":{"er":{"x":12345678901234567890}}},'
            '"details__list":[1, {"a":2},[]],"details__empty":null,"tags": ["a", "b"]',
        ),
        (
            {"max_depth": 3, "empty_object": "drop", "empty_list": "drop", "lists": "index"},
            '"details__n":1.10,"details__who__name":"\\u017dofie","details__who__deep__er":{"x":12345678901234567890},'
            '"details__list__0":1,"details__list__1__a":2,"tags__0":"a","tags__1":"b"',
        ),
        (
            {"lists": "index", "empty_object": "null", "empty_list": "null", "max_depth": 2},
            '"details__n":1.10,"details__who__name":"\\u017dofie","details__who__none":null,'
            '"details__who__deep":{"er":{"x":12345678901234567890}},"details__list__0":1,"details__list__1":{"a":2},'
            '"details__list__2":null,"details__empty":null,"tags__0":"a","tags__1":"b"',
        ),
    ],
)
def test_options(settings: Mapping[str, Any], expected: str) -> None:
    image = IMAGE.replace('"tags":', '"tags": ')
    assert after(settings, image) == f'{{"id":1,{expected}}}'


@pytest.mark.parametrize(
    ("settings", "image", "expected"),
    [
        ({}, '{"id": 1, "details" : {}}', '{"id": 1, "details" : {}}'),
        ({"empty_object": "null"}, '{"id": 1, "details" : { }}', '{"id": 1,"details" : null}'),
        ({"empty_object": "drop"}, '{"details":{}}', "{}"),
        ({"empty_list": "null"}, '{"details":[]}', '{"details":null}'),
        ({"empty_list": "drop"}, '{"details":[ ],"id":1}', '{"id":1}'),
        ({"max_depth": 0}, '{"details":{"a":{}}}', '{"details":{"a":{}}}'),
        ({"max_depth": 0, "empty_object": "drop"}, '{"details":{},"tags":[]}', '{"tags":[]}'),
        ({"max_depth": 1, "empty_object": "drop"}, '{"details":{"a":{}, "b": {"c":{}}}}', '{"details__b":{"c":{}}}'),
        ({}, '{"details":"x", "tags":[ ]}', '{"details":"x", "tags":[ ]}'),
        ({}, '{"details":null}', '{"details":null}'),
        ({}, '{"details":[{"a":1}]}', '{"details":[{"a":1}]}'),
        ({"lists": "index"}, '{"details":[[1,[2]],{}]}', '{"details__0__0":1,"details__0__1__0":2,"details__1":{}}'),
        (
            {},
            r'{"details":{"\u00e9":1,"q\"":2,"t\t":3,"\u0001":4,"\ud83d\ude00":5}}',
            '{"details__é":1,"details__q\\"":2,"details__t\\t":3,"details__\\u0001":4,"details__😀":5}',
        ),
    ],
)
def test_boundaries(settings: Mapping[str, Any], image: str, expected: str) -> None:
    """An image in which nothing is opened stays as it is; names are spelled as the source spells those of columns."""
    assert after(settings, image) == expected


def test_both_images_are_flattened_and_nothing_else() -> None:
    image, flat = '{"id":1,"details":{"a":1}}', '{"id":1,"details__a":1}'
    kept = {"key": '{"id":{"a":1}}', "headers": {"old_key": '{"id":{"a":2}}'}}
    rows = made({}, {"op": "u", "before": image, "after": image, **kept}, {"op": "d", "before": image, "after": None})
    assert [(row["before"], row["after"]) for row in rows] == [(flat, flat), (flat, None)]
    assert (rows[0]["key"], dict(rows[0]["headers"])) == (kept["key"], kept["headers"])
    whole = [row["after"] for row in made({}, *({"op": op, "after": image} for op in "tms"))]
    assert whole == [image] * 3


def test_columns_of_the_key_stay_whole() -> None:
    by_details = table(key=("details",))
    place = replace(PLACE, tables={1: by_details})
    image = '{"id":1,"details":{"a":1},"more":{"b":2}}'
    [row] = made({}, {"key": '{"details":{"a":1}}', "after": image}, place=place)
    assert row["after"] == '{"id":1,"details":{"a":1},"more__b":2}'
    assert processor(FlattenProcessor).shape(by_details) == by_details


def test_what_is_no_json_column_stays_whole_and_a_table_that_nobody_knows_is_opened() -> None:
    image = '{"status":{"a":1},"details":{"a":1},"added":{"a":1}}'
    assert after({}, image) == '{"status":{"a":1},"details__a":1,"added__a":1}'
    [row] = made({}, {"after": image, "schema_id": 99})
    assert row["after"] == '{"status__a":1,"details__a":1,"added__a":1}'


def test_tables() -> None:
    image = '{"details":{"a":1}}'
    others = {"tables": ["public.o*", "shop.sales.*"]}
    names = [("public", "orders"), ("public", "users"), ("sales", "users")]
    changes = [
        {"schema": schema, "table": name, "after": image, "schema_id": 90 + n} for n, (schema, name) in enumerate(names)
    ]
    assert [row["after"] == image for row in made(others, *changes)] == [False, True, False]
    assert processor(FlattenProcessor, tables=["users"]).shape(ORDERS) == ORDERS


COLLIDING = '{"details__a":1,"details":{"a":2,"b":3},"status":"x"}'


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("last", '{"details__a":2,"details__b":3,"status":"x"}'),
        ("first", '{"details__a":1,"details__b":3,"status":"x"}'),
    ],
)
def test_collisions(rule: str, expected: str) -> None:
    assert after({"on_collision": rule}, COLLIDING) == expected


def test_a_collision_stops_the_sink_with_its_place() -> None:
    with pytest.raises(ProcessorError) as failure:
        made({"on_collision": "error"}, {"after": "{}"}, {"op": "u", "before": "{}", "after": COLLIDING})
    error = failure.value
    assert error.code == "processor.collision"
    assert "public.orders" in str(error)
    assert "`details__a`" in str(error)
    assert error.where == "public.orders, u at offset 1, position 16/B374D848"


def test_many_names_are_told_apart() -> None:
    inner = ",".join(f'"n{n}":{n}' for n in range(5000))
    [row] = made({"on_collision": "error"}, {"after": f'{{"details":{{{inner}}}}}'})
    assert parts(row["after"]) == [(f"details__n{n}", str(n)) for n in range(5000)]


def test_values_at_any_depth() -> None:
    deep = '{"a":' * 300 + "1" + "}" * 300
    [row] = made({}, {"after": f'{{"details":{deep}}}'})
    assert parts(row["after"]) == [("details" + "__a" * 300, "1")]


DECLARED = {"columns": {"details__a": "int64", "details__é": "text"}}


def test_what_nobody_declared_is_gathered() -> None:
    image = '{"id":1,"details":{"a": 1,"b": {"c": 2.50},"\\u00e9":"x"},"tags":["a"],"status":"new"}'
    assert after(DECLARED, image) == (
        '{"id":1,"details__a":1,"details__é":"x","tags":["a"],"status":"new","_undeclared":{"details__b__c":2.50}}'
    )
    assert after({"columns": {}, "empty_object": "null"}, '{"details":{"a":{}}}') == (
        '{"_undeclared":{"details__a":null}}'
    )
    assert after({"columns": {}, "empty_object": "null"}, '{"details":{}}') == '{"details":null}'


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('{ "x": 1 }', '{"x": 1,"details__b":2}'),
        ("{}", '{"details__b":2}'),
        ('"text"', '{"_undeclared":"text","details__b":2}'),
    ],
)
def test_what_a_step_before_gathered_stays(before: str, expected: str) -> None:
    image = f'{{"_undeclared":{before},"details":{{"a":1,"b":2}}}}'
    assert after(DECLARED, image) == f'{{"details__a":1,"_undeclared":{expected}}}'
    only = f'{{"_undeclared":{before},"details":{{"a":1}}}}'
    assert after(DECLARED, only) == f'{{"_undeclared":{before},"details__a":1}}'


def test_the_shape_has_what_was_declared() -> None:
    shape = processor(FlattenProcessor, **DECLARED).shape(ORDERS)
    names = [column.name for column in ORDERS.columns]
    assert [column.name for column in shape.columns] == [*names, "details__a", "details__é", "_undeclared"]
    assert [str(column.kind) for column in shape.columns[-3:]] == ["int64", "text", "json"]
    assert processor(FlattenProcessor).shape(ORDERS) is None
    with pytest.raises(ProcessorError, match=r"what columns public\.orders has"):
        Chain((processor(FlattenProcessor),)).shape(ORDERS)
    plain = table(id="int64", tags="array<text>")
    assert processor(FlattenProcessor).shape(plain) == plain
    assert processor(FlattenProcessor, lists="index").shape(plain) is None


UNSENT = {"op": "u", "after": '{"id":1,"tags":[]}', "unchanged": ["details", "status"]}


def test_columns_made_of_one_that_was_not_sent_are_unsent() -> None:
    rows = made(DECLARED, UNSENT, {"op": "u", "after": '{"id":1}', "unchanged": ["status"]}, {"after": "{}"})
    assert [row["unchanged"] for row in rows] == [
        ["details", "status", "details__a", "details__é", "_undeclared"],
        ["status"],
        None,
    ]
    assert processor(FlattenProcessor, **DECLARED).unsent(["details"], ORDERS) == (
        *("details", "details__a", "details__é"),
        "_undeclared",
    )
    assert [row["unchanged"] for row in made({}, UNSENT)] == [["details", "status"]]
    kept = made(DECLARED, {**UNSENT, "after": '{"details__a":1,"more":{"x":1}}'})
    assert [(row["after"], row["unchanged"]) for row in kept] == [
        ('{"details__a":1,"_undeclared":{"more__x":1}}', ["details", "status", "details__é"])
    ]


def test_before_a_mirror_two_columns_of_which_one_was_not_sent_halt_the_table() -> None:
    assert [row["op"] for row in made(DECLARED, UNSENT, place=MIRROR)] == ["u"]
    two = table(id="int64", details="json", more="json")
    own = table(id="int64", details="json", details__x="text")
    for each in (two, own):
        with pytest.raises(ProcessorError) as failure:
            made(DECLARED, UNSENT, place=replace(MIRROR, tables={1: each}))
        assert failure.value.code == "processor.unsent_value"
        assert "REPLICA IDENTITY FULL" in failure.value.hint
    both = {**UNSENT, "unchanged": ["details", "more"]}
    assert made(DECLARED, both, place=replace(MIRROR, tables={1: two}))[0]["unchanged"][-1] == "_undeclared"


def test_it_is_a_function_of_the_row() -> None:
    flat = processor(FlattenProcessor)
    assert flat.breaks_mirror() is None
    assert flat.preserves() == {"rows", "key"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"separator": ""}, "at least 1"),
        ({"max_depth": -1}, "greater than or equal to 0"),
        ({"on_collision": "merge"}, "Input should be"),
        ({"empty_object": "keep"}, "Input should be"),
        ({"lists": "explode"}, "Input should be"),
        ({"empty_list": "keep"}, "Input should be"),
        ({"tables": ["a.b.c.d"]}, "no pattern of tables"),
        ({"columns": {"a": "number"}}, "no kind 'number'"),
    ],
)
def test_what_is_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        processor(FlattenProcessor, **settings)


def _options(chance: random.Random) -> Options:
    empty = ("preserve", "drop", "null")
    return Options(
        separator=chance.choice(["__", "_", ".", '"é']),
        max_depth=chance.choice([None, None, 0, 1, 2]),
        on_collision=chance.choice(["last", "first"]),
        empty_object=chance.choice(empty),
        lists=chance.choice(["preserve", "index"]),
        empty_list=chance.choice(empty),
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_documents_against_an_oracle(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    images = [document(chance, 3, blank=chance.random() < 0.3) for _ in range(100)]
    for options in (Options(), *(_options(chance) for _ in range(8))):
        chain = opened(processor(FlattenProcessor, **asdict(options)), place=replace(PLACE, tables={}))
        found = chain(batch(*({"after": image} for image in images))).column("after").to_pylist()
        assert [parts(str(image)) for image in found] == [flattened(image, options) for image in images], options
        strict = replace(options, on_collision="error")
        for image in images[:5]:
            assert _collides(image, asdict(strict)) == _oracle_collides(image, strict), image


def _collides(image: str, settings: Mapping[str, Any]) -> bool:
    try:
        made(settings, {"after": image}, place=replace(PLACE, tables={}))
    except ProcessorError:
        return True
    return False


def _oracle_collides(image: str, options: Options) -> bool:
    try:
        flattened(image, options)
    except CollisionError:
        return True
    return False


class TestFlatten(ProcessorSuite):
    touches = frozenset({"details"})

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        made: BatchProcessor = processor(FlattenProcessor)
        return made


class TestFlattenBeforeTables(ProcessorSuite):
    touches = frozenset({"details", "tags"})

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        columns = {"details__n": "decimal", "details__who__name": "text"}
        made: BatchProcessor = processor(FlattenProcessor, columns=columns, empty_list="null")
        return made
