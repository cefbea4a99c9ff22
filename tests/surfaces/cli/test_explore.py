"""`tailrace explore` and `tailrace trace`, as a user runs them. What they show of a log is tested in
`tests/supervisor/explore`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.changelog import Subscribers
from tailrace.surfaces.cli import app
from tests.supervisor.explore.looking import MASK, ONLY_PAID, ORDERS, Place, order


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.feed.add(ORDERS, "c", order(1, status="paid")).add(ORDERS, "u", order(1)).add(ORDERS, "d", {"id": 1}).flush(0)
    Subscribers(place.layout.log("shop")).report("shop/screen", 1, required=True)
    place.pipeline(processors=[ONLY_PAID, MASK])
    return place


def tailrace(place: Place, command: str, *arguments: str) -> Result:
    call = [command, str(place.file), *arguments, "--data-dir", str(place.layout.root)]
    return CliRunner().invoke(app, call if command == "consume" else [*call, "--max-seconds", "600"])


def machine(place: Place, command: str, *arguments: str) -> dict[str, Any]:
    done = tailrace(place, command, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    [line] = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_changes_for_people(place: Place) -> None:
    done = tailrace(place, "explore", "--limit", "2", "--oldest")
    assert done.exit_code == 0, done.stderr
    *lines, counted, cursor = done.stdout.splitlines()
    assert lines == [
        "offset  committed                    op  table          key        sinks         row",
        '0       2023-11-14T22:13:20.000000Z  c   public.orders  {"id": 1}  screen:sent   '
        '{"id": 1, "email": "***", "total": "5.00", "status": "paid"}',
        '1       2023-11-14T22:13:20.000001Z  u   public.orders  {"id": 1}  screen:waits  dropped by paid: fields',
    ]
    assert counted == "2 changes; looked through offsets 0 to 2 of 0 to 3, 3 changes read"
    rest = tailrace(
        place, "explore", "--limit", "2", "--oldest", "--cursor", cursor.removeprefix("go on with --cursor ")
    )
    assert rest.stdout.splitlines()[1].startswith("2 ")


def test_changes_for_machines(place: Place) -> None:
    found = machine(place, "explore", "--where", "after.status = 'paid'", "--table", "orders", "--op", "create")
    assert found["ok"] and not found["partial"]
    [change] = found["changes"]
    assert (change["offset"], change["op"], change["sinks"]["screen"]["sent"]) == (0, "c", True)
    assert json.loads(change["after"])["email"] == "***"
    [raw] = machine(place, "explore", "--raw", "--key", "1", "--to-offset", "1")["changes"]
    assert json.loads(raw["after"])["email"] == "u1@example.com"
    assert (
        machine(place, "explore", "--until", "2h", "--since", "2023-11-14T22:13:20.000002Z")["changes"][0]["offset"]
        == 2
    )


def test_a_condition_that_cannot_be_read_is_told_with_its_place(place: Place) -> None:
    done = tailrace(place, "explore", "--where", "after.total = paid")
    assert done.exit_code == 2
    assert (
        "error[explore.filter] the condition cannot be read: a value was expected, and `paid` was found" in done.stderr
    )
    assert "at character 15" in done.stderr and "single quotes" in done.stderr
    told = json.loads(tailrace(place, "explore", "--since", "soon", "--json").stdout)
    assert told["problems"][0]["code"] == "explore.filter"


def test_a_row(place: Place) -> None:
    done = tailrace(place, "trace", "orders", "1")
    assert done.exit_code == 0, done.stderr
    ways = [line.split("  ") for line in done.stdout.splitlines() if "  screen  " in line]
    assert [[word.strip() for word in way if word.strip()] for way in ways] == [
        ["0", "0/0", "0 #1 last", "screen", "sent", "unknown", "unknown"],
        ["1", "0/1", "1 #1 last", "screen", "waits", "unknown", "unknown"],
        ["2", "0/2", "2 #1 last", "screen", "waits", "unknown", "unknown"],
    ]
    assert done.stdout.splitlines()[-1].startswith("the log begins at offset 0")
    found = machine(place, "trace", "public.orders", '{"id": 1}')
    assert [(each["offset"], each["source_op"]) for each in found["changes"]] == [(0, "c"), (1, "u"), (2, "d")]
    assert found["sinks"][0]["reached"] == 1
    missing = tailrace(place, "trace", "ordres", "1")
    assert (missing.exit_code, "error[explore.no_table]" in missing.stderr) == (2, True)
