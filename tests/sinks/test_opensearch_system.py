"""The whole road to a search index, killed at random: its documents are the rows of the source, by content (Law 4).

Seeds are printed; `SEED=n pytest tests/sinks/test_opensearch_system.py` tells one story again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tailrace.testing import crash
from tailrace.testing.servers import OpenSearchServer
from tailrace.testing.waiting import eventually
from tests.sinks.search_documents import ask, documents, new_name
from tests.whole import System

WRITES = 100
"""How many documents are written between two kills, at most."""
TRANSACTIONS = 60
"""Of the source, before and after each kill."""
SINK = """
{{type: opensearch, config: {{
    id: search, urls: [URL], index: 'NAME-${{source.table}}', truncates: delete, batch_size: 50
}}}}
"""


class Writers(crash.Writers):
    """Inserts, partial updates, key changes, deletes and truncates, as many as asked for."""

    def commit(self, number: int, chance: random.Random) -> None:
        with psycopg.connect(self._dsn) as connection:
            for _ in range(number):
                self._transaction(connection, chance)


@pytest.mark.timeout(600)
def test_documents_are_the_rows_whoever_is_killed(system: Callable[..., System], opensearch: OpenSearchServer) -> None:
    seed, name = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 30))), new_name()
    print(f"search seed {seed}")
    chance = random.Random(seed)
    run = system(sinks=SINK.replace("URL", opensearch.url).replace("NAME", name))
    writers = Writers(run.db.dsn, seed, rows=150)
    run.start()
    for whom in ("driver", "both"):
        writers.commit(TRANSACTIONS, chance)
        gate = written(opensearch, name) + chance.randrange(1, WRITES)
        eventually(lambda gate=gate: written(opensearch, name) >= gate, 240, what=run.victim.output)  # type: ignore[misc]
        run.victim.kill(whom)
        writers.commit(TRANSACTIONS, chance)
        if whom == "driver":
            run.victim.start()
    run.catch_up(240)
    for table in writers.tables:
        truth = [json.loads(text) for (text,) in run.db.rows(f"SELECT to_json(t)::text FROM {table} t")]
        found = documents(opensearch, f"{name}-{table}")
        assert truth
        assert found == {name_of(row): row for row in truth}, table


def written(server: OpenSearchServer, name: str) -> int:
    """How many writes the indices took: progress that a kill cannot fake."""
    stats: Any = ask(server, "GET", f"/{name}-*/_stats/indexing?allow_no_indices=true")
    done = stats["_all"]["primaries"].get("indexing", {})
    return int(done.get("index_total", 0)) + int(done.get("delete_total", 0))


def name_of(row: dict[str, Any]) -> str:
    return json.dumps([row["a"], row["id"]], separators=(",", ":")) if "a" in row else str(row["id"])
