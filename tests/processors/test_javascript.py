"""The JavaScript processor: what a script sees, may do and may not, and what becomes of changes that it fails for."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.change import PROCESSED, event_id
from tailrace.errors import ProcessorError
from tailrace.processors.chain import Chain
from tailrace.processors.javascript import JavaScriptProcessor
from tailrace.testing.waiting import eventually
from tests.processors.batches import PLACE, batch, change, column, orders

SEED = """
function processBatch(events) {
  return events.map(event => {
    event.tags = event.tags || [];
    if (event.table.includes('orders')) {
      event.tags.push('entity:order');
      if (event.after && event.after.total > 1000) {
        event.tags.push('priority:high');
      }
    }
    event.tags.push('enriched');
    return event;
  });
}
"""


def processor(script: str, **more: Any) -> JavaScriptProcessor:
    limits = more.pop("limits", {"mem_mb": 32})
    return JavaScriptProcessor.from_document({"id": "js", "inline": script, "limits": limits, **more})


def ran(script: str, changes: pa.RecordBatch, **more: Any) -> pa.RecordBatch:
    found = processor(script, **more).open(PLACE)(changes)
    assert found.schema == PROCESSED
    return found


def each(body: str) -> str:
    """A script that does this with every event."""
    return f"function processBatch(events) {{ for (const ev of events) {{ {body} }} }}"


def seen(expression: str, changes: pa.RecordBatch) -> list[Any]:
    """What an expression over `ev` is for each change, as JSON."""
    tagged = ran(each(f"ev.tags = [JSON.stringify({expression})]"), changes)
    return [json.loads(tags[0]) for tags in column(tagged, "tags")]


class TestEvents:
    def test_the_example_that_everybody_copies(self) -> None:
        changes = batch(change(0, {"id": 0, "total": 1500}), change(1, {"id": 1, "total": 3}, table="order_items"))
        found = ran(SEED, changes)
        assert column(found, "tags") == [
            ["entity:order", "priority:high", "enriched"],
            ["enriched"],
        ]
        assert found.drop_columns(["tags"]) == changes.drop_columns(["tags"])

    def test_what_an_event_has(self) -> None:
        one = change(
            7, {"id": 7}, op="u", before={"id": 7, "v": 1}, unchanged=["note"], headers=[("a", "b")], tags=["x"]
        )
        [event] = seen("ev", batch(one))
        assert {name: event[name] for name in ("op", "table", "key", "before", "after", "tags", "unchanged")} == {
            "op": "u",
            "table": "orders",
            "key": {"id": 7},
            "before": {"id": 7, "v": 1},
            "after": {"id": 7},
            "tags": ["x"],
            "unchanged": ["note"],
        }
        assert event["event_id"] == event_id("shop", "0/7", 0)
        assert (event["ts_ms"], event["ts_us"]) == (1_700_000_000_000, 1_700_000_000_000_007)
        assert (event["tenant_id"], event["headers"], event["tx_end"]) == ("acme", {"a": "b"}, True)
        assert event["transaction"] == {"id": "7", "total_order": 1}
        assert event["source"].items() >= {
            "connector": "postgresql", "name": "shop-out", "db": "shop", "schema": "public", "table": "orders"
        }.items()  # fmt: skip

    def test_truncates_and_schema_changes_pass_it_by(self) -> None:
        changes = batch(change(0, op="t", key=None), change(1, {"id": 1}), change(2, {"version": 3}, op="s"))
        found = ran("function processBatch(events) { return []; }", changes)
        assert column(found, "dropped") == [None, "dropped", None]

    def test_only_tables_that_it_is_for(self) -> None:
        changes = batch(change(0, {"id": 0}, table="items"), change(1, {"id": 1}), change(2, {"id": 2}, schema="eu"))
        for tables, expected in ((["orders"], [1, 2]), (["public.*"], [0, 1]), (["eu.orders", "items"], [0, 2])):
            found = ran(each("ev.tags.push('x')"), changes, tables=tables)
            assert [place for place, tags in enumerate(column(found, "tags")) if tags] == expected

    def test_a_message_that_is_no_object_passes_unless_it_is_changed(self) -> None:
        message = change(0, "[1, 2]", op="m", key=None)
        assert column(ran(each("ev.tags.push(String(ev.after[0]))"), batch(message)), "after") == ["[1, 2]"]
        with pytest.raises(ProcessorError, match="objects or null"):
            ran(each("ev.after = [3]"), batch(message))


class TestAnswers:
    @pytest.mark.parametrize("answer", ["events", "undefined", "null"])
    def test_nothing_that_is_not_touched_changes(self, answer: str) -> None:
        changes = orders(3)
        assert ran(f"function processBatch(events) {{ return {answer}; }}", changes) == changes

    def test_an_object_is_an_answer_of_one(self) -> None:
        found = ran("function processBatch(events) { return events[1]; }", orders(3))
        assert column(found, "dropped") == ["dropped", None, "dropped"]

    def test_what_is_absent_is_dropped_and_counted(self) -> None:
        chain = Chain((processor("function processBatch(events) { return events.filter(e => e.after.id % 2); }"),))
        opened = chain.open(PLACE)
        assert column(opened(orders(5)), "seq") == [1, 3]
        assert [(drop.processor, drop.reason, count) for drop, count in opened.drops.items()] == [("js", "dropped", 3)]

    def test_null_in_the_list_is_absent(self) -> None:
        found = ran("function processBatch(events) { return events.map(e => e.after.id ? e : null); }", orders(2))
        assert column(found, "dropped") == ["dropped", None]

    @pytest.mark.parametrize(
        "script",
        [
            "function processBatch(events) { return 7; }",
            "function processBatch(events) { return [7]; }",
            "async function processBatch(events) { return events; }",
            each("ev.after = 'text'"),
            each("ev.after = null"),
            each("ev.op = 'z'"),
            each("ev.table = 'others'"),
            each("ev.tags = 'x'"),
            each("ev.route({topik: 'x'})"),
        ],
    )
    def test_what_cannot_be_used_is_an_error(self, script: str) -> None:
        with pytest.raises(ProcessorError) as caught:
            ran(script, orders(2))
        assert caught.value.code == "processor.bad_answer"

    def test_the_order_is_that_of_the_log(self) -> None:
        assert ran("function processBatch(events) { return events.reverse(); }", orders(3)) == orders(3)

    def test_a_copy_instead_of_the_change_is_the_change(self) -> None:
        script = "function processBatch(events) { return events.map(e => ({...e, after: {...e.after, x: 1}})); }"
        found = ran(script, orders(2))
        assert column(found, "after") == ['{"id":0,"total":"0.00","x":1}', '{"id":1,"total":"10.00","x":1}']
        assert column(found, "synthetic") == [None, None]
        through_json = "function processBatch(events) { return JSON.parse(JSON.stringify(events)); }"
        assert ran(through_json, orders(2)) == orders(2)

    def test_fan_out(self) -> None:
        script = """function processBatch(events) {
          return events.flatMap(e => [{...e, after: {...e.after, copy: 1}}, e, {...e, op: 'u'}]);
        }"""
        found = ran(script, orders(2))
        assert column(found, "seq") == [0, 0, 0, 1, 1, 1]
        assert column(found, "synthetic") == [None, "js", "js", None, "js", "js"]
        assert column(found, "part") == [None, "js:1", "js:2", None, "js:1", "js:2"]
        assert column(found, "op")[:3] == ["c", "c", "u"]
        assert column(found, "after")[:2] == ['{"id":0,"total":"0.00"}', '{"id":0,"total":"0.00","copy":1}']
        again = processor(script).model_copy(update={"id": "more"}).open(PLACE)(found)
        assert column(again, "part")[3:6] == ["js:1", "js:1/more:1", "js:1/more:2"]

    def test_ids_of_what_is_made_do_not_depend_on_how_batches_are_cut(self) -> None:
        script = "function processBatch(events) { return events.flatMap(e => [e, {...e}, {op: 'c', after: {n: 1}}]); }"
        step = processor(script).open(PLACE)
        whole = step(orders(9))
        cut = pa.Table.from_batches([step(orders(9).slice(at, 2)) for at in range(0, 9, 2)])
        assert cut.to_pylist() == whole.to_pylist()

    def test_what_it_makes_stands_behind_the_event_before_it(self) -> None:
        script = "function processBatch(events) { return [events[0], {op: 'c', after: {alarm: true}}, events[1]]; }"
        found = ran(script, batch(change(0, {"id": 0}, tags=["old"], route=[("topic", "t")]), change(1, {"id": 1})))
        assert column(found, "seq") == [0, 0, 1]
        made = found.to_pylist()[1]
        assert (made["op"], made["key"], made["before"], made["after"]) == ("c", '{"id":0}', None, '{"alarm":true}')
        assert (made["synthetic"], made["tags"], made["route"], made["tx_id"]) == ("js", [], [], "0")

    def test_a_delete_can_become_of_an_update(self) -> None:
        found = ran(
            each("if (ev.after.gone) { ev.op = 'd'; ev.after = null; }"), batch(change(0, {"gone": True}, op="u"))
        )
        assert (column(found, "op"), column(found, "after")) == (["d"], [None])


class TestRoutes:
    def test_of_events_and_of_new_objects(self) -> None:
        script = """function processBatch(events) {
          events[0].route({topic: 'old', key: 'k'});
          events[0].route({topic: 'a', headers: {n: 1, none: null}});
          return [events[0], route({op: 'c', after: {}}, {topic: 'b', partition_key: 7})];
        }"""
        found = ran(script, batch(change(0, {"id": 0}, route=[("topic", "t"), ("subject", "s")])))
        assert [dict(route) for route in column(found, "route")] == [
            {"topic": "a", "subject": "s", "headers": '{"n":"1"}'},
            {"topic": "b", "partition_key": "7"},
        ]


class TestExactness:
    IMAGE = (
        '{"id":9223372036854775807,"low":-9223372036854775808,"u":18446744073709551615, "price": 1.10 ,'
        '"doc":{"b": 1e2,"a":1,"a":2,"9":0.12345678901234567890123,"1":12345678901234567890},'
        '"t":"\\u00e9\\/x","n":null}'
    )

    @pytest.mark.parametrize(
        "script",
        [
            each(""),
            each("ev.after.id; ev.key; ev.before"),
            each("ev.after = JSON.parse(JSON.stringify(ev.after))"),
            each("ev.after = {...ev.after}"),
            each("ev.after.x = 1; delete ev.after.x"),
        ],
    )
    def test_an_image_that_did_not_change_keeps_its_text(self, script: str) -> None:
        changes = batch(change(0, self.IMAGE, op="u", before=self.IMAGE))
        if "parse" not in script:
            assert ran(script, changes) == changes
            return
        # Through JSON text 64-bit integers become numbers: that is the language, and no silent change of others.
        found = json.loads(column(ran(script, changes), "after")[0])
        assert found["price"] == 1.1

    def test_members_that_did_not_change_keep_theirs(self) -> None:
        [after] = column(ran(each("ev.after.n = 5; ev.after.more = 'ü'"), batch(change(0, self.IMAGE))), "after")
        expected = self.IMAGE.replace(", ", ",").replace(": 1.10 ", ":1.10").replace('"n":null', '"n":5,"more":"ü"')
        assert after.replace(": 1e2", ":1e2") == expected.replace(": 1e2", ":1e2")
        assert '{"b": 1e2,"a":1,"a":2,' in after

    def test_numbers_inside_a_changed_document_too(self) -> None:
        [after] = column(ran(each("ev.after.doc.new = true"), batch(change(0, self.IMAGE))), "after")
        assert '"1":12345678901234567890' in after
        assert '"9":0.12345678901234567890123' in after
        assert '"b":1e2' in after

    def test_integers_beyond_2_53_are_exact_to_scripts(self) -> None:
        changes = batch(change(0, '{"id":9223372036854775806,"v":5}'))
        assert column(ran(each("ev.after.id += 1n"), changes), "after") == ['{"id":9223372036854775807,"v":5}']
        assert seen("[typeof ev.after.id, typeof ev.after.v]", changes) == [["bigint", "number"]]

    def test_keys_are_exact(self) -> None:
        changes = batch(change(0, {"id": 1}, key='{"id":9223372036854775807}'))
        assert ran(each("ev.key.id; ev.after.id"), changes) == changes
        assert column(ran(each("ev.key.more = 1"), changes), "key") == ['{"id":9223372036854775807,"more":1}']

    def test_many_random_images(self) -> None:
        import random

        luck = random.Random(7)

        def value(depth: int) -> str:
            choices = [
                "1.50",
                "-0.0",
                "1e400",
                "12345678901234567890",
                '"a\\u0041"',
                "null",
                " [1 , 2]",
                '"\\ud83d"',
                "-7",
            ]
            if depth and luck.random() < 0.3:
                members = ",".join(f'"{luck.choice("abc19")}": {value(depth - 1)}' for _ in range(3))
                return "{" + members + "}"
            return luck.choice(choices)

        images = ["{" + ",".join(f'"c{n}":{value(2)}' for n in range(5)) + "}" for _ in range(200)]
        changes = batch(*(change(number, image) for number, image in enumerate(images)))
        assert ran(each("JSON.stringify(ev.after)"), changes) == changes
        added = column(ran(each("ev.after.added = 1"), changes), "after")
        for image, after in zip(images, added, strict=True):
            assert after.replace(" ", "") == (image[:-1] + ',"added":1}').replace(" ", "")


HANG = "if (ev.after.id === 3) { while (true) {} }"
NATIVE_HANG = "if (ev.after.id === 3) { 'a'.repeat(4e6).indexOf('a'.repeat(2e6) + 'b') }"
DIGITS = "if (ev.after.id === 3) { (2n ** 1000000n).toString() }"
EAT = "if (ev.after.id === 3) { const all = []; while (true) all.push(new Uint8Array(1 << 20).fill(1)); }"
EAT_OBJECTS = "if (ev.after.id === 3) { let all = {}; for (let i = 0; true; i++) all['k' + i] = [i]; }"
REGEX = "if (ev.after.id === 3) { /(a+)+$/.test('a'.repeat(40) + 'b') }"
THROW = "if (ev.after.id === 3) { throw new Error('secret ' + ev.after.total) }"
DEEP = "if (ev.after.id === 3) { const f = () => f() + 1; f() }"
CATCHES = "if (ev.after.id === 3) { while (true) { try { while (true) {} } catch (e) {} finally { continue } } }"


class TestFailures:
    @pytest.mark.parametrize("body", [HANG, NATIVE_HANG, DIGITS, EAT, EAT_OBJECTS, REGEX, THROW, DEEP, CATCHES])
    def test_one_bad_event_is_dropped_alone(self, body: str) -> None:
        limits = {"cpu_ms": 150, "mem_mb": 32, "timeout_ms": 10_000}
        step = processor(each(f"{body} ev.tags.push('ok')"), on_error="skip", limits=limits).open(PLACE)
        found = step(orders(6))
        assert column(found, "dropped") == [None, None, None, "error", None, None]
        assert column(found, "tags") == [["ok"], ["ok"], ["ok"], None, ["ok"], ["ok"]]
        assert column(step(orders(2)), "tags") == [["ok"], ["ok"]]

    @pytest.mark.parametrize(
        ("body", "code", "said"),
        [
            (HANG, "processor.limit", "cpu_ms: 150"),
            (NATIVE_HANG, "processor.limit", "cpu_ms: 150"),
            (EAT, "processor.limit", "mem_mb: 32"),
            (THROW, "processor.failed", "Error at line 1, column"),
            (
                "if (ev.after.id === 3) { ev.after.nested.x }",
                "processor.failed",
                "read property 'x' of undefined at line 1",
            ),
            ("if (ev.after.id === 3) { ev.after.id + 1n }", "processor.failed", "TypeError"),
        ],
    )
    def test_the_sink_stops_with_the_reason(self, body: str, code: str, said: str) -> None:
        limits = {"cpu_ms": 150, "mem_mb": 32, "timeout_ms": 10_000}
        with pytest.raises(ProcessorError, match=said) as caught:
            ran(each(body), orders(6), limits=limits)
        assert (caught.value.code, caught.value.where) == (code, "public.orders, c at offset 3")
        assert "secret" not in str(caught.value.as_dict())
        assert "30.00" not in str(caught.value.as_dict())

    def test_wall_time_counts_too(self) -> None:
        limits = {"cpu_ms": 20_000, "timeout_ms": 300}
        with pytest.raises(ProcessorError, match="timeout_ms: 300 of wall time"):
            ran(each("while (true) {}"), orders(1), limits=limits)

    def test_who_tries_it_out_is_told_more(self) -> None:
        from dataclasses import replace

        with pytest.raises(ProcessorError, match=r"secret 30\.00"):
            processor(each(THROW)).open(replace(PLACE, outspoken=True))(orders(6))

    def test_a_batch_that_only_fails_as_a_whole_is_halved(self) -> None:
        script = "function processBatch(events) { if (events.length > 2) throw new Error('too many'); return events; }"
        assert ran(script, orders(9)) == orders(9)

    def test_what_a_failed_call_left_behind_is_gone(self) -> None:
        script = """let calls = 0;
        function processBatch(events) {
          calls += 1;
          for (const ev of events) { if (ev.after.id === 3) throw new Error(); ev.tags.push(String(calls)); }
        }"""
        assert column(ran(script, orders(4), on_error="skip"), "tags") == [["1"], ["1"], ["1"], None]

    def test_pieces_are_of_a_bounded_size(self) -> None:
        script = "function processBatch(events) { for (const ev of events) ev.tags.push(String(events.length)); }"
        sizes = [tags[0] for tags in column(ran(script, orders(2300)), "tags")]
        assert (sizes[0], sizes[1999], sizes[2299]) == ("1000", "1000", "300")
        large = batch(*(change(number, {"v": "x" * 3_000_000}) for number in range(3)))
        assert column(ran(script, large, limits={}), "tags") == [["1"], ["1"], ["1"]]

    def test_an_interrupted_engine_is_replaced(self) -> None:
        from tailrace.processors.javascript.process import ENGINES

        step = processor(each("ev.tags.push('x')")).open(PLACE)
        step(orders(1))
        for engine in ENGINES._idle:
            assert engine._child is not None
            engine._child.kill()
        assert column(step(orders(1)), "tags") == [["x"]]


class TestPromises:
    @pytest.mark.parametrize(
        "script", [each("ev.key = {id: 9}"), "function processBatch(e) { return [...e, {...e[0]}]; }"]
    )
    def test_row_wise_is_held_to(self, script: str) -> None:
        ran(script, orders(1))
        with pytest.raises(ProcessorError) as caught:
            ran(script, orders(1), row_wise=True)
        assert caught.value.code == "processor.not_row_wise"

    def test_traits(self) -> None:
        script = each("")
        assert processor(script).preserves() == frozenset()
        assert "row_wise" in str(processor(script).breaks_mirror())
        assert processor(script, row_wise=True).preserves() == {"key"}
        assert processor(script, row_wise=True).breaks_mirror() is None

    def test_it_pickles(self) -> None:
        made = processor(each("ev.tags.push('x')"))
        assert pickle.loads(pickle.dumps(made)) == made


class TestColumns:
    def test_the_shape_of_a_table(self) -> None:
        table = PLACE.tables[1]
        assert processor(each("")).shape(table) is None
        assert processor(each(""), tables=["items"]).shape(table) == table
        shape = processor(each(""), columns={"tax": "decimal(12,2)", "note": "json"}).shape(table)
        assert shape is not None
        assert [(each.name, str(each.kind), each.number) for each in shape.columns] == [
            ("id", "int64", 1),
            ("total", "decimal(12,2)", 2),
            ("note", "json", 3),
            ("tax", "decimal(12,2)", 0),
            ("_undeclared", "json", 0),
        ]

    def test_what_is_not_declared_is_gathered(self) -> None:
        script = each("ev.after.tax = '1.00'; ev.after.more = [1]; ev.after.other = 'x'")
        found = ran(script, orders(1), columns={"tax": "decimal(12,2)"})
        assert column(found, "after") == ['{"id":0,"total":"0.00","tax":"1.00","_undeclared":{"more":[1],"other":"x"}}']

    def test_what_is_set_was_sent_and_what_is_left_out_was_not(self) -> None:
        changes = batch(change(0, {"id": 0}, op="u", unchanged=["total", "note"]))
        found = ran(each("ev.after.note = 'new'"), changes, columns={"tax": "decimal(12,2)"})
        assert column(found, "unchanged") == [["total", "tax"]]
        found = ran(each("ev.after.tax = '0.00'"), changes, columns={"tax": "decimal(12,2)"})
        assert column(found, "unchanged") == [["total", "note"]]
        made = processor(each(""), columns={"tax": "decimal(12,2)"})
        assert made.unsent(["note"], PLACE.tables[1]) == ("note", "tax")
        assert made.unsent([], PLACE.tables[1]) == ()


class TestDocuments:
    @pytest.mark.parametrize(
        ("settings", "code", "said"),
        [
            (
                {"inline": "function processBatch(events) {\n  return events.map(e => ;\n}"},
                "config.bad_script",
                "line 2",
            ),
            ({"inline": "const other = 1;"}, "config.bad_script", "no function processBatch"),
            ({"inline": "while (true) {}"}, "config.bad_script", "limit"),
            ({"inline": "\nnope();"}, "config.bad_script", "nope is not defined at line 2"),
            ({"columns": {"x": "varchar"}}, "value_error", "there is no kind 'varchar'"),
            ({"limits": {"cpu_ms": 0}}, "greater_than_equal", "1"),
        ],
    )
    def test_what_is_refused(self, settings: dict[str, Any], code: str, said: str) -> None:
        with pytest.raises(ValidationError) as caught:
            JavaScriptProcessor.from_document({"id": "js", "inline": each(""), **settings})
        [problem] = caught.value.errors()
        assert problem["type"] == code
        assert said in problem["msg"]


def test_the_console_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ran(each("console.log('hello', {a: 1}, 2n); console.warn('w')"), orders(1))
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "js: hello {\"a\":1} 2"),
        ("WARNING", "js: w"),
    ]  # fmt: skip
    caplog.clear()
    ran(each("console.log('much')"), orders(2000))
    assert len(caplog.records) < 250


def test_no_engine_outlives_its_process() -> None:
    code = (
        "from tests.processors.test_javascript import *\n"
        "from tailrace.processors.javascript.process import ENGINES\n"
        "ran(each(''), orders(1))\n"
        "print(ENGINES._idle[0]._child.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    eventually(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
