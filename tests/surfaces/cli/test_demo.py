"""`tailrace demo` as a newcomer meets it: it starts, shows, says what to type, proves itself, and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.demo.proof import changes
from tailrace.spec import load_pipelines, load_platform
from tailrace.testing.waiting import eventually

pytestmark = pytest.mark.timeout(420)

# Starting a JVM and the first batch take seconds on a quiet machine, and a minute or two on a crowded one.
PATIENCE_S = 150.0

COMMAND = [sys.executable, "-m", "tailrace", "demo"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demos of this module run, one continuing the other."""
    return tmp_path_factory.mktemp("demo")


@contextmanager
def demo(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """A running demo, and what it has told so far."""
    told = home / "told.txt"
    with told.open("w") as errors:
        process = subprocess.Popen(
            [*COMMAND, *options], cwd=home, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ
        )
    try:
        yield process, told.read_text
    finally:
        process.kill()
        process.communicate()


def test_it_ends_by_itself_and_proves_that_nothing_is_missing(home: Path) -> None:
    asked = time.time() - 1000
    with demo(home, "--seconds", "5", "--json", "--since", str(asked)) as (process, told):
        output, _ = process.communicate(timeout=2 * PATIENCE_S)
        assert process.returncode == 0, told()
        steps = re.findall(r"^tailrace: +(\d+) s  (.*[^…])$", told(), re.MULTILINE)
    *statuses, answer = map(json.loads, output.splitlines())
    assert statuses[-1]["sinks"][0]["state"] == "stopped"
    assert (answer["ok"], answer["compared"]) == (True, True)
    assert 1000 < answer["first_row_s"] < time.time() - asked
    assert [step for _, step in steps if "start" in step] == ["starting PostgreSQL", "starting Spark and the tap"]
    [told_at] = [int(seconds) for seconds, step in steps if step == "the first row is delivered"]
    assert abs(told_at - answer["first_row_s"]) <= 1
    assert [int(seconds) for seconds, _ in steps] == sorted(int(seconds) for seconds, _ in steps)
    assert {table["table"] for table in answer["tables"]} == {"customers", "orders", "order_items"}
    assert all(table["differing"] == 0 and table["changes"] > table["rows"] > 0 for table in answer["tables"])
    compared = {table["table"].removeprefix("public."): table for table in answer["lake"]}
    assert {name: (table["rows"], table["differing"]) for name, table in compared.items()} == {
        table["table"]: (table["rows"], 0) for table in answer["tables"]
    }
    ops = Counter(
        json.loads(record["op"])
        for table in answer["tables"]
        for record in changes(home / "tailrace-demo" / "files" / f"public.{table['table']}")
    )
    assert {"c", "u", "d"} <= ops.keys()
    assert ops.total() == sum(table["changes"] for table in answer["tables"])


def test_its_documents_are_a_users(home: Path) -> None:
    root = home / "tailrace-demo"
    [pipeline] = load_pipelines([root / "pipeline.yaml"])
    assert (pipeline.name, pipeline.source_id, [sink.id for sink in pipeline.sinks]) == (
        "demo",
        "shop",
        ["files", "lake"],
    )
    assert load_platform(root / "platform.yaml").data_dir == root / "data"


def test_what_it_says_to_type_works_and_ctrl_c_ends_it(home: Path) -> None:
    """It continues the first demo (`--keep`), so the row to change is there from the start."""
    with demo(home, "--keep", "--rate", "50") as (process, told):

        def typed(pattern: str) -> str:
            lines = eventually(lambda: re.findall(rf"^  ({pattern}.*)$", told(), re.MULTILINE), PATIENCE_S, what=told)
            return str(lines[0])

        change, find = typed(r"\S*psql "), typed("grep ")
        eventually(lambda: "sink demo/files: running" in told(), PATIENCE_S, what=told)
        done = subprocess.run(change, shell=True, capture_output=True, text=True, check=False, timeout=30)
        assert done.stdout.strip() == "UPDATE 1", done.stderr

        def found() -> str:
            return subprocess.run(find, shell=True, capture_output=True, text=True, check=False, timeout=30).stdout

        record = json.loads(eventually(found, PATIENCE_S, every=0.2, what=told))
        assert (record["op"], record["after"]["id"], record["after"]["name"]) == ("u", 1, "Ada Lovelace")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, told()
    assert re.search(r"^source, files and Delta tables are equal: [\d,]+ rows$", output, re.MULTILINE), output
    assert re.search(r"^the first row was delivered \d+ s after the start$", output, re.MULTILINE), output
    assert "Traceback" not in told()
