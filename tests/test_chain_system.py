"""One chain before sinks of several kinds, and a script that misbehaves beside them: the whole system, by content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tailrace import telemetry
from tailrace.testing.crash import read_files
from tailrace.testing.servers import KafkaBroker, PostgresServer
from tailrace.testing.waiting import eventually
from tests import lakes
from tests.capture.running import Database
from tests.test_crash import read_topic
from tests.whole import System

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GRADE = """
function processBatch(events) {
  for (const event of events)
    if (event.after) event.after.grade = Number(event.after.total) >= 100 ? 'big' : 'small';
  return events;
}"""
CHAIN = [
    {"type": "filter", "fields": [{"path": "region", "op": "ne", "value": "test"}]},
    {
        "type": "transform",
        "mask": [{"columns": ["email"], "how": "partial", "keep_last": 4}],
        "rename": [{"columns": {"qty": "quantity"}}],
    },
    {"type": "javascript", "id": "grade", "row_wise": True, "columns": {"grade": "text"}, "inline": GRADE},
]
TRICKY = {
    3: "throw new Error('three ' + event.after.email)",
    5: "while (true) {}",
    7: "while (true) all.push(new Array(100000).fill(7))",
}
"""What the bad script does, by the row at which it does it."""
BAD = f"""
function processBatch(events) {{
  const all = [];
  for (const event of events) {{
    const id = event.after ? event.after.id : 0;
    {" ".join(f"if (id === {number}) {{ {what}; }}" for number, what in TRICKY.items())}
    event.tags.push('seen');
  }}
  return events;
}}"""
MENDED = re.sub(r"if \(id === .*", "", BAD)
PATIENCE_S = 300
"""Of a busy machine, on which four queries begin at once."""
LIMITS = {"cpu_ms": 200, "timeout_ms": 5000, "mem_mb": 64}

TABLE = "CREATE TABLE orders (id int PRIMARY KEY, region text, total numeric(10, 2), qty int, email text)"
FIRST = (
    "INSERT INTO orders SELECT g, CASE g % 5 WHEN 4 THEN 'test' ELSE 'eu' END, g * 1.25, g, 'user' || g || '@shop' "
    "FROM generate_series(1, 200) g",
    "UPDATE orders SET qty = -qty, total = total + 50 WHERE id % 3 = 0",
    "UPDATE orders SET email = NULL WHERE id % 17 = 0",
    "DELETE FROM orders WHERE id % 11 = 0",
    "UPDATE orders SET id = id + 1000 WHERE id % 13 = 0",
    "INSERT INTO orders VALUES (11, 'eu', 1, 1, 'back@shop'), (22, 'test', 1, 1, 'no')",
)
LATER = "INSERT INTO orders VALUES (5000, 'eu', 100, 1, 'later@shop')"


class Shop(System):
    """A pipeline to Kafka and to a mirror, both behind the chain, and to files behind a bad script, of which one sink
    skips what it fails at, and one stops there."""

    def __init__(self, db: Database, folder: Path, brokers: str, script: str = BAD) -> None:
        self.topic, self.brokers = f"{db.name}.orders", brokers
        super().__init__(db, folder, _sinks(folder, brokers, self.topic, script), mode="never")

    def status(self) -> dict[str, dict[str, Any]]:
        """What was printed last, by sink."""
        lines = (self.folder / "data.out").read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.startswith('{"started"') and line.endswith("\n")]
        return {sink["sink"]: sink for sink in found[-1]["sinks"]} if found else {}

    def lines(self, sink: str) -> list[dict[str, Any]]:
        return [event for event in read_files(self.folder / sink) if event["op"] in "cudr"]


def _sinks(folder: Path, brokers: str, topic: str, script: str) -> str:
    def files(name: str, on_error: str) -> dict[str, Any]:
        bad = {"type": "javascript", "id": "bad", "inline": script, "limits": LIMITS, "on_error": on_error}
        config = {"id": name, "path": f"{folder}/{name}", "roll": {"every": "500ms"}, "processors": [bad]}
        return {"type": "file", "config": config}

    mirror = {"write_mode": "upsert", "path": f"{folder}/delta", "commit_interval": "500ms"}
    sinks = [
        {"type": "kafka", "config": {"id": "kafka", "brokers": brokers, "topic": topic, "processors": CHAIN}},
        {"type": "delta", "config": {"id": "delta", **mirror, "processors": CHAIN}},
        files("skipping", "skip"),
        files("stopping", "fail"),
    ]
    return json.dumps(sinks)[1:-1].replace("{", "{{").replace("}", "}}")


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Behind a run in which one sink stopped at the bad script and the others went on."""
    with Database(postgres) as db:
        made = Shop(db, tmp_path_factory.mktemp("chain"), kafka.bootstrap)
        db.run(TABLE)
        made.start()
        try:
            db.run(*FIRST)
            eventually(lambda: made.status().get("stopping", {}).get("error"), PATIENCE_S, what=made.victim.output)
            db.run(LATER)
            eventually(lambda: gone_on(made, kafka), PATIENCE_S, what=made.victim.output)
            assert made.victim.terminate(60) == 1, made.victim.output()
            yield made
        finally:
            if made.victim.process is not None and made.victim.process.poll() is None:
                made.victim.kill("both")


