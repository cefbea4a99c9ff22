"""The commands on a real server: a pipeline from PostgreSQL to files, made, changed, paused and watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tailrace.surfaces.cli import app
from tailrace.testing import crash
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database

pytestmark = pytest.mark.timeout(420)

ROWS = 200
LIMIT = "4m"
"""For what needs Spark to start; it takes seconds where nothing else runs."""


@dataclass
class Server:
    """`tailrace serve` as a child process, which wants tokens, and a user who has one."""

    db: Database
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.platform = self.folder / "platform.yaml"
        retry = "retry: {initial: 100ms, max: 1s}, server: {port: 0, tokens: always}"
        self.platform.write_text(f"{{data_dir: {self.folder}/data, spark: {crash.QUICK_SPARK}, {retry}}}")
        made = self.machine("token", "create", "me", "--scope", "admin", "--platform-config", str(self.platform))
        self.environ["TAILRACE_TOKEN"] = made["token"]

    def start(self) -> None:
        command = [sys.executable, "-m", "tailrace", "serve", "--platform-config", str(self.platform), "--json"]
        environ = {**os.environ, "SHOP_DSN": self.db.dsn}
        with open(self.folder / "serve.out", "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environ, start_new_session=True)
        eventually(lambda: "\n" in self.printed() or self.process.poll() is not None, 60, what=self.printed)
        self.environ["TAILRACE_URL"] = json.loads(self.printed().splitlines()[0])["address"]

    def end(self) -> None:
        """It drains."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self.printed()

    def printed(self) -> str:
        return (self.folder / "serve.out").read_text()

    def told(self) -> str:
        """For a test that waits in vain."""
        return CliRunner().invoke(app, ["status"], env=self.environ).output + self.printed()

    def tailrace(self, *words: str, exit_code: int = 0, **environ: str) -> str:
        done = CliRunner().invoke(app, list(words), env={**self.environ, **environ}, catch_exceptions=False)
        assert done.exit_code == exit_code, done.output + done.stderr
        return done.stdout

    def machine(self, *words: str, exit_code: int = 0, **environ: str) -> dict[str, Any]:
        [line] = self.tailrace(*words, "--json", exit_code=exit_code, **environ).splitlines()
        found: dict[str, Any] = json.loads(line)
        return found

    def file(self, name: str, *sinks: dict[str, Any]) -> str:
        """A document of a pipeline."""
        config = {"id": self.db.name, "dsn": "${SHOP_DSN}", "tables": ["public.*"], "snapshot": {"chunk_size": 50}}
        spec = {"source": {"type": "postgres", "config": config}, "sinks": list(sinks)}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"metadata": {"name": name}, "spec": spec}, sort_keys=False))
        return str(path)

    def files(self, **more: Any) -> dict[str, Any]:
        config = {"id": "files", "path": str(self.folder / "files"), "format": "jsonl", "roll": {"every": "300ms"}}
        return {"type": "file", "config": {**config, **more}}

    def delivered(self) -> list[dict[str, Any]]:
        return [event for event in crash.read_files(self.folder / "files") if event["op"] != "s"]

    def equals(self) -> None:
        """In the end the files are the table, each change once."""

        def equal() -> bool:
            want = {("items", key): {"id": key, "v": value} for key, value in self.db.rows("SELECT id, v FROM items")}
            return crash.fold(self.delivered()) == want

        eventually(equal, 90, every=0.2, what=self.told)
        ids = [event["event_id"] for event in self.delivered()]
        assert len(ids) == len(set(ids))

    def log_end(self) -> int:
        end = self.machine("describe", "shop")["pipeline"]["ops"]["source"]["log_end"]
        return int(end or 0)


