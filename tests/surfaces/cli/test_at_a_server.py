"""The commands that talk to a server, over one that runs nothing: what its pipelines do is made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tailrace.supervisor.service import Service
from tailrace.supervisor.service.states import Finding
from tailrace.supervisor.status import PipelineStatus, SinkStatus, SnapshotStatus, TableStatus, TapStatus
from tailrace.surfaces.cli import app
from tailrace.surfaces.cli import server as shared
from tailrace.surfaces.client import Client
from tests.surfaces.in_process import Served, document, serving

TAP = TapStatus("shop", "running", rows=1234, lag_bytes=0, lag_s=0.0, head=1000)
SINK = SinkStatus(
    "shop",
    "files",
    "file",
    "shop",
    "running",
    offset=990,
    lag_rows=10,
    lag_s=1.5,
    tables={"public.orders": TableStatus(900, 100, 1_000_000), "public.items": TableStatus(90, 100, None)},
)
AWAY = Finding("sink:files", "degraded", "sink.unavailable", "the disk is full", "free some space")


@dataclass
class Shell:
    """A user's terminal, with files of his own."""

    served: Served
    folder: Path

    def file(self, content: Mapping[str, Any], name: str = "shop.yaml") -> str:
        path = self.folder / name
        path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
        return str(path)

    def tailrace(self, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(app, list(words), input=answer, catch_exceptions=False)

    def says(self, *words: str, exit_code: int = 0) -> str:
        done = self.tailrace(*words)
        assert done.exit_code == exit_code, done.output
        return done.stdout

    def machine(self, *words: str, exit_code: int = 0) -> dict[str, Any]:
        """The one line that a machine gets."""
        [line] = self.says(*words, "--json", exit_code=exit_code).splitlines()
        found: dict[str, Any] = json.loads(line)
        assert found["ok"] is (exit_code == 0)
        return found

    def fails(self, *words: str, exit_code: int = 2) -> dict[str, Any]:
        [problem] = self.machine(*words, exit_code=exit_code)["problems"]
        found: dict[str, Any] = problem
        return found

    def has(self, *names: str) -> None:
        for name in names:
            self.says("apply", self.file(document(name)))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    with serving(tmp_path) as served:
        monkeypatch.setattr("tailrace.surfaces.client.connect", lambda environ: served.client())
        yield Shell(served, tmp_path)


def columns_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# -- apply -------------------------------------------------------------------------------------------------------------


def test_a_plan_is_printed_and_a_dry_run_changes_nothing(shell: Shell) -> None:
    told = shell.says("apply", shell.file(document()), "--dry-run")
    assert told.splitlines()[0] == "shop: a new pipeline"
    assert "nothing was changed" in told
    assert shell.machine("get")["pipelines"] == []
    assert shell.says("apply", shell.file(document())).splitlines()[-1] == "shop: created, version 1"
    assert shell.says("apply", shell.file(document())).splitlines()[0] == "shop: nothing changes, it is at version 1"


def test_each_field_is_told_with_what_it_costs(shell: Shell) -> None:
    shell.has("shop")
    changed = document(roll={"every": "1s"})
    changed["metadata"]["labels"]["team"] = "ops"
    changed["spec"]["source"]["config"]["tables"] = ["public.orders"]
    note = "tables that join are read if the source has a `snapshot`"
    first, *steps, plan, end = shell.says("apply", shell.file(changed), "--dry-run").splitlines()
    assert first == "shop: 3 of its fields change, from version 1"
    assert steps == [
        '  live     metadata.labels.team: "pay" → "ops"',
        f'  re-read  spec.source.config.tables: ["public.*"] → ["public.orders"] ({note})',
        '  restart  spec.sinks.files.config.roll: nothing → {"every": "1s"}',
    ]
    [told] = shell.machine("apply", shell.file(changed), "--dry-run")["plans"]
    assert plan == f"  plan {told['hash']}"
    assert [step["effect"] for step in told["steps"]] == ["live", "re-read", "restart"]
    assert "nothing was changed" in end


def test_a_plan_is_applied_by_its_hash_unless_the_world_has_moved(shell: Shell) -> None:
    shell.has("shop")
    changed = shell.file(document(format="parquet"))
    other = shell.file(document(compression="gzip"), "other.yaml")
    [plan] = shell.machine("apply", changed, "--dry-run")["plans"]
    assert shell.fails("apply", other, "--plan", plan["hash"])["code"] == "plan.outdated"  # it is another's
    [applied] = shell.machine("apply", changed, "--plan", plan["hash"])["applied"]
    assert (applied["outcome"], applied["pipeline"]["version"]) == ("changed", 2)
    problem = shell.fails("apply", changed, "--plan", plan["hash"])
    assert (problem["code"], problem["hint"]) == ("plan.outdated", "look at the plan of now, and apply that one")
    assert shell.machine("get", "shop")["pipelines"][0]["version"] == 2
    assert shell.fails("apply", changed, other, "--plan", plan["hash"])["code"] == "plan.one_document"


def test_what_is_wrong_in_a_file_is_told_with_its_line_and_changes_nothing(shell: Shell) -> None:
    good, bad = shell.file(document("good")), shell.folder / "bad.yaml"
    text = yaml.safe_dump(document("bad"), sort_keys=False)
    bad.write_text(text.replace("format: jsonl", "format: jsonl\n      rol: 3"))
    line = bad.read_text().splitlines().index("      rol: 3") + 1
    done = shell.tailrace("apply", good, str(bad))
    assert done.exit_code == 2
    assert "error[config.unknown_key] spec.sinks[0].config.rol: unknown key" in done.stderr
    assert f"at {bad}:{line}" in done.stderr and "did you mean `roll`?" in done.stderr
    problem = shell.fails("apply", good, str(bad))
    assert (problem["file"], problem["line"], problem["where"]) == (str(bad), line, f"{bad}:{line}")
    bad.write_text("metadata: {name: bad}\nspec:\n  sinks: []\n")  # the source is missing: the line of what lacks it
    assert shell.machine("apply", str(bad), exit_code=2)["problems"][0]["line"] == 2
    bad.write_text("metadata: [")
    assert shell.fails("apply", good, str(bad))["code"] == "config.syntax"
    assert shell.fails("apply", good, good)["code"] == "config.duplicate_name"
    assert shell.fails("apply", str(shell.folder / "none.yaml"))["code"] == "config.unreadable"
    assert shell.machine("get")["pipelines"] == []


def test_a_document_goes_out_without_its_secret_and_comes_back_with_it(shell: Shell) -> None:
    secret = document()
    secret["spec"]["source"]["config"]["dsn"] = "postgresql://cdc:hunter2@127.0.0.1:1/shop"
    shell.says("apply", shell.file(secret))
    text = shell.says("get", "shop", "--document")
    assert "hunter2" not in text
    edited = shell.folder / "edited.yaml"
    edited.write_text(text.replace("format: jsonl", "format: parquet"))
    [step] = shell.machine("apply", str(edited))["applied"][0]["plan"]["steps"]
    assert (step["path"], step["after"]) == ("spec.sinks.files.config.format", "parquet")
    kept = shell.served.service._documents.get("pipeline", "shop")
    assert kept is not None and kept.content is not None
    assert kept.content["spec"]["source"] == secret["spec"]["source"]
    for command in (["get"], ["describe", "shop"], ["status"], ["events"]):
        assert "hunter2" not in shell.says(*command) + shell.says(*command, "--json")


# -- get, delete -------------------------------------------------------------------------------------------------------


def test_pipelines_are_listed_by_label(shell: Shell) -> None:
    assert shell.says("get") == "there are no pipelines: tailrace apply makes them\n"
    shell.has("shop", "other")
    shell.served.pretend("shop", "running")
    head, other, shop = columns_of(shell.says("get"))
    assert head == ["NAME", "STATUS", "FOR", "DESIRED", "VERSION", "SOURCE", "SINKS", "LABELS"]
    assert other == ["other", "created", "running", "1", "postgres", "file", "team=pay"]
    assert shop == ["shop", "running", "2", "min", "running", "1", "postgres", "file", "team=pay"]
    assert len(shell.machine("get", "--label", "team=pay", "--label", "team")["pipelines"]) == 2
    assert shell.machine("get", "--label", "team=ops")["pipelines"] == []
    assert shell.says("get", "--label", "team=ops") == "there are no such pipelines\n"
    assert shell.fails("get", "nope")["code"] == "pipeline.missing"
    assert shell.fails("get", "shop", "--label", "a")["code"] == "get.two_choices"
    assert shell.fails("get", "--document")["code"] == "get.no_name"


def test_who_deletes_is_asked(shell: Shell) -> None:
    shell.has("shop", "other")
    for answer in ("n\n", ""):
        assert shell.tailrace("delete", "shop", answer=answer).exit_code == 1
    assert len(shell.machine("get")["pipelines"]) == 2
    done = shell.tailrace("delete", "shop", answer="y\n")
    assert done.exit_code == 0 and done.stdout.endswith("shop: deleted\n")
    assert "what its sinks have stay" in done.stderr
    assert shell.machine("delete", "other", "--yes") == {"ok": True, "deleted": "other"}
    assert shell.fails("delete", "other", "--yes")["code"] == "pipeline.missing"


# -- waiting -----------------------------------------------------------------------------------------------------------


class Story:
    """A pipeline that goes through states while somebody waits, one a look."""

    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch, *states: str, **parts: Any) -> None:
        left = iter(states)
        look = Client.pipeline

        def pipeline(client: Client, name: str) -> Any:
            state = next(left, None)
            if state is not None:
                shell.served.pretend(name, state, **parts)
            return look(client, name)

        monkeypatch.setattr(Client, "pipeline", pipeline)
        monkeypatch.setattr(shared, "POLL_S", 0.0)