def test_the_same_rows_through_kafka_and_in_a_mirror(shop: Shop, kafka: KafkaBroker) -> None:
    """Both are the source's rows, put through the same chain."""
    rows = expected(shop.db)
    assert len(rows) > 100
    assert {row["grade"] for row in rows} == {"big", "small"}
    assert mirrored(shop) == rows
    assert folded(shop, kafka) == rows


def test_a_script_that_throws_hangs_or_eats_memory_stops_its_own_sink_and_loses_nothing(shop: Shop) -> None:
    before, status = shop.lines("stopping"), shop.status()
    assert status["stopping"]["error"]["code"] == "processor.failed"
    assert not {(event["after"] or {}).get("id") for event in before} & {*TRICKY, 5000}
    dropped = sum(each["changes"] for each in status["skipping"]["dropped"] if each["reason"] == "error")
    mended = Shop(shop.db, shop.folder, shop.brokers, MENDED)
    mended.catch_up(PATIENCE_S)
    whole = [without_span(event) for event in shop.lines("stopping")]
    assert len({event["event_id"] for event in whole}) == len(whole)
    assert whole[: len(before)] == list(map(without_span, before))
    skipped = [event for event in whole if (event["after"] or {}).get("id") in TRICKY]
    assert {event["after"]["id"] for event in skipped} == TRICKY.keys()
    assert len(skipped) == dropped
    assert list(map(without_span, shop.lines("skipping"))) == [event for event in whole if event not in skipped]


def test_what_a_script_said_of_a_row_is_nowhere(shop: Shop) -> None:
    """The log tells once that its sink stopped, and why; neither it nor a status has anything of a row."""
    said = (shop.folder / "data.out").read_text()
    assert "@shop" not in said
    logged = [json.loads(line) for line in said.splitlines() if '"event":' in line]
    told = next(line for line in logged if line.get("sink") == "stopping" and line["level"] == "error")
    assert (told["code"], told["error"], told["state"]) == ("processor.failed", telemetry.WITHHELD, "failed")
    assert told["hint"] and told["where"].startswith("public.orders")


def gone_on(shop: Shop, kafka: KafkaBroker) -> bool:
    """Whether what came after the one sink had stopped is in the others."""
    files = [row["after"] or {} for row in shop.lines("skipping")]
    there = (shop.folder / "delta" / "public__orders" / "_delta_log").exists()
    sinks = [files, folded(shop, kafka), mirrored(shop) if there else []]
    return all(5000 in [row.get("id") for row in rows] for rows in sinks)


def expected(db: Database) -> list[dict[str, Any]]:
    query = "SELECT id, region, total::text, qty, email FROM orders WHERE region <> 'test' ORDER BY id"
    return [
        {
            "id": number,
            "region": region,
            "total": total,
            "quantity": quantity,
            "email": email and "*" * (len(email) - 4) + email[-4:],
            "grade": "big" if Decimal(total) >= 100 else "small",
        }
        for number, region, total, quantity, email in db.rows(query)
    ]


def mirrored(shop: Shop) -> list[dict[str, Any]]:
    names = ["id", "region", "total", "quantity", "email", "grade"]
    return lakes.rows_of(lakes.delta(shop.folder, "orders"), names)


def folded(shop: Shop, kafka: KafkaBroker) -> list[dict[str, Any]]:
    """What a consumer has who applies records in the order it got them."""
    rows: dict[int, dict[str, Any]] = {}
    for event in read_topic(kafka, shop.topic):
        if event["op"] == "d":
            rows.pop(event["before"]["id"], None)
        elif event["op"] in "cur":
            rows[event["after"]["id"]] = event["after"]
    return [rows[number] for number in sorted(rows)]


def without_span(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "_span"}
