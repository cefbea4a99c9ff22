"""Dead letters of a whole pipeline: a processor fails for some rows, the run is killed before the batch with their
letters is committed, goes on without them, and delivers them once the processor is mended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.control import Store
from tailrace.control.journal import Journal
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.whole import System

pytestmark = pytest.mark.slow

PICKY = "def process(event): return event if (event['after'] or {}).get('v') != 'bad' else 1 / 0"
MENDED = "def process(event): return event"


class Letters(System):
    """A pipeline with a journal, behind a Python function."""

    def __init__(self, db: Database, folder: Path) -> None:
        super().__init__(db, folder, mode="initial")
        step = json.dumps({"type": "python", "id": "picky", "inline": PICKY})
        text = self.document.read_text()
        self.document.write_text(f"{text}  processors: [{step}]\n  journal: {{enabled: true}}\n")

    def mend(self) -> None:
        self.document.write_text(self.document.read_text().replace(json.dumps(PICKY), json.dumps(MENDED)))

    def letters(self) -> list[tuple[str, str, str, int]]:
        with closing(Store(self.folder / "data" / "control.db")) as store:
            kept = Journal(store, "system").find()
        return [(each.letter.state, each.letter.processor, each.letter.key or "", each.attempts) for each in kept]

    def snapshot_rows(self) -> int:
        return len([row for row in self.events() if row["op"] == "r"])

    def dlq(self, *words: str) -> dict[str, Any]:
        command, *rest = words
        line = [sys.executable, "-m", "tailrace", "dlq", command, str(self.document), *rest]
        line += ["--platform-config", str(self.platform), "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.mark.timeout(300)
def test_no_change_vanishes_and_none_comes_twice(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database(postgres) as db:
        system = Letters(db, tmp_path)
        db.run("CREATE TABLE items (id int PRIMARY KEY, v text)")
        db.run("INSERT INTO items SELECT n, CASE n % 20 WHEN 7 THEN 'bad' ELSE 'v' END FROM generate_series(1, 60) n")
        with monkeypatch.context() as patched:
            patched.setitem(os.environ, "TAILRACE_FAILPOINT", "dlq.letters.durable")
            system.victim.start("--until-caught-up")
            assert system.victim.finish(120) == -signal.SIGKILL
        bad = [("waiting", "picky", f'{{"id":{n}}}', 1) for n in (7, 27, 47)]
        assert system.letters() == bad and system.snapshot_rows() == 0
        db.run("UPDATE items SET v = 'w' WHERE id = 27")
        system.catch_up()
        assert [(*letter[:3], letter[3] > 1) for letter in system.letters()] == [(*each[:3], True) for each in bad]
        assert system.snapshot_rows() == 57
        system.mend()
        system.victim.start()
        eventually(system.victim.tap_pid, 60, what=system.victim.output)
        chosen = system.dlq("replay")
        assert chosen["counts"] == {"deliver": 2, "refuse": 1}  # of one row there is a newer change at the sink
        done = system.dlq("replay", "--execute", chosen["replay"]["id"])
        assert done["counts"] == {"replayed": 2, "refused": 1}
        assert system.victim.terminate(60) == 0
        assert [letter[0] for letter in system.letters()] == ["replayed", "waiting", "replayed"]
        system.compare("items")
        assert system.dlq("ack", "--all")["acknowledged"] == 1