@pytest.fixture(scope="module")
def server(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Database(postgres) as db:
        db.run(
            "CREATE TABLE items (id int PRIMARY KEY, v text)",
            f"INSERT INTO items SELECT n, 'v' || n FROM generate_series(1, {ROWS}) n",
        )
        made = Server(db, tmp_path_factory.mktemp("serving"))
        made.start()
        try:
            yield made
            made.end()
        finally:
            made.process.kill()


@pytest.fixture(scope="module")
def shop(server: Server) -> Server:
    """A server that runs the pipeline `shop`."""
    server.tailrace("apply", server.file("shop", server.files()), "--wait", "--timeout", LIMIT)
    return server


def test_what_is_applied_is_delivered(shop: Server) -> None:
    shop.equals()
    [row] = [line.split() for line in shop.tailrace("get").splitlines()[1:]]
    assert (row[0], row[-2:]) == ("shop", ["postgres", "file"])
    [told] = shop.machine("checkpoints", "shop")["checkpoints"]
    assert told["sink_id"] == "files" and told["position"] >= ROWS
    assert "healthy" in shop.tailrace("health")


def test_a_change_goes_live_by_its_plan_and_repeats_nothing(shop: Server) -> None:
    file = shop.file("shop", shop.files(roll={"every": "200ms"}))
    [plan] = shop.machine("apply", file, "--dry-run")["plans"]
    assert [(step["path"], step["effect"]) for step in plan["steps"]] == [
        ("spec.sinks.files.config.roll.every", "restart")
    ]
    shop.tailrace("apply", file, "--plan", plan["hash"], "--wait", "--timeout", LIMIT)
    problem = shop.machine("apply", file, "--plan", plan["hash"], exit_code=2)["problems"][0]
    assert problem["code"] == "plan.outdated"
    shop.db.run("UPDATE items SET v = 'changed' WHERE id % 3 = 0", "DELETE FROM items WHERE id % 7 = 0")
    shop.equals()


def test_what_is_paused_gets_nothing_and_then_everything(shop: Server) -> None:
    assert shop.tailrace("pause", "shop", "--wait") == "shop: paused\n"
    before, end = shop.delivered(), shop.log_end()

    def position() -> int:
        [told] = shop.machine("checkpoints", "shop")["checkpoints"]
        return int(told["position"])

    eventually(lambda: position() == end, 30, every=0.2, what=shop.told)  # it had everything
    shop.db.run(f"INSERT INTO items SELECT n, 'late' FROM generate_series({ROWS + 1}, {ROWS + 50}) n")
    eventually(lambda: shop.log_end() >= end + 50, 60, every=0.2, what=shop.told)  # its source is read all the same
    assert shop.delivered() == before
    assert shop.tailrace("resume", "shop", "--wait", "--timeout", LIMIT) == "shop: running\n"
    shop.equals()


def test_what_is_watched_is_seen(shop: Server) -> None:
    """As child processes, which Ctrl-C ends in order."""
    started = {name: shop.folder / f"{name}.out" for name in ("events", "status")}
    options = {"events": "--follow", "status": "--watch"}
    watching = []
    for name, path in started.items():
        command = [sys.executable, "-m", "tailrace", name, options[name], "--json"]
        with open(path, "wb") as output:
            environ = {**os.environ, **shop.environ}
            watching.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ))

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in started[name].read_text().split("\n")[:-1]]

    try:
        eventually(lambda: lines("status"), 60, what=shop.told)

        def paused() -> bool:
            """The events begin with the next one: until they do, more is done."""
            shop.tailrace("resume", "shop")
            shop.tailrace("pause", "shop", "--wait")
            return any(each["event"].get("to") == "paused" for each in lines("events"))

        eventually(paused, 90, every=0.5, what=shop.told)
        eventually(lambda: lines("status")[-1]["pipelines"][0]["status"] == "paused", 60, what=shop.told)
    finally:
        for each in watching:
            each.send_signal(signal.SIGINT)
        assert [each.wait(30) for each in watching] == [0, 0], [path.read_text() for path in started.values()]
    shop.tailrace("resume", "shop", "--wait", "--timeout", LIMIT)


def test_a_pipeline_that_is_not_well_is_told_with_its_reason(shop: Server) -> None:
    away = {"type": "http", "config": {"id": "away", "url": "http://127.0.0.1:9/"}}
    words = ["apply", shop.file("lost", away), "--wait", "--timeout", "15s", "--json"]
    [problem] = json.loads(shop.tailrace(*words, exit_code=1).splitlines()[-1])["problems"]
    assert problem["code"] == "wait.timeout"

    def degraded() -> bool:
        worst = shop.machine("status")["pipelines"][0]
        return [worst["name"], worst["status"]] == ["lost", "degraded"] and bool(worst["matters"])

    eventually(degraded, 60, every=0.2, what=shop.told)
    assert "sink.unavailable" in shop.tailrace("status")
    broken = [each for each in shop.machine("health", exit_code=1)["components"] if each["status"] != "healthy"]
    assert {each["component"] for each in broken} == {"pipeline lost", "lost/sink:away"}
    shop.tailrace("delete", "lost", "--yes")
    assert shop.machine("status", "lost", exit_code=2)["problems"][0]["code"] == "pipeline.missing"
    eventually(lambda: len(shop.machine("health")["components"]) == 4, 60, what=shop.told)


def test_a_token_that_is_wrong_or_void_opens_nothing(shop: Server) -> None:
    place = ("--platform-config", str(shop.platform))
    made = shop.machine("token", "create", "ci", *place)
    assert shop.machine("get", TAILRACE_TOKEN=made["token"])["pipelines"][0]["name"] == "shop"
    [problem] = shop.machine("pause", "shop", exit_code=2, TAILRACE_TOKEN=made["token"])["problems"]
    assert problem["code"] == "access.forbidden"
    shop.tailrace("token", "revoke", "ci", *place)
    for token in (made["token"], made["token"][:-1], ""):
        [problem] = shop.machine("get", exit_code=2, TAILRACE_TOKEN=token)["problems"]
        assert problem["code"] == "access.denied" and "tailrace token create" in problem["hint"]


def test_a_server_that_was_ended_is_told(shop: Server) -> None:
    """The last: it stops and starts the server, and finds its pipeline again."""
    assert shop.tailrace("stop", "shop", "--wait") == "shop: stopped\n"
    shop.end()
    [problem] = shop.machine("status", exit_code=3)["problems"]
    assert problem["code"] == "server.unreachable" and "tailrace serve" in problem["hint"]
    shop.start()
    [found] = shop.machine("get")["pipelines"]
    assert (found["name"], found["desired"], found["version"]) == ("shop", "stopped", 2)
