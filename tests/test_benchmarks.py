"""The benchmarks measure what they say, at sizes that only prove that they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.meter import Meter, Usage, proportional_mib
from benchmarks.report import Bar, Measurement, Report, best

ROOT = Path(__file__).parent.parent


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the command and return what it wrote as JSON, which it also prints at the end."""
    file = folder / "results.json"
    command = [sys.executable, "-m", "benchmarks", *arguments, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(file.read_text())
    results: dict[str, Any] = json.loads(file.read_text())
    return results


@pytest.mark.slow
def test_the_tap_is_measured_on_the_same_wal(tmp_path: Path) -> None:
    results = bench(tmp_path, "tap", "--rows", "2000", "--passes", "1")
    assert [(each["name"], each["rows"]) for each in results["measurements"]] == [
        ("pg_recvlogical", 2000),
        ("tap", 2000),
    ]
    assert {bar["name"] for bar in results["bars"]} == {"tap / pg_recvlogical", "tap CPU per million rows"}


@pytest.mark.soak
def test_steps_are_measured_beside_reading_alone(tmp_path: Path) -> None:
    """With the hundred rows that warmed the tap."""
    results = bench(tmp_path, "debezium", "javascript", "--rows", "3000", "--passes", "1")
    assert [(each["name"], each["rows"]) for each in results["measurements"]] == [
        ("changes read", 3100),
        ("debezium values", 3100),
        ("changes read", 3100),
        ("javascript", 3100),
    ]
    bars = ["debezium values, on a core", "debezium values / changes read", "events through a script"]
    assert [bar["name"] for bar in results["bars"]] == bars


@pytest.mark.soak
def test_the_whole_road_is_measured_on_the_same_wal(tmp_path: Path) -> None:
    sizes = ("--rows", "2000", "--passes", "1", "--seconds", "1", "--warm-up", "1")
    results = bench(tmp_path, "tap", "road", "latency", "idle", *sizes)
    measured = {each["name"]: each for each in results["measurements"]}
    assert [each["name"] for each in results["measurements"]] == [
        "pg_recvlogical",
        "tap",
        "road",
        "latency",
        "idle",
    ]
    assert [measured[name]["rows"] for name in ("pg_recvlogical", "tap", "road")] == [2000, 2000, 2000]
    assert measured["latency"]["rows"] == 200 * 5 * 2
    assert 0 < measured["latency"]["more"]["p50_ms"] <= measured["latency"]["more"]["p99_ms"]
    roles = {"tap", "driver", "spark jvm", "spark workers", "broker", "walsender"}
    assert roles <= measured["road"]["usage"]["cpu_s"].keys()
    assert measured["road"]["usage"]["cpu_s"]["spark jvm"] > 0
    assert {bar["name"] for bar in results["bars"]} == {
        "tap / pg_recvlogical",
        "tap CPU per million rows",
        "road / pg_recvlogical",
        "latency p50",
        "latency p99",
        "idle CPU",
    }


@pytest.mark.soak
def test_the_lake_is_measured_against_statements_by_hand(tmp_path: Path) -> None:
    results = bench(tmp_path, "lake", "--rows", "2000", "--passes", "2", "--formats", "iceberg3")
    sides = ["iceberg3 upsert by hand", "iceberg3 upsert", "iceberg3 append by hand", "iceberg3 append"]
    counted = [(each["name"], each["rows"]) for each in results["measurements"]]
    assert sorted(counted) == sorted((side, 2000) for side in sides for _ in range(2))
    assert [bar["name"] for bar in results["bars"]] == ["iceberg3 upsert / by hand", "iceberg3 append / by hand"]


@pytest.mark.soak
def test_a_trickle_is_measured_beside_debezium(tmp_path: Path) -> None:
    results = bench(tmp_path, "trickle", "--seconds", "5", "--warm-up", "0")
    measured = {each["name"]: each for each in results["measurements"]}
    assert [*measured] == ["trickle, first minute", "trickle, warm", "debezium, first minute", "debezium, warm"]
    for each in measured.values():
        assert each["rows"] > 1000 * 4
        assert 0 < each["more"]["p50_ms"] <= each["more"]["p99_ms"]
        assert each["more"]["cores"] > 0
        assert each["more"]["pss_mib"] > 100
    bars = ["trickle, first minute", "trickle, warm", "trickle p99, warm", "trickle PSS"]
    assert [bar["name"] for bar in results["bars"]] == bars


@pytest.mark.soak
def test_freshness_is_measured(tmp_path: Path) -> None:
    results = bench(tmp_path, "freshness", "--seconds", "5", "--warm-up", "5", "--formats", "iceberg3")
    [measured] = results["measurements"]
    assert 0 < measured["more"]["p50_s"] <= measured["more"]["p99_s"]


@pytest.mark.slow
def test_memory_is_measured_at_two_sizes(tmp_path: Path) -> None:
    results = bench(tmp_path, "memory", "--rows", "1000")
    assert [each["rows"] for each in results["measurements"]] == [1000, 5000]
    assert all(each["usage"]["peak_mib"]["tap"] > 20 for each in results["measurements"])


def test_a_meter_sees_the_cpu_time_of_a_role() -> None:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    with Meter({burner.pid: "burner"}) as meter:
        while _cpu_s(burner.pid) < 0.3:
            time.sleep(0)
    burner.kill()
    burner.wait()
    usage = meter.usage()
    assert usage.cpu_s["burner"] >= 0.25
    assert usage.cpu_s["burner"] <= usage.wall_s + 0.05
    assert usage.peak_mib["burner"] > 1


def test_pages_that_processes_share_count_once() -> None:
    taken = bytearray(os.urandom(64 << 20))
    alone = proportional_mib([os.getpid()])
    child = os.fork()
    if child == 0:
        signal.pause()
    both = proportional_mib([os.getpid(), child])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert alone >= len(taken) / (1 << 20)
    assert both < alone + 32


def test_a_measurement_may_be_shorter_than_a_millisecond() -> None:
    with Meter({}) as meter:
        pass
    found = Measurement("pg_recvlogical", 2000, meter.usage())
    assert found.rows_per_s > 0
    assert json.loads(Report(1, [found]).as_json())["measurements"][0]["usage"]["wall_s"] > 0


def test_the_best_of_several_passes_counts() -> None:
    slow, fast = (Measurement("tap", 1000, Usage(wall, {}, {}, 0.0)) for wall in (2.0, 1.0))
    assert best([slow, fast], "tap") is fast


@pytest.mark.parametrize(("value", "relation", "met"), [(0.8, "≥", True), (0.7, "≥", False), (0.8, "≤", False)])
def test_a_missed_bar_is_said(value: float, relation: str, met: bool) -> None:
    bar = Bar("tap / pg_recvlogical", value, relation, 0.75)
    assert bar.met is met
    assert json.loads(Report(1, bars=[bar]).as_json())["bars"][0]["met"] is met


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.soak
def test_the_mirror_is_measured_against_statements_by_hand(tmp_path: Path) -> None:
    results = bench(tmp_path, "mirror", "--rows", "2000", "--passes", "2")
    counted = [(each["name"], each["rows"]) for each in results["measurements"]]
    assert sorted(counted) == sorted((side, 2000) for side in ("mirror", "mirror by hand") for _ in range(2))
    assert [bar["name"] for bar in results["bars"]] == ["mirror / by hand"]


@pytest.mark.soak
def test_sinks_are_measured_beside_loops_of_clients(tmp_path: Path) -> None:
    results = bench(tmp_path, "sinks", "--rows", "5000", "--passes", "2")
    sides = [f"{name}{side}" for name in ("redis streams", "nats", "http batches") for side in ("", ", client loop")]
    counted = [(each["name"], each["rows"]) for each in results["measurements"]]
    assert sorted(counted) == sorted((side, 1000) for side in sides for _ in range(2))
    assert results["bars"] == []


@pytest.mark.soak
def test_a_fan_out_is_measured_with_two_servers_away(tmp_path: Path) -> None:
    results = bench(tmp_path, "fanout", "--rows", "20000", "--passes", "2")
    counted = [(each["name"], each["rows"]) for each in results["measurements"]]
    there, away = (("kafka, the others there", 2000), ("kafka, the others away", 2000))
    assert counted == [there, away, away, there]
    assert [bar["name"] for bar in results["bars"]] == ["kafka, the others away / there"]
