"""Snapshots through the full system: writers that never rest, reads that start at any time, and `kill -9`.

Seeds are printed; `SEED=n pytest tests/test_snapshot_system.py` tells one story again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable

import pytest

from tailrace.testing import crash
from tailrace.testing.waiting import eventually
from tests.whole import System

SEEDS = 8
ROWS = 300
VICTIMS = {"tap": 3, "workers": 3, "driver": 1, "both": 1}
"""What is killed how often: a new driver costs a new JVM."""


def seeds(count: int) -> list[int]:
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])]
    first = random.SystemRandom().randrange(1 << 30)
    return list(range(first, first + count))


@pytest.mark.timeout(600)
def test_eight_stories(system: Callable[..., System]) -> None:
    tell_all(system(), seeds(SEEDS))


@pytest.mark.soak
def test_many_stories(system: Callable[..., System]) -> None:
    tell_all(system(), seeds(int(os.environ.get("TAILRACE_SOAK_SEEDS", SEEDS))))


def tell_all(pipeline: System, chosen: list[int]) -> None:
    """One pipeline, each story with tables of its own; afterwards the files equal all of them."""
    stories = {seed: crash.Writers(pipeline.db.dsn, seed, ROWS) for seed in chosen}
    pipeline.start()
    for seed, story in stories.items():
        print(f"seed {seed}")
        tell(pipeline, story, random.Random(seed))
    pipeline.victim.kill("both")
    pipeline.catch_up()
    pipeline.compare(*(table for story in stories.values() for table in story.tables))


def tell(pipeline: System, story: crash.Writers, chance: random.Random) -> None:
    """A snapshot beside the writers, and a kill at some point of it."""
    story.start()
    run = pipeline.ask(*story.tables)
    gate = chance.randrange(2 * ROWS // 50)
    [who] = chance.choices(tuple(VICTIMS), tuple(VICTIMS.values()))
    print(f"kill {who} at chunk {gate}")

    def over() -> bool:
        return pipeline.ledger.run(run).state != "active"

    eventually(lambda: over() or pipeline.ledger.count(run, "admitted") >= gate, 120, what=pipeline.victim.output)
    pipeline.victim.kill(who)
    if who in ("driver", "both"):
        pipeline.victim.start()
    eventually(over, 120, what=pipeline.victim.output)
    story.stop()


@pytest.mark.timeout(400)
def test_the_commands_of_a_user(system: Callable[..., System]) -> None:
    """A part of a table while the pipeline runs; then the slot is lost, and the way out is the one the error names."""
    shop = system()
    shop.db.run(
        "CREATE TABLE items (id int PRIMARY KEY, v text)",
        "INSERT INTO items SELECT n, 'v' FROM generate_series(1, 300) n",
    )
    shop.start()
    eventually(lambda: shop.ledger.runs(shop.db.name, "done"), 120, what=shop.victim.output)
    done = shop.tailrace("snapshot", "--table", "public.items", "--where", "id < 100")
    assert done.returncode == 0, done.stderr
    assert "done: 99 rows of 1 tables" in done.stdout
    assert "rows" in done.stderr
    assert shop.victim.terminate(60) == 0

    shop.db.drop_slots()
    shop.db.run("DELETE FROM items WHERE id < 50", "UPDATE items SET v = 'new' WHERE id < 100")
    lost = shop.tailrace("run", "--until-caught-up")
    assert lost.returncode == 1
    assert "error[source.position_lost]" in lost.stderr
    assert "tailrace snapshot" in lost.stderr
    asked = shop.tailrace("snapshot", "--repair", "--json")
    assert json.loads(asked.stdout)["run"]["state"] == "active"
    shop.catch_up()
    shop.compare("items")
