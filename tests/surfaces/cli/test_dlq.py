"""`tailrace dlq` as a user calls it, on a journal, a log and a file sink, beside a running pipeline and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tailrace.change import event_id
from tailrace.changelog import LogReader, Subscribers, read_slice
from tailrace.contracts import Letter
from tailrace.contracts.letters import packed
from tailrace.control import Store
from tailrace.control.journal import Journal, LetterFilter
from tailrace.spark.letters import HOLD, hold_log
from tailrace.supervisor.layout import Layout, run_lock
from tailrace.surfaces.cli import app

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.spark.logs import Shop

DOCUMENT = """
metadata: {{name: shop-feed}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "host=nowhere", tables: [public.*]}}}}
  journal: {{enabled: true, dlq: {{max_age_secs: 0}}}}
  sinks: [{{type: file, config: {{id: files, path: {folder}/files}}}}]
"""


class Place:
    """Three letters of five changes: one of another table's key, two of one key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.layout = folder, Layout(folder / "data")
        self.document, self.platform = folder / "shop.yaml", folder / "platform.yaml"
        self.document.write_text(DOCUMENT.format(folder=folder))
        self.platform.write_text(f"data_dir: {folder / 'data'}\n")
        self.layout.logs.mkdir(parents=True)
        self.store = Store(self.layout.store)
        self.journal = Journal(self.store, "shop-feed")
        self.shop = Shop(self.layout.log("shop"))
        self.shop.append([[("u", 1, 10), ("u", 2, 20)], [("u", 3, 30), ("u", 1, 40)]])
        self.letters = [self.letter(0), self.letter(1), self.letter(3)]
        self.journal.put(self.letters)

    def letter(self, seq: int, **said: Any) -> Letter:
        reader = LogReader(self.shop.path)
        [piece] = reader.slices(seq, seq + 1, 1)
        [row] = read_slice(piece)
        found = row.to_pylist()[0]
        event = event_id(found["source"], found["position"], found["tx_ordinal"])
        row = row.append_column("event_id", pa.array([event])).append_column("value", pa.array([found["after"]]))
        names = ("source", "seq", "op", "schema", "table", "key", "schema_id", "position", "ts_us")
        fields = {name: found[name] for name in names}
        made = Letter(
            "files", "", log_id=reader.log_id, part="", event_id=event, code="sink.rejected", message="no", **fields
        )
        return replace(made, **{"row": packed(row), **said})

    def line(self, *words: str) -> list[str]:
        command, *rest = words
        return ["dlq", command, str(self.document), *rest, "--platform-config", str(self.platform)]

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(app, self.line(*words))

    def json(self, *words: str) -> dict[str, Any]:
        done = self.call(*words, "--json")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def problem(self, *words: str) -> str:
        done = self.call(*words, "--json")
        assert done.exit_code == 2, done.output
        return str(json.loads(done.stdout)["problems"][0]["code"])

    def delivered(self) -> list[int]:
        files = sorted((self.folder / "files").rglob("*.jsonl"), key=lambda path: path.name)
        return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]

    def states(self) -> list[str]:
        return [kept.letter.state for kept in self.journal.find()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with closing(made.store):
        yield made
        made.shop.writer.close()


def test_letters_are_listed_by_code_table_and_sink(place: Place) -> None:
    [group] = place.json("list")["groups"]
    assert (group["code"], group["table"], group["sink"], group["letters"]) == (
        "sink.rejected",
        "public.orders",
        "files",
        3,
    )
    assert place.json("list")["totals"] == {"states": {"waiting": 3}, "evicted": 0, "expired": 0, "open": 3}
    text = place.call("list").stdout
    assert "3  sink.rejected  public.orders  files  waiting" in text and "3 open" in text


def test_letters_are_found_by_key_time_and_state(place: Place) -> None:
    of_key = place.json("list", "--letters", "--key", '{"id":1}')["letters"]
    assert [each["number"] for each in of_key] == [1, 3] and of_key[0]["key"] == {"id": 1}
    assert len(place.json("list", "--letters", "--since", "1h")["letters"]) == 3
    assert place.json("list", "--letters", "--until", "2020-01-01T00:00:00Z")["letters"] == []
    assert place.json("list", "--letters", "--state", "held")["letters"] == []
    assert place.problem("list", "--since", "yesterday") == "dlq.bad_time"
    assert place.problem("list", "--state", "lost") == "dlq.no_state"


def test_a_letter_is_shown_with_its_change_and_record(place: Place) -> None:
    letter = place.json("show", "2")["letter"]
    assert letter["change"]["after"] == {"id": 2, "n": 20, "pad": ""} and json.loads(letter["record"])["n"] == 20
    assert (letter["seq"], letter["event_id"], letter["attempts"]) == (1, place.letters[1].event_id, 1)
    assert '"n": 20' in place.call("show", "2").stdout
    assert place.problem("show", "9") == "dlq.no_letter"


def test_a_letter_of_a_processor_says_where_its_change_is(place: Place) -> None:
    place.journal.put([place.letter(2, processor="picky", row="", key=None)])
    assert place.json("show", "4")["letter"]["change"] is None
    assert "the change is in the log" in place.call("show", "4").stdout


def test_what_is_acknowledged_or_purged_lets_the_log_go(place: Place) -> None:
    place.journal.put([place.letter(2, processor="picky", row="")])
    hold_log(place.journal, "files", place.letters[0].log_id, place.shop.path, required=True)
    assert [each.name for each in Subscribers(place.shop.path).all()] == [f"shop-feed/files/{HOLD}"]
    assert place.json("ack", "4") == {"ok": True, "acknowledged": 1}
    assert Subscribers(place.shop.path).all() == []
    assert place.json("purge", "--key", '{"id": 1}') == {"ok": True, "purged": 2}
    assert place.states() == ["waiting", "acknowledged"]
    assert place.problem("ack") == place.problem("purge") == "dlq.no_choice"
    assert place.json("purge", "--all") == {"ok": True, "purged": 2}


def test_letters_are_exported_whole(place: Place) -> None:
    lines = [json.loads(line) for line in place.call("export", "--table", "orders").stdout.splitlines()]
    assert [each["change"]["after"]["n"] for each in lines] == [10, 20, 40]
    assert place.json("export")["letters"] == lines


def test_a_replay_is_a_dry_run_and_then_delivers_what_that_chose(place: Place) -> None:
    found = place.json("replay", "1", "2")
    assert found["counts"] == {"deliver": 2} and place.delivered() == []
    replay = found["replay"]["id"]
    assert f"--execute {replay}" not in place.call("list").stdout
    done = place.json("replay", "--execute", replay)
    assert (done["replay"]["state"], done["counts"]) == ("done", {"replayed": 2})
    assert place.delivered() == [10, 20] and place.states() == ["replayed", "replayed", "waiting"]
    assert place.json("replay", "--execute", replay)["counts"] == {"replayed": 2} and place.delivered() == [10, 20]
    assert place.problem("replay", "1", "--execute", replay) == "dlq.two_choices"
    assert place.problem("replay", "--execute", "nothing") == "dlq.no_replay"


def test_people_are_told_what_would_happen_to_each(place: Place) -> None:
    checkpoint = place.layout.sink("shop-feed", "files") / "checkpoint" / "offsets"
    checkpoint.mkdir(parents=True)
    (checkpoint / "0").write_text(f'v1\n{{}}\n{{"log": "{place.letters[0].log_id}", "offset": 4}}')
    place.journal.purge(LetterFilter(numbers=(3,)))
    text = place.call("replay").stdout
    assert "letter 1 (files): would be refused: the newer change at offset 3 was delivered" in text
    assert "letter 2 (files): would be delivered" in text and "nothing was delivered" in text


def test_a_running_pipeline_is_asked(place: Place) -> None:
    """Here one that never looks."""
    replay = place.json("replay")["replay"]["id"]
    with run_lock(place.layout, "shop-feed"):
        asked = place.json("replay", "--execute", replay, "--rate", "5", "--no-wait")
    assert (asked["replay"]["state"], asked["replay"]["rate"]) == ("requested", 5) and place.delivered() == []
    assert place.json("replay", "--execute", replay)["replay"]["state"] == "done"
    assert place.delivered() == [10, 20, 40]


def test_a_letter_of_a_sink_that_is_gone_stays(place: Place) -> None:
    place.document.write_text(place.document.read_text().replace("id: files", "id: renamed"))
    found = place.json("replay")
    assert found["counts"] == {"refuse": 3}
    assert place.json("replay", "--execute", found["replay"]["id"])["counts"] == {"refused": 3}
    assert set(place.states()) == {"waiting"}


def test_a_kill_between_delivery_and_outcome_repeats_nothing(place: Place) -> None:
    replay = place.json("replay")["replay"]["id"]
    line = [sys.executable, "-m", "tailrace", *place.line("replay", "--execute", replay)]
    killed = subprocess.run(line, env={**os.environ, "TAILRACE_FAILPOINT": "dlq.replay.delivered"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert set(place.states()) == {"waiting"} and place.delivered() == [10, 20]  # the third is of a key that was there
    assert place.json("replay", "--execute", replay)["counts"] == {"replayed": 3}
    assert place.delivered() == [10, 20, 40] and set(place.states()) == {"replayed"}
