"""The Python processor: over events and over batches, and what becomes of changes that it fails for."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from tailrace.change import PROCESSED, event_id
from tailrace.errors import ProcessorError
from tailrace.processors.chain import with_columns
from tailrace.processors.python import PythonProcessor
from tests.processors.batches import PLACE, batch, change, column, orders


def processor(code: str = "", **settings: Any) -> PythonProcessor:
    inline = {"inline": code} if code else {}
    return PythonProcessor.from_document({"id": "py", **inline, **settings})


def ran(code: str, changes: pa.RecordBatch, **settings: Any) -> pa.RecordBatch:
    found = processor(code, **settings).open(PLACE)(changes)
    assert found.schema == PROCESSED
    return found


def each(*lines: str) -> str:
    """A function that does this with an event."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"def process(event):\n{body}    return event\n"


class TestEvents:
    def test_what_an_event_has(self) -> None:
        one = change(7, {"id": 7}, op="u", before={"id": 7}, unchanged=["note"], tags=["x"], headers=[("a", "b")])
        code = "import json\n" + each("event['tags'] = [json.dumps(event)]")
        [event] = [json.loads(tags[0]) for tags in column(ran(code, batch(one)), "tags")]
        assert event["event_id"] == event_id("shop", "0/7", 0)
        assert (event["op"], event["table"], event["key"], event["unchanged"]) == ("u", "orders", {"id": 7}, ["note"])
        assert (event["before"], event["after"], event["headers"]) == ({"id": 7}, {"id": 7}, {"a": "b"})
        assert event["source"]["schema"] == "public"

    def test_nothing_that_is_not_touched_changes(self) -> None:
        changes = batch(change(0, '{"a": 1.10,"b":12345678901234567890, "c":{"x":1,"x":2},"d":"\\u00e9"}'))
        assert ran(each(), changes) == changes
        [after] = column(ran(each("event['after']['e'] = 'ü'"), changes), "after")
        assert after == '{"a":1.10,"b":12345678901234567890,"c":{"x":1,"x":2},"d":"\\u00e9","e":"ü"}'

    def test_numbers_inside_a_changed_document(self) -> None:
        changes = batch(change(0, '{"doc":{"a":1.10,"n":[0.12345678901234567890123],"b":12345678901234567890}}'))
        [after] = column(ran(each("event['after']['doc']['c'] = float('nan')"), changes), "after")
        assert after == '{"doc":{"a":1.10,"n":[0.12345678901234567890123],"b":12345678901234567890,"c":"NaN"}}'

    def test_decimals_are_exact(self) -> None:
        code = "from decimal import Decimal\n" + each(
            "event['after']['tax'] = Decimal(event['after']['total']) * Decimal('0.19')"
        )
        assert column(ran(code, orders(2)), "after")[1] == '{"id":1,"total":"10.00","tax":"1.9000"}'

    def test_drop_fan_out_and_create(self) -> None:
        code = """def process(event):
    number = event['after']['id']
    if number == 0:
        return None
    if number == 1:
        return [{**event, 'after': {'copy': 1}}, event, {'op': 'c', 'after': {'new': 1}}]
    return {**event, 'tags': ['copied']}
"""
        found = ran(code, orders(3))
        assert column(found, "seq") == [0, 1, 1, 1, 2]
        assert column(found, "dropped") == ["dropped", None, None, None, None]
        assert column(found, "part") == [None, None, "py:1", "py:2", None]
        assert column(found, "synthetic") == [None, None, "py", "py", None]
        assert column(found, "after")[2:4] == ['{"copy":1}', '{"new":1}']
        assert column(found, "tags")[4] == ["copied"]

    def test_a_route(self) -> None:
        code = each("event['route'] |= {'topic': 'vip', 'headers': {'n': 1}}")
        [route] = column(ran(code, batch(change(0, {}, route=[("subject", "s")]))), "route")
        assert dict(route) == {"subject": "s", "topic": "vip", "headers": '{"n": "1"}'}

    @pytest.mark.parametrize(
        "line",
        [
            "return 7",
            "return [event, 'x']",
            "event['op'] = 'z'",
            "event['after'] = None",
            "event['after'] = [1]",
            "event['table'] = 'others'",
            "event['tags'] = 'x'",
            "event['route'] = {'topik': 'x'}",
            "event['after']['x'] = object()",
            "event['after']['x'] = event['after']",
        ],
    )
    def test_what_cannot_be_used_is_an_error(self, line: str) -> None:
        with pytest.raises(ProcessorError) as caught:
            ran(each(line), orders(1))
        assert caught.value.code == "processor.bad_answer"


class TestFailures:
    CODE = each(
        "if event['after']['id'] == 3:", "    raise ValueError(event['after']['total'])", "event['tags'] = ['ok']"
    )

    def test_one_bad_event_is_dropped_alone(self) -> None:
        found = ran(self.CODE, orders(6), on_error="skip")
        assert column(found, "dropped") == [None, None, None, "error", None, None]
        assert column(found, "tags") == [["ok"], ["ok"], ["ok"], None, ["ok"], ["ok"]]

    def test_the_error_names_function_and_line_and_no_value(self) -> None:
        with pytest.raises(ProcessorError) as caught:
            ran(self.CODE, orders(6))
        assert caught.value.as_dict() == {
            "code": "processor.failed",
            "message": "'py' failed with ValueError in process, line 3",
            "hint": "`tailrace test` shows more; `on_error` may set such changes aside, or drop them, counted",
            "where": "public.orders, c at offset 3",
        }
        with pytest.raises(ProcessorError, match=r"line 3: ValueError: 30\.00"):
            processor(self.CODE).open(replace(PLACE, outspoken=True))(orders(6))

    def test_of_a_module_the_file_too(self) -> None:
        made = processor(function="tests.processors.test_python:divides")
        with pytest.raises(ProcessorError, match=r"ZeroDivisionError in divides, line \d+ of test_python\.py"):
            made.open(PLACE)(orders(1))

    def test_an_image_that_python_cannot_read(self) -> None:
        changes = batch(change(0, '{"n":' + "7" * 5000 + "}"), change(1, {"id": 1}))
        assert column(ran(each(), changes, on_error="skip"), "dropped") == ["error", None]


