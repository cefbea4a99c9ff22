"""`tailrace test`, as a user runs it: what a pipeline's processors make of samples, and of a log."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from tailrace.changelog import LogWriter
from tailrace.surfaces.cli import app
from tailrace.testing.captures import Row, capture, insert

PIPELINE = """
metadata: {name: shop, tenant: acme}
spec:
  source:
    type: postgres
    config: {id: shop, dsn: "postgres://u@localhost/shop", tables: [public.orders]}
  processors:
    - type: javascript
      id: enrich
      inline: |
SCRIPT
  sinks:
    - type: console
      config:
        id: screen
        processors:
          - {type: javascript, id: last, inline: "function processBatch(all) { return all.filter(e => e.op !== 'd') }"}
    - {type: console, config: {id: plain}}
"""
ENRICH = """
function processBatch(events) {
  return events.flatMap(event => {
    if (!event.after) return event;
    console.log('order', event.after.id);
    if (event.after.total > 1000) {
      event.after.vip = true;
      event.after.total = 0;
      delete event.after.note;
      event.route({topic: 'vip'});
      return [event, {...event, after: {copy: 1}}];
    }
    return event;
  });
}
"""
SAMPLES = [
    {"table": "public.orders", "op": "c", "key": {"id": 1}, "after": {"id": 1, "total": 5, "note": "a"}},
    {"table": "orders", "key": {"id": 2}, "after": {"id": 2, "total": 1500, "note": "b"}},
    {"table": "orders", "op": "d", "key": {"id": 1}},
]


def document(folder: Path, script: str, **more: Any) -> Path:
    indented = "\n".join(f"        {line}" for line in script.strip().splitlines())
    settings = "".join(f"\n      {name}: {json.dumps(value)}" for name, value in more.items())
    (folder / "pipeline.yaml").write_text(PIPELINE.replace("SCRIPT", indented + settings))
    return folder / "pipeline.yaml"


def samples(folder: Path, *lines: Any) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "changes.jsonl").write_text("\n".join(texts) + "\n")
    return folder / "changes.jsonl"


def tailrace(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["test", *map(str, arguments)])


def machine(*arguments: str | Path) -> dict[str, Any]:
    done = tailrace(*arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["ok"] == (done.exit_code == 0)
    return found


def test_what_becomes_of_each(tmp_path: Path) -> None:
    done = tailrace(document(tmp_path, ENRICH), "--input", samples(tmp_path, *SAMPLES))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        'public.orders  c  {"id": 1}  unchanged',
        'public.orders  c  {"id": 2}  changed',
        "  ~ after.total  1500 → 0",
        '  - after.note  "b"',
        "  + after.vip  true",
        "  + route  topic: vip",
        '  made enrich:1: c  {"copy":1}',
        "    + route  topic: vip",
        'public.orders  d  {"id": 1}  dropped by last: dropped',
        "3 changes: 1 unchanged, 1 changed, 1 dropped, 1 made",
    ]
    assert done.stderr.splitlines() == ["enrich: order 1", "enrich: order 2"]


def test_for_machines_and_of_another_sink(tmp_path: Path) -> None:
    found = machine(document(tmp_path, ENRICH), "--input", samples(tmp_path, *SAMPLES), "--sink", "plain")
    assert [each["fate"] for each in found["changes"]] == ["unchanged", "changed", "unchanged"]
    assert found["changes"][1]["differences"][0] == {"member": "after.total", "before": "1500", "after": "0"}
    [made] = found["changes"][1]["made"]
    assert (made["synthetic"], made["after"], made["route"]) == ("enrich", '{"copy":1}', {"topic": "vip"})


def test_native_records_are_samples_too(tmp_path: Path) -> None:
    record = {
        **{"before": {"id": 7}, "after": {"id": 7, "total": 2000}, "op": "u", "ts_us": 1_700_000_000_000_000},
        "source": {"connector": "postgresql", "db": "shop", "schema": "eu", "table": "orders", "lsn": 5},
        "transaction": {"id": "9", "total_order": 3},
        **{"event_id": "x", "tenant_id": "acme", "tx_end": True},
    }
    [change] = machine(document(tmp_path, ENRICH), "--input", samples(tmp_path, record))["changes"]
    assert (change["change"]["schema"], change["change"]["op"], change["fate"]) == ("eu", "u", "changed")


def test_twice_finds_nothing_in_a_good_script(tmp_path: Path) -> None:
    done = tailrace(document(tmp_path, ENRICH), "--input", samples(tmp_path, *SAMPLES), "--twice")
    assert done.exit_code == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "the same when tried again, in other ways"


@pytest.mark.parametrize(
    "script",
    [
        "let calls = 0; function processBatch(events) { calls += 1; for (const e of events) e.tags.push(`${calls}`) }",
        "function processBatch(events) { for (const e of events) e.tags.push(`${events.length}`) }",
        "function processBatch(events) { for (const e of events) e.tags.push(`${Math.random()}`) }",
        "function processBatch(events) { return events.slice(1) }",
    ],
)
def test_twice_finds_what_does_not_repeat(tmp_path: Path, script: str) -> None:
    done = tailrace(document(tmp_path, script), "--input", samples(tmp_path, *SAMPLES), "--sink", "plain", "--twice")
    assert done.exit_code == 1
    found = machine(tmp_path / "pipeline.yaml", "--input", tmp_path / "changes.jsonl", "--sink", "plain", "--twice")
    assert found["disagreements"][0]["differences"]


def test_twice_tries_other_ops_before_a_table_that_equals_its_source(tmp_path: Path) -> None:
    script = "function processBatch(events) { for (const e of events) if (e.op === 'u') e.after.updated = true }"
    file = document(tmp_path, script, row_wise=True, columns={"updated": "bool"})
    lake = "{type: delta, config: {id: plain, path: /lake, write_mode: upsert}}"
    file.write_text(file.read_text().replace("{type: console, config: {id: plain}}", lake))
    done = tailrace(file, "--input", samples(tmp_path, *SAMPLES), "--sink", "plain", "--twice")
    assert done.exit_code == 1
    assert 'as op u, without before: public.orders  c  {"id": 1}' in done.stdout
    assert "  + after.updated  true" in done.stdout


def test_the_last_changes_of_a_log(tmp_path: Path) -> None:
    with closing(LogWriter(tmp_path / "data" / "logs" / "shop", "shop", segment_bytes=1)) as writer:
        writer.append(capture([insert(1), insert(2)], [insert(3)]))
        writer.append(capture([Row("d", {"id": 2}, before={"id": 2}), insert(9)], first_xid=3))
    done = tailrace(document(tmp_path, ENRICH), "--from-log", "3", "--data-dir", tmp_path / "data")
    assert done.exit_code == 0, done.stderr
    assert [line.split("  ")[:3] for line in done.stdout.splitlines()[:-1]] == [
        ["public.items", "c", '{"id":3}'],
        ["public.items", "d", '{"id":2}'],
        ["public.items", "c", '{"id":9}'],
    ]
    missing = tailrace(tmp_path / "pipeline.yaml", "--from-log", "3", "--data-dir", tmp_path / "nothing")
    assert "error[log.missing]" in missing.stderr


def test_an_error_says_all_it_knows(tmp_path: Path) -> None:
    script = (
        "function processBatch(events) {\n  events[0].after = null;\n  throw new Error('id ' + events[0].key.id);\n}"
    )
    done = tailrace(document(tmp_path, script), "--input", samples(tmp_path, *SAMPLES))
    assert done.exit_code == 1
    assert "error[processor.failed] 'enrich' failed with Error at line 3, column 27: Error: id 1" in done.stderr
    assert "at public.orders, c at offset 0" in done.stderr


def test_a_query_in_the_chain(spark: SparkSession, tmp_path: Path) -> None:
    file = document(tmp_path, ENRICH)
    query = "{type: sql, query: 'SELECT after.*, after.id * 2 AS twice FROM changes WHERE after.total < 100'}"
    file.write_text(file.read_text().replace("  processors:\n", f"  processors:\n    - {query}\n", 1))
    done = tailrace(file, "--input", samples(tmp_path, *SAMPLES), "--sink", "plain", "--twice")
    assert done.exit_code == 0, (done.stdout, done.stderr)
    assert done.stdout.splitlines() == [
        'public.orders  c  {"id": 1}  changed',
        "  + after.twice  2",
        'public.orders  c  {"id": 2}  dropped by sql: where',
        'public.orders  d  {"id": 1}  unchanged',
        "3 changes: 1 changed, 1 dropped, 1 unchanged",
        "the same when tried again, in other ways",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ({"op": "c", "after": {}}, "it has no `table`"),
        ({"table": "orders", "op": "x", "after": {}}, "there is no op `x`"),
        ({"table": "orders", "op": "c"}, "neither before, after nor key"),
        ({"table": "orders", "aftr": {}}, "nothing is known of a member `aftr`"),
    ],
)
def test_bad_samples(tmp_path: Path, line: Any, said: str) -> None:
    file = samples(tmp_path, SAMPLES[0], line)
    done = tailrace(document(tmp_path, ENRICH), "--input", file)
    assert done.exit_code == 2
    assert "error[config.bad_sample]" in done.stderr
    assert said in done.stderr
    assert f"at {file}:2" in done.stderr


def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    file = document(tmp_path, ENRICH)
    assert tailrace(file).exit_code == 2
    assert "error[config.unreadable]" in tailrace(file, "--input", tmp_path / "none").stderr
    done = tailrace(file, "--input", samples(tmp_path), "--sink", "screem")
    assert "its sinks are: screen, plain" in done.stderr


def test_a_script_with_an_error_names_its_place(tmp_path: Path) -> None:
    done = tailrace(document(tmp_path, "function processBatch(events) {\n  return events.map(;\n}"), "--from-log", "1")
    assert done.exit_code == 2
    assert "error[config.bad_script]" in done.stderr
    assert "line 2, column" in done.stderr
    assert "pipeline.yaml:10" in done.stderr
