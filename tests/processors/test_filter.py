"""The filter: every predicate, gate and rule, by cases and against a slow oracle."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.contracts import BatchProcessor, Place
from tailrace.errors import ProcessorError
from tailrace.json_members import split
from tailrace.processors.filter import FilterProcessor
from tailrace.testing.suites.processors import ProcessorSuite
from tests.processors.changes import MIRROR, PLACE, batch, opened, processor, table
from tests.processors.documents import document, plain


def kept(settings: Mapping[str, Any], *changes: Mapping[str, Any], place: Place = PLACE) -> list[bool]:
    """Which changes pass."""
    chain = opened(processor(FilterProcessor, **settings), place=replace(place, mirror=False), keep_dropped=True)
    return [reason is None for reason in chain(batch(*changes)).column("dropped").to_pylist()]


ROW = (
    '{"id":1,"total":"12.50","status":"new","big":9223372036854775807,"ratio":0.1,"paid":true,"note":null,'
    '"details":{"size": 5,"who": {"name": "Žofie \\"Z\\""}, "list": [1, "a", "12.50", [2]],"n":1.0},"tags":["x","y"],'
    '"a.b":"dot","inf":"-Infinity","text":"042"}'
)


@pytest.mark.parametrize(
    ("path", "op", "value", "expected"),
    [
        ("id", "eq", 1, True),
        ("id", "eq", 1.0, True),
        ("id", "eq", "1", True),  # in quotes, and the column has numbers
        ("details.size", "eq", "5", False),  # nobody says that this is a number
        ("id", "eq", True, False),
        ("total", "eq", 12.5, True),
        ("total", "eq", "12.5", True),
        ("total", "gt", 12.49, True),
        ("total", "gt", 12.5, False),
        ("total", "gte", 12.5, True),
        ("total", "lt", 100, True),
        ("total", "lt", 9, False),
        ("total", "lte", "12.500000000000000000001", True),
        ("total", "gt", -1e300, True),
        ("text", "eq", "42", False),
        ("text", "eq", 42, True),
        ("text", "gt", "1", False),
        ("big", "eq", 9223372036854775807, True),
        ("big", "eq", 9223372036854775806, False),
        ("big", "lt", 9223372036854775808, True),
        ("big", "gt", "9223372036854775806.999999", True),
        ("ratio", "eq", 0.1, True),
        ("ratio", "eq", "0.1000000000000000055511151231257827", False),
        ("inf", "lt", -1e308, True),
        ("paid", "eq", True, True),
        ("paid", "eq", False, False),
        ("paid", "ne", False, True),
        ("paid", "eq", "true", False),
        ("status", "eq", "new", True),
        ("status", "ne", "new", False),
        ("status", "ne", "old", True),
        ("status", "ne", 1, True),
        ("status", "gt", "a", True),
        ("status", "gt", 1, False),
        ("status", "lt", "nex", True),
        ("status", "in", ["new", 1], True),
        ("id", "in", ["new", 1], True),
        ("status", "in", ["old"], False),
        ("status", "not_in", ["old"], True),
        ("status", "not_in", ["new"], False),
        ("status", "contains", "e", True),
        ("status", "contains", "E", False),
        ("tags", "contains", "x", True),
        ("tags", "contains", "z", False),
        ("details.list", "contains", 12.5, True),
        ("details.list", "contains", "a", True),
        ("details.list", "contains", 2, False),
        ("status", "regex", "^n.w$", True),
        ("status", "regex", "x", False),
        ("id", "regex", "1", False),
        ("details.who.name", "eq", 'Žofie "Z"', True),
        ("details.who.name", "regex", 'e "Z"$', True),
        ("details.n", "eq", 1, True),
        ("details", "exists", None, True),
        ("details", "contains", "size", False),
        ("a.b", "eq", "dot", True),
        ("note", "exists", None, False),
        ("note", "not_exists", None, True),
        ("note", "eq", "x", False),
        ("note", "ne", "x", False),
        ("note", "not_in", ["x"], True),
        ("gone", "exists", None, False),
        ("gone", "not_exists", None, True),
        ("gone", "ne", 1, False),
        ("gone", "not_in", [1], True),
        ("details.gone.deep", "not_exists", None, True),
        ("status.deep", "exists", None, False),
    ],
)
def test_a_predicate_answers(path: str, op: str, value: Any, expected: bool) -> None:
    asked = {"path": path, "op": op} | ({} if value is None else {"value": value})
    assert kept({"fields": [asked]}, {"after": ROW}) == [expected]


def test_changed_compares_before_and_after() -> None:
    def update(before: str | None, after: str | None, **change: Any) -> bool:
        asked = {"fields": [{"path": "total", "op": "changed"}]}
        return kept(asked, {"op": "u", "before": before, "after": after, **change}) == [True]

    assert update('{"id":1,"total":"1"}', '{"id":1,"total":"2"}')
    assert not update('{"id":1,"total":"1"}', '{"id":2,"total":"1"}')
    assert not update('{"id":1,"total":null}', '{"id":1}')
    assert update('{"id":1}', '{"id":1,"total":"1"}')
    assert update(None, '{"id":1,"total":"1"}')
    assert not update(None, '{"id":1}', unchanged=["total"])
    assert update(None, '{"total":"1"}', op="c")
    assert update('{"total":"1"}', None, op="d")


def test_a_delete_is_judged_on_its_before_image_or_its_key() -> None:
    gone = {"op": "d", "after": None}
    asked = {"fields": [{"path": "id", "op": "gt", "value": 5}]}
    assert kept(asked, {**gone, "key": '{"id":9}'}, {**gone, "key": '{"id":1}'}) == [True, False]
    assert kept(asked, {**gone, "key": '{"id":1}', "before": '{"id":9}'}) == [True]
    total = {"fields": [{"path": "total", "op": "gt", "value": 5}]}
    whole = {**gone, "before": '{"id":1,"total":"1.00"}'}
    assert kept(total, whole, {**gone, "before": '{"id":1}'}, gone) == [False, True, True]


def test_a_column_that_the_table_does_not_have_is_absent_from_its_deletes_too() -> None:
    gone = {"op": "d", "after": None}
    assert kept({"fields": [{"path": "nowhere", "op": "eq", "value": 1}]}, gone) == [False]
    assert kept({"fields": [{"path": "nowhere", "op": "not_exists"}]}, gone) == [True]
    assert kept({"fields": [{"path": "nowhere", "op": "eq", "value": 1}]}, {**gone, "schema_id": 99}) == [True]


def test_what_the_source_did_not_send_has_the_value_of_before() -> None:
    asked = {"fields": [{"path": "details.size", "op": "eq", "value": 5}]}
    unsent = {"op": "u", "after": '{"id":1}', "unchanged": ["details"]}
    befores = ['{"id":1,"details":{"size":5}}', '{"id":1,"details":{"size":6}}', '{"id":1,"details":null}']
    assert kept(asked, *({**unsent, "before": before} for before in befores)) == [True, False, False]
    assert kept(asked, unsent, {**unsent, "before": '{"id":1}'}) == [True, True]  # nobody knows
    either = {"fields": [*asked["fields"], {"path": "id", "op": "eq", "value": 2}], "match": "any"}
    assert kept(either, unsent) == [True]
    both = {"fields": [*asked["fields"], {"path": "id", "op": "eq", "value": 2}]}
    assert kept(both, unsent) == [False]
    assert kept({"exclude": [{"not": asked}]}, unsent) == [True]


def test_before_a_mirror_a_value_that_nobody_knows_halts_the_table() -> None:
    chain = opened(processor(FilterProcessor, fields=[{"path": "details.size", "op": "eq", "value": 5}]), place=MIRROR)
    with pytest.raises(ProcessorError) as failure:
        chain(batch({"op": "u", "after": '{"id":1}', "unchanged": ["details"]}))
    assert failure.value.code == "processor.unsent_value"
    assert "REPLICA IDENTITY FULL" in failure.value.hint
    assert failure.value.where == "public.orders"


def test_before_a_mirror_an_unwanted_row_becomes_a_delete_of_its_key() -> None:
    chain = opened(processor(FilterProcessor, fields=[{"path": "total", "op": "gt", "value": 5}]), place=MIRROR)
    rows = [{"after": f'{{"id":{n},"total":"{n}.00"}}', "key": f'{{"id":{n}}}'} for n in range(4, 8)]
    made = chain(batch(*rows, {"op": "d"}, {"op": "t", "key": None})).to_pylist()
    assert [(row["op"], row["after"]) for row in made] == [
        ("d", None),
        ("d", None),
        ("c", rows[2]["after"]),
        ("c", rows[3]["after"]),
        ("d", None),
        ("t", None),
    ]
    assert sum(chain.drops.values()) == 2


def test_changes_without_a_row_pass_predicates() -> None:
    without = [{"op": op, "key": None, "after": '{"total":"1"}'} for op in "tms"]
    assert kept({"fields": [{"path": "total", "op": "eq", "value": 2}]}, *without) == [True] * 3
    assert kept({"fields": [{"path": "total", "op": "eq", "value": 1}], "match": "any"}, *without) == [True] * 3


def test_operations() -> None:
    ops = [{"op": op, "after": '{"id":1}'} for op in "cudrtms"]
    assert kept({"ops": ["create", "delete"]}, *ops) == [True, False, True, False, False, False, False]
    assert kept({"ops": ["insert", "read", "truncate", "message", "schema"]}, *ops) == [
        *(True, False, False),
        *[True] * 4,
    ]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ({"include": ["orders"]}, [True, False, True, False]),
        ({"include": ["public.*"]}, [True, True, False, False]),
        ({"include": ["shop.public.orders"]}, [True, False, False, False]),
        ({"include": ["other.*.*", "*.audit"]}, [False, True, False, False]),
        ({"exclude": ["*.or*"]}, [False, True, False, True]),
        ({"include": ["public.*"], "exclude": ["shop.*.audit"]}, [True, False, False, False]),
        ({"include": ["mail.*"]}, [False, False, False, True]),
        ({"include": ["shop.*.welcome"]}, [False, False, False, False]),
    ],
)
def test_tables(gate: Mapping[str, Any], expected: list[bool]) -> None:
    """A logical message is a table without a schema, whose name is its prefix."""
    names = [("public", "orders"), ("public", "audit"), ("sales", "orders"), ("", "mail.welcome")]
    changes = [{"schema": schema, "table": name, "after": "{}"} for schema, name in names]
    assert kept({"tables": gate}, *changes) == expected


def test_tables_with_dots_in_their_names_stand_in_quotes() -> None:
    changes = [{"schema": "a.b", "table": "c", "after": "{}"}, {"schema": "b", "table": "c", "after": "{}"}]
    assert kept({"tables": {"include": ['"a.b".c']}}, *changes) == [True, False]
    assert kept({"tables": {"include": ["b.c"]}}, *changes) == [False, True]


RULED = [
    {"table": "users", "op": "c"},
    {"table": "users", "op": "d"},
    {"table": "orders", "op": "u"},
    {"table": "user_log", "op": "c", "database": "test"},
    {"table": "user_log", "op": "t", "database": "shop"},
]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"include": [{"table": "users"}, {"table": "orders"}]}, [1, 1, 1, 0, 0]),
        ({"include": [{"and": [{"database": "shop"}, {"table_pattern": "user_.*"}]}]}, [0, 0, 0, 0, 1]),
        ({"include": [{"database": "shop", "table_pattern": "^user"}]}, [1, 1, 0, 0, 1]),
        ({"include": [{"operations": ["insert", "update"]}]}, [1, 0, 1, 1, 0]),
        ({"exclude": [{"table": "*_log"}]}, [1, 1, 1, 0, 0]),
        ({"include": [{"table_pattern": "user"}], "exclude": [{"operations": ["delete"]}]}, [1, 0, 0, 1, 1]),
        ({"include": [{"not": {"or": [{"table": "users"}, {"database": "te*"}]}}]}, [0, 0, 1, 0, 1]),
        (
            {"include": [{"or": [{"table": "orders"}, {"fields": [{"path": "id", "op": "eq", "value": 7}]}]}]},
            [1, 1, 1, 0, 1],
        ),
    ],
)
def test_rules(rules: Mapping[str, Any], expected: list[int]) -> None:
    """Exclude wins, and a truncate has no id, so that nobody can tell."""
    rows = [{"after": '{"id":7}', "key": '{"id":7}', **change} for change in RULED]
    rows[3]["after"] = '{"id":8}'
    assert kept(rules, *rows) == [bool(each) for each in expected]


def test_drops_are_counted_by_the_gate_that_refused() -> None:
    settings = {
        "ops": ["create"],
        "tables": {"include": ["orders"]},
        "fields": [{"path": "id", "op": "eq", "value": 1}],
        "exclude": [{"database": "test"}],
    }
    changes = [
        {"op": "u", "table": "users"},
        {"table": "users"},
        {"after": '{"id":1}'},
        {"after": '{"id":2}'},
        {"after": '{"id":2}', "database": "test"},
    ]
    chain = opened(processor(FilterProcessor, **settings))
    assert chain(batch(*changes)).column("seq").to_pylist() == [2]
    assert {drop.reason: count for drop, count in chain.drops.items()} == {
        "ops": 1,
        "tables": 1,
        "fields": 1,
        "rules": 1,
    }


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ops": ["create"]}, "operations"),
        ({"fields": [{"path": "a", "op": "changed"}]}, "changed"),
        ({"exclude": [{"and": [{"not": {"operations": ["read"]}}]}]}, "operations"),
        ({"tables": {"include": ["a"]}}, None),
        ({"fields": [{"path": "a", "op": "exists"}]}, None),
        ({"include": [{"table_pattern": "a", "database": "b"}]}, None),
    ],
)
def test_what_breaks_a_mirror(settings: Mapping[str, Any], reason: str | None) -> None:
    found = processor(FilterProcessor, **settings).breaks_mirror()
    assert (found is None) if reason is None else (reason in found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "keeps everything"),
        ({"fields": [{"path": "a", "op": "regex", "value": "("}]}, "cannot be compiled"),
        ({"fields": [{"path": "a", "op": "regex", "value": 1}]}, "needs a text"),
        ({"fields": [{"path": "a", "op": "in", "value": 1}]}, "needs a list"),
        ({"fields": [{"path": "a", "op": "in", "value": []}]}, "needs a list"),
        ({"fields": [{"path": "a", "op": "eq", "value": [1]}]}, "one value"),
        ({"fields": [{"path": "a", "op": "eq"}]}, "needs a `value`"),
        ({"fields": [{"path": "a", "op": "gt", "value": True}]}, "a number or a text"),
        ({"fields": [{"path": "a", "op": "exists", "value": 1}]}, "compares with nothing"),
        ({"fields": [{"path": "a", "op": "is", "value": 1}]}, "Input should be"),
        ({"include": [{}]}, "condition is empty"),
        ({"include": [{"table_pattern": "("}]}, "cannot be compiled"),
        ({"tables": {"include": ["a.b.c.d"]}}, "no pattern of tables"),
        ({"tables": {"include": [""]}}, "no pattern of tables"),
        ({"ops": ["upsert"]}, "Input should be"),
    ],
)
def test_what_is_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        processor(FilterProcessor, **settings)


VALUES: tuple[Any, ...] = (
    1,
    1.1,
    -0.0,
    12.5,
    12345678901234567890,
    100000,
    True,
    False,
    "x",
    "",
    "12.50",
    "é😀",
    'a"b,}',
)
OPS = ("eq", "ne", "gt", "gte", "lt", "lte", "contains", "in", "not_in", "exists", "not_exists", "regex")
PATTERNS = ("^x$", "1", "[é😀]", "", "^.{2,}$")


def number(value: Any) -> Decimal | None:
    try:
        return None if isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        return None


def oracle(image: Any, path: str, op: str, value: Any) -> bool:
    """What a predicate says of an image, in plain Python."""
    found: Any = image
    for name in path.split(".") if path not in image else [path]:
        found = found.get(name) if isinstance(found, dict) else None
    if op in ("exists", "not_exists"):
        return (found is not None) == (op == "exists")
    if op in ("in", "not_in"):
        return any(equals(found, each) for each in value) == (op == "in")
    if found is None:
        return False
    if op in ("eq", "ne"):
        return equals(found, value) == (op == "eq")
    if op == "regex":
        return isinstance(found, str) and not hasattr(found, "digits") and re.search(value, found) is not None
    if op == "contains":
        inside = isinstance(found, str) and not hasattr(found, "digits") and isinstance(value, str) and value in found
        return inside or (isinstance(found, list) and any(equals(each, value) for each in found))
    pair: Any = (number(found), number(value)) if not isinstance(value, str) else (found, value)
    if None in pair or isinstance(found, dict | list | bool) or (isinstance(value, str) and hasattr(found, "digits")):
        return False
    answers: dict[str, bool] = {
        "gt": pair[0] > pair[1],
        "gte": pair[0] >= pair[1],
        "lt": pair[0] < pair[1],
        "lte": pair[0] <= pair[1],
    }
    return answers[op]


def equals(found: Any, value: Any) -> bool:
    if isinstance(value, bool) or isinstance(found, bool) or found is None:
        return found is value
    if isinstance(value, str):
        return isinstance(found, str) and not hasattr(found, "digits") and found == value
    return not isinstance(found, dict | list) and number(found) is not None and number(found) == number(value)


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_documents_against_an_oracle(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    images = [document(chance, 3, blank=chance.random() < 0.3) for _ in range(100)]
    numbers = [int(digits) for digits in re.findall(r"[:\[ ,](-?[1-9][0-9]{3,})\b", "".join(images))]
    rows = batch(*({"after": image} for image in images))
    meant = [plain(image) for image in images]
    for _ in range(60):
        op = chance.choice(OPS)
        value: Any = chance.choice((*VALUES, *numbers))
        if op in ("in", "not_in"):
            value = [value, chance.choice(VALUES)]
        if op in ("gt", "gte", "lt", "lte") and isinstance(value, bool):
            continue
        asked = {"path": _path(chance), "op": op} | ({} if op.endswith("exists") else {"value": value})
        if op == "regex":
            asked["value"] = chance.choice(PATTERNS)
        expected = [oracle(image, asked["path"], op, asked.get("value")) for image in meant]
        answers = _answers(asked, rows)
        wrong = [image for image, one, other in zip(images, answers, expected, strict=True) if one != other]
        assert not wrong, (json.dumps(asked), wrong[0])


@pytest.mark.parametrize("seed", range(5))
def test_random_changes_against_an_oracle(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    names = ("a", "b", "dot.ted")
    pairs = [(document(chance, 2, names=names), document(chance, 2, names=names)) for _ in range(100)]
    pairs += [(old, old) for old, _ in pairs[:20]]
    rows = batch(*({"op": "u", "before": old, "after": new} for old, new in pairs))
    for path in ("a", "b", "a.b", "b.a", "dot.ted", "a.b.a"):
        expected = [_text(old, path) != _text(new, path) for old, new in pairs]
        assert _answers({"path": path, "op": "changed"}, rows) == expected, path


def _path(chance: random.Random) -> str:
    if chance.random() < 0.2:
        return "dot.ted"
    return ".".join(chance.choice(["a", "b", "ab", "é", "a__b", "😀"]) for _ in range(chance.choice([1, 1, 2, 2, 3])))


def _answers(asked: Mapping[str, Any], rows: Any) -> list[bool]:
    """Which of these changes pass; nobody knows their columns."""
    nowhere = replace(PLACE, tables={1: table(id="int64")})
    chain = opened(processor(FilterProcessor, fields=[asked]), place=nowhere, keep_dropped=True)
    return [reason is None for reason in chain(rows).column("dropped").to_pylist()]


def _text(image: str, path: str) -> str | None:
    """The text of a value, which null and nothing are not."""
    text: str | None = image
    for name in [path] if path in split(image) else path.split("."):
        text = split(text).get(name) if text is not None and text.startswith("{") else None
    return None if text == "null" else text


class TestFilterByValue(ProcessorSuite):
    @pytest.fixture
    def processor(self) -> BatchProcessor:
        kept: BatchProcessor = processor(
            FilterProcessor,
            tables={"include": ["orders", "mail.*"]},
            fields=[{"path": "total", "op": "gt", "value": 10}, {"path": "details.r", "op": "lt", "value": 3}],
            match="any",
        )
        return kept


class TestFilterByOperation(ProcessorSuite):
    refuses = frozenset("ms")

    @pytest.fixture
    def processor(self) -> BatchProcessor:
        kept: BatchProcessor = processor(FilterProcessor, ops=["create", "delete", "truncate"])
        return kept