def divides(event: dict[str, Any]) -> dict[str, Any]:
    event["after"]["x"] = 1 / event["after"]["id"]
    return event


def tagged(changes: pa.RecordBatch) -> pa.RecordBatch:
    """A batch function: tags all, drops the first by leaving it out, doubles the second."""
    tags = pa.array([["x"]] * changes.num_rows, pa.list_(pa.string()))
    changes = with_columns(changes, tags=tags)
    return changes.take(pa.array([1, 1, *range(2, changes.num_rows)]))


def fails_for_three(changes: pa.RecordBatch) -> pa.RecordBatch:
    if 3 in changes.column("seq").to_pylist():
        raise KeyError("three")
    return changes


def other_columns(changes: pa.RecordBatch) -> pa.RecordBatch:
    return changes.select(["seq"])


def later(changes: pa.RecordBatch) -> pa.RecordBatch:
    return with_columns(changes, ts_us=pc.add(changes.column("ts_us"), 1))


def unknown(changes: pa.RecordBatch) -> pa.RecordBatch:
    return with_columns(changes, seq=pc.add(changes.column("seq"), 1_000_000))


def lists(changes: pa.RecordBatch) -> pa.RecordBatch:
    return with_columns(changes, after=pa.array(["[1]"] * changes.num_rows))


class TestBatches:
    def test_a_function_over_batches(self) -> None:
        found = processor(function=f"{__name__}:tagged", mode="batch").open(PLACE)(orders(4))
        assert column(found, "seq") == [0, 1, 1, 2, 3]
        assert column(found, "dropped") == ["dropped", None, None, None, None]
        assert column(found, "part") == [None, None, "py:1", None, None]
        assert column(found, "tags") == [None, ["x"], ["x"], ["x"], ["x"]]

    def test_a_failing_change_is_found_by_halves(self) -> None:
        made = processor(function=f"{__name__}:fails_for_three", mode="batch", on_error="skip")
        assert column(made.open(PLACE)(orders(6)), "dropped") == [None, None, None, "error", None, None]

    @pytest.mark.parametrize("name", ["other_columns", "later", "unknown", "lists", "divides"])
    def test_what_cannot_be_used_is_an_error(self, name: str) -> None:
        with pytest.raises(ProcessorError):
            processor(function=f"{__name__}:{name}", mode="batch").open(PLACE)(orders(2))

    def test_inline(self) -> None:
        code = "import pyarrow.compute as pc\ndef process(batch):\n    return batch.filter(pc.equal(batch['op'], 'c'))"
        changes = batch(change(0, {"id": 0}), change(1, op="d"))
        assert column(ran(code, changes, mode="batch"), "dropped") == [None, "dropped"]


class TestDocuments:
    @pytest.mark.parametrize(
        ("settings", "code", "said"),
        [
            ({"inline": "def process(event):\n  return (event\n"}, "config.bad_script", "line 2, column"),
            ({}, "config.invalid_value", "one of `function` and `inline`"),
            ({"inline": "x = 1", "function": "a:b"}, "config.invalid_value", "one of"),
            ({"function": "a.b"}, "string_pattern_mismatch", "pattern"),
        ],
    )
    def test_what_is_refused(self, settings: dict[str, Any], code: str, said: str) -> None:
        with pytest.raises(ValidationError) as caught:
            PythonProcessor.from_document({"id": "py", **settings})
        [problem] = caught.value.errors()
        assert problem["type"] == code
        assert said in problem["msg"]

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"function": "no.such:thing"}, "no.such:thing"),
            ({"function": "json:no_such"}, "json:no_such"),
            ({"function": "json:decoder"}, "no function"),
            ({"inline": "other = 1"}, "no function process"),
            ({"inline": "\nraise ValueError('x')"}, "ValueError in <module>, line 2"),
        ],
    )
    def test_what_cannot_be_loaded(self, settings: dict[str, Any], said: str) -> None:
        with pytest.raises(ProcessorError, match=said) as caught:
            PythonProcessor.from_document({"id": "py", **settings}).open(PLACE)
        assert caught.value.code == "processor.no_function"

    def test_traits(self) -> None:
        made = processor(each())
        assert made.preserves() == frozenset()
        assert processor(each(), row_wise=True).preserves() == {"key"}
        assert pickle.loads(pickle.dumps(made)) == made

    def test_row_wise_is_held_to(self) -> None:
        with pytest.raises(ProcessorError) as caught:
            ran(each("event['key'] = {'id': 9}"), orders(1), row_wise=True)
        assert caught.value.code == "processor.not_row_wise"

    def test_declared_columns(self) -> None:
        code = each("event['after']['tax'] = '1.00'", "event['after']['more'] = 1")
        found = ran(code, orders(1), columns={"tax": "decimal(12,2)"})
        assert column(found, "after") == ['{"id":0,"total":"0.00","tax":"1.00","_undeclared":{"more":1}}']
