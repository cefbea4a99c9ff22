"""The documents in `examples/`: each is valid, and all together carry a shop's changes where they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer

from tailrace.spec import load_pipelines, load_platform
from tailrace.supervisor.trial import Trial
from tailrace.supervisor.trial.samples import from_file
from tailrace.testing.servers import HttpEndpoint, KafkaBroker, PostgresServer

EXAMPLES = Path(__file__).parent.parent / "examples"
PIPELINES = sorted(file for file in EXAMPLES.glob("*.yaml") if file.name != "platform.yaml")
ENVIRON = {
    "DSN": "postgresql://cdc@localhost/shop",
    "KAFKA": "localhost:9092",
    "HOOK": "http://localhost/x",
    "HOOK_SECRET": "s",
}

HOOK, HOOK_SECRET = "/examples", "shared by both sides"
SHOP = (
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10, 2), tags text[])",
    "CREATE PUBLICATION tailrace_shop FOR TABLE customers, orders",
    "SELECT pg_create_logical_replication_slot('tailrace_shop', 'pgoutput')",
    "INSERT INTO customers VALUES (1, 'Grace')",
    "INSERT INTO orders VALUES (1, 12.50, '{a,b}'), (2, 3, NULL)",
    "UPDATE orders SET total = 1300 WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
)
ORDERS = [
    ("c", {"id": 1, "total": "12.50", "tags": ["a", "b"]}),
    ("c", {"id": 2, "total": "3.00", "tags": None}),
    ("u", {"id": 1, "total": "1300.00", "tags": ["a", "b"]}),
    ("d", None),
]
ORDER = ["entity:order", "enriched"]
TAGS = [ORDER, ORDER, ["entity:order", "priority:high", "enriched"], ORDER]
"""What the script of `enrich.yaml` says of each."""


@pytest.mark.parametrize("example", PIPELINES, ids=lambda file: file.stem)
def test_each_is_valid(example: Path) -> None:
    [pipeline] = load_pipelines([example], ENVIRON)
    assert pipeline.sinks


def test_they_can_run_together() -> None:
    """Their sources are equal, so all share one tap and one log."""
    pipelines = load_pipelines(PIPELINES, ENVIRON)
    assert {pipeline.source_id for pipeline in pipelines} == {"shop"}


def test_the_platform_is_valid() -> None:
    assert load_platform(EXAMPLES / "platform.yaml", ENVIRON).spark.master == "local[2]"


def test_the_script_of_enrich(tmp_path: Path) -> None:
    [pipeline] = load_pipelines([EXAMPLES / "enrich.yaml"], ENVIRON)
    orders = [{"id": 1, "total": "1500.00"}, {"id": 2, "total": "3.00"}]
    lines = [{"table": "orders", "op": "c", "key": {"id": row["id"]}, "after": row} for row in orders]
    lines += [{"table": "customers", "op": "d", "key": {"id": 1}}]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = from_file(tmp_path / "samples.jsonl", "shop")
    trial = Trial.of(pipeline, None)
    results = trial.run(samples)
    assert [result.kept and result.kept["tags"] for result in results] == [
        ["entity:order", "priority:high", "enriched"],
        ["entity:order", "enriched"],
        ["enriched"],
    ]
    assert {each.member for result in results for each in result.differences()} == {"tags"}
    assert trial.again(samples, results) == []


@dataclass(frozen=True)
class Ran:
    """What a run of all examples left behind."""

    home: Path
    output: str
    brokers: str
    endpoint: HttpEndpoint


@pytest.fixture(scope="module")
def ran(kafka: KafkaBroker, endpoint: HttpEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    home = tmp_path_factory.mktemp("examples")
    with PostgresServer() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for statement in SHOP:
                connection.execute(statement)
        command = [sys.executable, "-m", "tailrace", "run", *map(str, PIPELINES), "--until-caught-up"]
        done = subprocess.run(
            [*command, "--platform-config", str(EXAMPLES / "platform.yaml")],
            cwd=home,
            env={
                **os.environ,
                "DSN": server.dsn(),
                "KAFKA": kafka.bootstrap,
                "HOOK": f"{endpoint.url}{HOOK}",
                "HOOK_SECRET": HOOK_SECRET,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stderr
        yield Ran(home, done.stdout, kafka.bootstrap, endpoint)


def test_console(ran: Ran) -> None:
    lines = [line.split("  ")[1:] for line in ran.output.splitlines()]
    assert lines[0] == ["c", "public.customers", '{"id":1,"name":"Grace"}']
    assert [line[:2] for line in lines[1:]] == [[op, "public.orders"] for op, _ in ORDERS]


def test_parquet(ran: Ran) -> None:
    rows = ds.dataset(ran.home / "history" / "public.orders", format="parquet").to_table().sort_by("seq").to_pylist()
    assert [(row["op"], json.loads(row["after"] or "null")) for row in rows] == ORDERS


def test_kafka(ran: Ran) -> None:
    records = consume(ran.brokers, "shop.public.orders", len(ORDERS))
    assert [(value["payload"]["op"], value["payload"]["after"]) for _, value in records if key_of(value) == 1] == [
        ORDERS[0],
        ORDERS[2],
    ]
    assert {key for key, _ in records} == {'{"id":1}', '{"id":2}'}
    assert {value["payload"]["tenant_id"] for _, value in records} == {"acme"}


def test_fan_out(ran: Ran) -> None:
    lines = [
        json.loads(line)
        for file in sorted((ran.home / "archive" / "public.orders").glob("*/*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert [(line["op"], line["after"]) for line in lines] == ORDERS
    events = [value["type"] for _, value in consume(ran.brokers, "shop.events", 1 + len(ORDERS))]
    assert sorted(events) == sorted(
        f"com.example.shop.{kind}" for kind in ("created", "created", "created", "updated", "deleted")
    )


def test_enrich(ran: Ran) -> None:
    """One script, and its records in three shapes."""
    wrapped = [value["payload"] for _, value in consume(ran.brokers, "orders.cdc", 1 + len(ORDERS))]
    assert in_order(wrapped) == [(op, after, tags) for (op, after), tags in zip(ORDERS, TAGS, strict=True)]
    assert [each["tags"] for each in wrapped if each["source"]["table"] == "customers"] == [["enriched"]]
    [file] = (ran.home / "cache" / "public.orders").glob("*/*.jsonl")
    plain = [json.loads(line) for line in file.read_text().splitlines()]
    by_id = {each["event_id"]: each for each in wrapped}
    assert plain == [by_id[each["event_id"]] for each in plain]
    events = {event["id"]: event for _, event in consume(ran.brokers, "orders.events", 1 + len(ORDERS))}
    assert events.keys() == by_id.keys()
    kinds = {"c": "created", "u": "updated", "d": "deleted"}
    for number, record in by_id.items():
        table = f"public.{record['source']['table']}"
        assert events[number]["data"] == {name: record[name] for name in ("before", "after", "op")}
        assert events[number]["type"] == f"com.acme.orders.{kinds[record['op']]}"
        assert (events[number]["source"], events[number]["subject"]) == (f"tailrace/orders-enriched/{table}", table)


def in_order(records: list[dict[str, Any]]) -> list[tuple[str, Any, list[str]]]:
    """Those of orders, as they stand in the log: partitions mix them."""
    orders = [each for each in records if each["source"]["table"] == "orders"]
    orders.sort(key=lambda each: (each["source"]["lsn"], each["transaction"]["total_order"]))
    return [(each["op"], each["after"], each["tags"]) for each in orders]


def test_webhook(ran: Ran) -> None:
    requests = ran.endpoint.requests(f"{HOOK}/orders")
    events = [event for request in requests for event in json.loads(request.body)]
    by_row = {n: [event["data"]["op"] for event in events if row_of(event["data"])["id"] == n] for n in (1, 2)}
    assert by_row == {1: ["c", "u"], 2: ["c", "d"]}
    assert {request.headers["x-table"] for request in requests} == {"public.orders"}
    is_genuine = verifier_of_the_guide()
    for request in ran.endpoint.requests(HOOK):
        signature, body = request.headers["x-tailrace-signature"], request.body.encode()
        assert is_genuine(HOOK_SECRET, signature, body)
        assert not is_genuine(HOOK_SECRET, signature, body + b" ")
        assert not is_genuine("another", signature, body)
        assert not is_genuine(HOOK_SECRET, signature, body, tolerance_s=-1)


def verifier_of_the_guide() -> Callable[..., bool]:
    """`is_genuine`, as `docs/guides/http.md` has it."""
    [code] = re.findall(
        r"```python\n(.*?)```", (EXAMPLES.parent / "docs" / "guides" / "http.md").read_text(), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[..., bool] = names["is_genuine"]
    return found


def row_of(images: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = images["after"] or images["before"]
    return found


def key_of(value: dict[str, Any]) -> int:
    payload = value["payload"]
    found: int = (payload["after"] or payload["before"])["id"]
    return found


def consume(brokers: str, topic: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The first `count` records of a topic: key and value."""
    settings = {"bootstrap.servers": brokers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[tuple[str, dict[str, Any]]] = []
    deadline = time.monotonic() + 30
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records: {found}"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(((message.key() or b"").decode(), json.loads(message.value() or b"")))
    finally:
        consumer.close()
    return found
