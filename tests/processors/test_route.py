"""Routes: templates against a slow oracle, rules by cases."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.contracts import BatchProcessor
from tailrace.processors.filter import FilterProcessor
from tailrace.processors.route import RouteProcessor
from tailrace.testing.suites.processors import ProcessorSuite
from tests.processors.changes import PLACE, batch, opened, processor
from tests.processors.documents import NAMES, document
from tests.processors.filling import CHANGE, TEMPLATES, filled


def routes(rules: Sequence[Mapping[str, Any]], *changes: Mapping[str, Any]) -> list[dict[str, str] | None]:
    made = opened(processor(RouteProcessor, rules=list(rules)))(batch(*changes)).column("route").to_pylist()
    return [None if route is None else dict(route) for route in made]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_filled_as_the_oracle_fills_it(template: str) -> None:
    changes = batch(
        CHANGE, {"op": "d", "position": "0/1F#7", "before": '{"id":1,"name":"n"}'}, {"op": "t", "key": None}
    )
    made = opened(processor(RouteProcessor, rules=[{"topic": template}]))(changes).to_pylist()
    expected = [filled(template, row, tenant=PLACE.tenant, pipeline=PLACE.pipeline) for row in changes.to_pylist()]
    assert [dict(row["route"] or []).get("topic") for row in made] == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_documents_against_an_oracle(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    changes = batch(
        *(
            {
                "op": chance.choice("cudr"),
                "after": document(chance, 3, blank=chance.random() < 0.3),
                "before": chance.choice([None, document(chance, 1)]),
                "key": document(chance, 0),
            }
            for _ in range(100)
        )
    )
    templates = {f"h{n}": "".join(_part(chance) for _ in range(chance.randrange(1, 4))) for n in range(8)}
    made = opened(processor(RouteProcessor, rules=[{"headers": templates}]))(changes).to_pylist()
    for row in made:
        texts = {
            name: filled(each, row, tenant=PLACE.tenant, pipeline=PLACE.pipeline) for name, each in templates.items()
        }
        expected = {name: text for name, text in texts.items() if text is not None}
        assert json.loads(dict(row["route"] or []).get("headers", "{}")) == expected


def _part(chance: random.Random) -> str:
    """A piece of a template: text, a hole that is always filled, or one that reaches into an image."""
    if chance.random() < 0.4:
        return chance.choice(["x", "$$", "é😀", "-", "${op}", "${source.table}", "${event_id}", "${source.lsn}"])
    names = [name for name in NAMES if name and "." not in name]
    path = [chance.choice(names) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
    return f"${{{'.'.join([chance.choice(['after', 'after', 'before', 'key']), *path])}}}"


def test_the_first_rule_that_applies_decides() -> None:
    rules: list[dict[str, Any]] = [
        {"tables": ["audit"], "topic": "audit"},
        {"when": {"fields": [{"path": "total", "op": "gte", "value": 100}]}, "topic": "big", "key": "${after.id}"},
        {"when": {"operations": ["delete"]}, "topic": "gone", "partition_key": "${key.id}"},
        {"topic": "rest.${after.status}", "subject": "s", "stream": "t", "index": "i", "url": "http://x/${op}"},
    ]
    rest = {"subject": "s", "stream": "t", "index": "i"}
    assert routes(
        rules,
        {"table": "audit", "after": '{"id":1,"total":"500"}'},
        {"after": '{"id":1,"total":"500"}'},
        {"after": '{"id":1,"total":"99.99","status":"new"}'},
        {"op": "d", "before": '{"id":1,"total":"1"}'},
        {"op": "t", "key": None},
    ) == [
        {"topic": "audit"},
        {"topic": "big", "key": "1"},
        {"topic": "rest.new", "url": "http://x/c", **rest},
        {"topic": "gone", "partition_key": "1"},
        {"url": "http://x/t", **rest},  # it has no status: the sink's own topic stands
    ]


def test_a_condition_that_nobody_can_judge_does_not_apply() -> None:
    unsent = {"op": "u", "after": '{"id":1}', "unchanged": ["details"]}
    rule: dict[str, Any] = {"when": {"fields": [{"path": "details.size", "op": "eq", "value": 5}]}, "topic": "five"}
    assert routes([rule], unsent, {**unsent, "before": '{"details":{"size":5}}'}) == [None, {"topic": "five"}]
    assert routes([{"when": {"not": rule["when"]}, "topic": "x"}], unsent, {"op": "m", "after": "{}"}) == [None, None]


def test_headers_are_text_and_what_cannot_be_filled_is_left_out() -> None:
    rule = {"headers": {"who": "${after.name}", 'q"': "é\n", "none": "${after.gone}"}}
    made = routes([rule], {"after": '{"name":"a\\"b"}'}, {"after": "{}"})
    assert [json.loads((route or {})["headers"]) for route in made] == [{"who": 'a"b', 'q"': "é\n"}, {'q"': "é\n"}]
    assert routes([{"headers": {"none": "${after.gone}"}}], {"after": "{}"}) == [None]


def test_what_was_said_before_stays_unless_it_is_said_again() -> None:
    first = processor(RouteProcessor, rules=[{"topic": "a", "key": "k", "headers": {"x": "1", "y": "${after.n}"}}])
    second = processor(
        RouteProcessor, rules=[{"tables": ["orders"], "topic": "b", "headers": {"x": "2", "z": "${after.n}"}}]
    )
    chain = opened(first, second.model_copy(update={"id": "again"}))
    made = [
        dict(route or {})
        for route in chain(batch({"after": '{"n":5}'}, {"after": "{}"}, {"table": "t"})).column("route").to_pylist()
    ]
    assert [(route["topic"], route["key"], json.loads(route["headers"])) for route in made] == [
        ("b", "k", {"y": "5", "x": "2", "z": "5"}),
        ("b", "k", {"x": "2"}),
        ("a", "k", {"x": "1"}),
    ]


def test_dropped_changes_are_left_alone() -> None:
    no_one = processor(FilterProcessor, ops=["delete"])
    chain = opened(no_one, processor(RouteProcessor, rules=[{"topic": "x"}]), keep_dropped=True)
    assert chain(batch({"after": "{}"})).column("route").to_pylist() == [None]


def test_another_part_of_a_change_has_an_id_of_its_own() -> None:
    changes = batch({"part": "js:1", "synthetic": "js"}, {})
    made = opened(processor(RouteProcessor, rules=[{"key": "${event_id}"}]), place=replace(PLACE))(changes).to_pylist()
    expected = [filled("${event_id}", row, tenant="", pipeline="") for row in changes.to_pylist()]
    assert [dict(row["route"])["key"] for row in made] == expected


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "at least 1"),
        ([{"tables": ["a"]}], "says nothing of where to"),
        ([{"topic": "${after}"}], "a change has no `after`"),
        ([{"headers": {"a": "${nothing.at.all}"}}], "a change has no"),
        ([{"topic": "x", "when": {}}], "condition is empty"),
    ],
)
def test_what_is_refused(rules: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        processor(RouteProcessor, rules=rules)


class TestRoute(ProcessorSuite):
    @pytest.fixture
    def processor(self) -> BatchProcessor:
        rules = [
            {
                "when": {"fields": [{"path": "details.r", "op": "eq", "value": 1}]},
                "topic": "one",
                "headers": {"a": "b"},
            },
            {"topic": "${source.table}", "key": "${key.id}", "headers": {"status": "${after.status}"}},
        ]
        made: BatchProcessor = processor(RouteProcessor, rules=rules)
        return made
