"""The whole road to a search index, killed at random: its documents are the rows of the source, by content (Law 4).

Seeds are printed; `SEED=n pytest tests/sinks/test_opensearch_system.py` tells one story again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.testing import crash
from tailrace.testing.servers import OpenSearchServer
from tailrace.testing.waiting import eventually
from tests.sinks.search_documents import ask, documents, new_name
from tests.whole import System

ROWS = 200
"""How many writes come between two kills, at most."""
SINK = """
{{type: opensearch, config: {{
    id: search, urls: [URL], index: 'NAME-${{source.table}}', truncates: delete, batch_size: 50
}}}}
"""


@pytest.mark.timeout(600)
def test_documents_are_the_rows_whoever_is_killed(system: Callable[..., System], opensearch: OpenSearchServer) -> None:
    seed, name = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 30))), new_name()
    print(f"search seed {seed}")
    chance = random.Random(seed)
    run = system(sinks=SINK.replace("URL", opensearch.url).replace("NAME", name))
    writers = crash.Writers(run.db.dsn, seed, rows=150)
    run.start()
    writers.start()
    for whom in ("driver", "both"):
        gate = written(opensearch, name) + chance.randrange(1, ROWS)
        eventually(lambda gate=gate: written(opensearch, name) >= gate, 240, what=run.victim.output)  # type: ignore[misc]
        run.victim.kill(whom)
        if whom == "driver":
            run.victim.start()
    writers.stop()
    run.catch_up(240)
    for table in writers.tables:
        truth = [json.loads(text) for (text,) in run.db.rows(f"SELECT to_json(t)::text FROM {table} t")]
        found = documents(opensearch, f"{name}-{table}")
        assert truth
        assert found == {name_of(row): row for row in truth}, table


def written(server: OpenSearchServer, name: str) -> int:
    """How many writes the indices took: progress that a kill cannot fake."""
    stats: Any = ask(server, "GET", f"/{name}-*/_stats/indexing?allow_no_indices=true")
    return int(stats["_all"]["primaries"].get("indexing", {}).get("index_total", 0))


def name_of(row: dict[str, Any]) -> str:
    return json.dumps([row["a"], row["id"]], separators=(",", ":")) if "a" in row else str(row["id"])
