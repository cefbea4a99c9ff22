"""`tailrace serve` as its users meet it: made through REST, killed, started again; source and target by content."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer
from tailrace.testing.servers.process import free_port
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.supervisor.service.serving import at_source, delivered

pytestmark = pytest.mark.slow


class Served:
    """A server in a process of its own, and a database."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db, self.folder = db, folder
        self.port = free_port()
        self.platform = folder / "platform.yaml"
        server = f"server: {{port: {self.port}}}"
        self.platform.write_text(
            f"{{data_dir: {folder}/data, spark: {crash.QUICK_SPARK}, retry: {{initial: 100ms, max: 1s}}, {server}}}"
        )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}/v1", trust_env=False, timeout=30)
        self.process: subprocess.Popen[bytes] | None = None
        self.rows = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "tailrace", "serve", "--platform-config", str(self.platform), "--json"]
        with open(self.folder / "serve.out", "ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env={**os.environ, "SHOP": self.db.dsn}
            )
        eventually(self.answers, 60, what=self.output)

    def answers(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx.TransportError:
            return False

    def output(self) -> str:
        logs = [*self.folder.glob("data/runtimes/*.log"), self.folder / "serve.out"]
        return "\n".join(log.read_text()[-2000:] for log in logs)

    def family(self) -> list[psutil.Process]:
        """The processes of the server, itself included."""
        assert self.process is not None
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def make(self, name: str) -> None:
        config = {"id": "shop", "dsn": "${SHOP}", "tables": ["public.*"], "snapshot": {"chunk_size": 50}}
        files = {"id": "files", "path": str(self.folder / name), "format": "parquet", "roll": {"every": "300ms"}}
        spec = {"source": {"type": "postgres", "config": config}, "sinks": [{"type": "file", "config": files}]}
        answer = self.client.post("/pipelines", json={"metadata": {"name": name}, "spec": spec})
        assert answer.is_success, answer.text

    def status(self, name: str) -> Any:
        return self.client.get(f"/pipelines/{name}").json()

    def sell(self, rows: int = 200) -> None:
        first, self.rows = self.rows, self.rows + rows
        self.db.run(f"INSERT INTO items SELECT n, 'v' FROM generate_series({first + 1}, {self.rows}) n")
        self.db.run("UPDATE items SET v = v || 'x' WHERE id % 7 = 3")

    def equals(self, *names: str) -> None:
        """Soon the files of these pipelines are what the source has."""
        for name in names:
            eventually(partial(self._equal, name), 120, what=self.output)

    def _equal(self, name: str) -> bool:
        return delivered(self.folder / name) == at_source(self.db, "items")


@pytest.fixture(scope="module")
def served(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Database(postgres) as db:
        db.run("CREATE TABLE items (id int PRIMARY KEY, v text)")
        made = Served(db, tmp_path_factory.mktemp("serve"))
        made.sell()
        made.start()
        try:
            yield made
        finally:
            for each in made.family() if made.process and made.process.poll() is None else []:
                each.kill()


@pytest.mark.timeout(400)
def test_a_server_that_is_killed_goes_on_where_it_was(served: Served) -> None:
    served.make("one")
    served.make("two")
    eventually(lambda: served.status("two")["status"] == "running", 120, what=served.output)
    served.equals("one", "two")
    served.client.post("/pipelines/two/pause")
    family = served.family()
    served.sell()
    family[0].send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(family, 20)[1], "nobody outlives the server"
    served.sell()
    served.start()
    assert served.status("two")["desired"] == "paused", "what was wished is remembered"
    served.equals("one")
    assert delivered(served.folder / "two") != at_source(served.db, "items")
    served.client.post("/pipelines/two/resume")
    served.equals("two")


def test_a_second_server_in_the_same_folder_is_refused(served: Served) -> None:
    command = [sys.executable, "-m", "tailrace", "serve", "--platform-config", str(served.platform), "--json"]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert json.loads(done.stdout)["problems"][0]["code"] == "serve.running"


def test_events_tell_what_happens_and_go_on_where_they_broke(served: Served) -> None:
    with served.client.stream("GET", "/events", params={"after": 0}) as stream:
        ids = [int(line[4:]) for line in _some(stream, 6) if line.startswith("id: ")]
    assert ids == sorted(set(ids))
    with served.client.stream("GET", "/events", headers={"Last-Event-ID": str(ids[0])}) as stream:
        again = [int(line[4:]) for line in _some(stream, 6) if line.startswith("id: ")]
    assert again[0] == ids[0] + 1


def test_a_signal_drains_everything(served: Served) -> None:
    served.sell()
    family = served.family()
    family[0].send_signal(signal.SIGTERM)
    assert served.process is not None
    assert served.process.wait(90) == 0, served.output()
    assert not psutil.wait_procs(family[1:], 20)[1]
    tap = json.loads((served.folder / "data" / "taps" / "shop.json").read_text())
    assert tap["state"] == "stopped"


def _some(stream: httpx.Response, lines: int) -> list[str]:
    found = []
    for line in stream.iter_lines():
        found.append(line)
        if sum(each.startswith("id: ") for each in found) >= lines:
            break
    return found
