"""What the explorer shows of a real run is what the run delivered, change by change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.whole import System

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MASKED = """{{type: file, config: {{id: files, path: {folder}/files, format: parquet,
    processors: [{{type: transform, mask: [{{columns: [email]}}]}}]}}}}"""
SHOWN = ("op", "key", "before", "after", "event_id")


def test_what_is_shown_is_what_was_delivered(system: Callable[..., System]) -> None:
    shop = system(sinks=MASKED)
    shop.db.run("CREATE TABLE orders (id int PRIMARY KEY, email text)")
    shop.db.run("INSERT INTO orders SELECT n, 'u' || n || '@shop' FROM generate_series(1, 5) n")
    shop.catch_up()
    shop.db.run("UPDATE orders SET email = 'new@shop' WHERE id = 3")
    shop.db.run("DELETE FROM orders WHERE id = 4")
    shop.catch_up()
    delivered = {row["seq"]: tuple(row[name] for name in SHOWN) for row in shop.events()}
    assert len(delivered) >= 7

    shown = asked(shop, "explore", "--limit", "500", "--max-seconds", "300")
    assert {each["offset"]: tuple(each[name] for name in SHOWN) for each in shown["changes"]} == delivered
    assert {each["sinks"]["files"]["sent"] for each in shown["changes"]} == {True}
    assert "@shop" not in json.dumps(shown)

    traced = asked(shop, "trace", "orders", "3", "--max-seconds", "300")
    mine = {seq: row for seq, row in delivered.items() if row[1] and json.loads(row[1])["id"] == 3}
    assert {each["offset"]: tuple(each[name] for name in SHOWN) for each in traced["changes"]} == mine
    assert [each["op"] for each in traced["changes"]] == ["r", "u"]

    consumed = shop.tailrace("consume", "--json", timeout=300)
    assert consumed.returncode == 0, consumed.stderr
    records = [json.loads(line) for line in consumed.stdout.splitlines()]
    values = {each["offset"]: json.loads(each["value"]) for each in records}
    assert {seq: (value["op"], value["event_id"]) for seq, value in values.items()} == {
        seq: (row[0], row[4]) for seq, row in delivered.items()
    }
    assert "@shop" not in consumed.stdout


def asked(shop: System, command: str, *arguments: str) -> dict[str, Any]:
    done = shop.tailrace(command, *arguments, "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