def test_a_command_waits_until_it_is_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.has("shop")
    shell.served.pretend("shop", "running")  # of before
    Story(shell, monkeypatch, "running", "running", "paused")
    done = shell.tailrace("pause", "shop", "--wait")
    assert (done.exit_code, done.stdout) == (0, "shop: paused\n")
    assert done.stderr == "shop: running, waiting for paused\n"
    Story(shell, monkeypatch, "starting", "snapshotting")  # while it reads what was there, it runs
    assert shell.machine("resume", "shop", "--wait")["pipelines"][0]["status"] == "snapshotting"
    Story(shell, monkeypatch, "running", "stopped")
    assert shell.says("stop", "shop", "--wait") == "shop: stopped\n"
    assert shell.says("resume", "shop") == "shop: shall be running\n"


def test_apply_waits_for_what_is_desired_of_each(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.has("shop")
    shell.says("pause", "shop")
    Story(shell, monkeypatch, "running", "paused")
    told = shell.machine("apply", shell.file(document(format="parquet")), "--wait")
    assert [each["status"] for each in told["pipelines"]] == ["paused"]


def test_a_wait_ends_with_the_reason_of_a_failure(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.has("shop")
    gone = Finding("source:shop", "failed", "source.slot_lost", "the slot is gone", "tailrace snapshot --repair")
    Story(shell, monkeypatch, "starting", "failed", findings=(gone,))
    problem = shell.fails("resume", "shop", "--wait", exit_code=1)
    assert problem == {
        "code": "source.slot_lost",
        "message": "the slot is gone",
        "hint": "tailrace snapshot --repair",
        "where": "pipeline shop, source:shop",
    }


def test_a_wait_that_takes_too_long_says_what_it_waits_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.has("shop")
    Story(shell, monkeypatch, "degraded", findings=(AWAY,))
    done = shell.tailrace("resume", "shop", "--wait", "--timeout", "0s")
    assert done.exit_code == 1
    assert "error[wait.timeout] shop is degraded, and not running, after 0 s" in done.stderr
    assert "the disk is full" in done.stderr and "hint: free some space" in done.stderr
    assert shell.fails("stop", "shop", "--timeout", "soon")["code"] == "wait.bad_timeout"
    assert shell.served.service.get("shop").desired == "running"  # that was seen before anything was done


# -- looking -----------------------------------------------------------------------------------------------------------


def test_the_worst_comes_first_with_its_reason_and_way_out(shell: Shell) -> None:
    shell.has("a", "b", "c", "d")
    shell.served.pretend("a", "running", tap=TAP, sinks=(replace(SINK, pipeline="a"),))
    shell.served.pretend("b", "degraded", findings=(AWAY,))
    shell.served.pretend("c", "failed")
    told = shell.says("status").splitlines()
    assert [line.split()[:2] for line in told[1:5]] == [
        ["c", "failed"],
        ["b", "degraded"],
        ["d", "created"],
        ["a", "running"],
    ]
    assert told[4].split() == ["a", "running", "2", "min", "990", "10", "1.5", "s"]
    assert told[5:] == ["b: sink:files: error[sink.unavailable]: the disk is full", "  hint: free some space"]
    assert [each["name"] for each in shell.machine("status")["pipelines"]] == ["c", "b", "d", "a"]
    assert shell.machine("status", "--label", "none")["pipelines"] == []


def test_one_pipeline_is_shown_with_its_parts(shell: Shell) -> None:
    shell.has("shop")
    reading = SnapshotStatus("shop", "r1", "public.items", "reading", 40, 100)
    shell.served.pretend("shop", "snapshotting", tap=TAP, sinks=(SINK,), snapshots=(reading,))
    told = shell.says("status", "shop").splitlines()
    assert told[2:] == [
        "tap shop: running, 1,234 rows captured",
        "snapshot shop: public.items reading, 40 of about 100 rows",
        "sink shop/files: running, 990 rows delivered, 0/s, 10 rows behind",
    ]
    described = shell.says("describe", "shop")
    for part in ("snapshotting for 2 min", "team=pay", "public.orders  files  900", "public.items: reading, 40 rows"):
        assert part in described
    assert shell.machine("describe", "shop")["pipeline"]["ops"]["snapshots"][0]["estimate"] == 100


def test_checkpoints_are_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.has("shop")
    assert shell.says("checkpoints", "shop") == "none: no sink has begun\n"
    assert shell.machine("checkpoints", "shop") == {"ok": True, "checkpoints": [], "committed": None}
    monkeypatch.setattr(Service, "checkpoints", lambda service, name: {"files": 990, "lake": None})
    head, *rows = columns_of(shell.says("checkpoints", "shop"))
    assert (head, rows) == (
        ["SINK", "POSITION", "WAITING"],
        [["files", "990", "unknown"], ["lake", "unknown", "unknown"]],
    )
    committed = PipelineStatus("shop", "all", 990)
    shell.served.pretend("shop", "running", sinks=(SINK,), committed=committed)
    assert columns_of(shell.says("checkpoints", "shop"))[1] == ["files", "990", "10"]
    told = shell.machine("checkpoints", "shop")
    assert (told["committed"], told["checkpoints"][0]["position"]) == (990, 990)
    assert shell.fails("checkpoints", "nope")["code"] == "pipeline.missing"


@pytest.mark.parametrize(
    ("state", "desired", "parts", "words"),
    [
        ("running", "running", {"tap": TAP, "sinks": (SINK,)}, ["healthy", "healthy", "healthy"]),
        ("snapshotting", "running", {}, ["healthy"]),
        ("paused", "paused", {"tap": TAP}, ["healthy", "healthy"]),
        ("stopped", "stopped", {}, ["healthy"]),
        ("running", "paused", {}, ["unknown"]),
        ("starting", "running", {"tap": replace(TAP, state="starting")}, ["unknown", "unknown"]),
        (
            "degraded",
            "running",
            {"tap": TAP, "sinks": (SINK,), "findings": (AWAY,)},
            ["unhealthy", "healthy", "unhealthy"],
        ),
        ("paused", "paused", {"findings": (Finding("source:shop", "failed", "x.y", "gone"),)}, ["unhealthy"] * 2),
    ],
    ids=["well", "reading", "paused", "stopped", "pausing", "starting", "degraded", "paused-failed"],
)
def test_health_is_that_of_every_component(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, state: str, desired: str, parts: dict[str, Any], words: list[str]
) -> None:
    shell.has("shop")
    turn: dict[str, Callable[[], Any]] = {
        "paused": lambda: shell.says("pause", "shop"),
        "stopped": lambda: shell.says("stop", "shop"),
    }
    turn.get(desired, str)()
    shell.served.pretend("shop", state, **parts)
    monkeypatch.setattr(Client, "is_alive", lambda self: True)
    well = set(words) == {"healthy"}
    told = shell.machine("health", exit_code=0 if well else 1)["components"]
    assert [each["status"] for each in told] == ["healthy", *words]
    title, head, *lines = shell.says("health", exit_code=0 if well else 1).splitlines()
    assert (title, head.split()) == ("Platform Health", ["COMPONENT", "STATUS", "DETAIL"])
    assert len(lines) == 1 + len(words)
    assert all(each["detail"] for each in told)


def test_a_server_that_runs_nothing_is_not_healthy(shell: Shell) -> None:
    [server] = shell.machine("health", exit_code=1)["components"]
    assert (server["component"], server["status"]) == ("server", "unhealthy")


def test_events_are_told(shell: Shell) -> None:
    shell.has("shop")
    shell.says("pause", "shop")
    first, second, third = shell.says("events").splitlines()
    assert "document.put  pipeline shop  version=1" in first
    assert "pipeline.desire  pipeline shop" in second and "to=running" in second
    assert "pipeline.desire  pipeline shop" in third and "to=paused" in third
    lines = [json.loads(line) for line in shell.says("events", "--after", "1", "--json").splitlines()]
    assert [(each["ok"], each["event"]["number"]) for each in lines] == [(True, 2), (True, 3)]


def test_a_server_that_is_away_is_told_by_every_command(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.testing.servers.process import free_port

    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr("tailrace.surfaces.client.connect", lambda environ: Client(url))
    file = shell.file(document())
    named = [[command, "shop"] for command in ("describe", "pause", "resume", "stop", "delete", "checkpoints")]
    plain = [[command] for command in ("get", "status", "health", "events")]
    for words in [["apply", file], *named, *plain, ["status", "--watch"], ["events", "--follow"]]:
        problem = shell.fails(*words, exit_code=3)
        assert (problem["code"], "TAILRACE_URL" in problem["hint"]) == ("server.unreachable", True), words
        assert "tailrace serve" in problem["hint"]
