"""What is away is waited for, honestly; what is wrong is said plainly; nothing is lost and nobody sees a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.testing.crash import QUICK_SPARK, Victim
from tailrace.testing.servers import KafkaBroker, PostgresServer
from tailrace.testing.waiting import eventually
from tests.test_crash import read_topic

DOCUMENT = """
metadata: {{name: outage}}
spec:
  source: {{type: postgres, config: {{id: outage, dsn: "{dsn}", tables: [public.t]}}}}
  sinks:
    - {{type: kafka, config: {{id: kafka, brokers: "{brokers}", topic: outage, send_timeout_secs: 3}}}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Victim]:
    platform = tmp_path / "platform.yaml"
    platform.write_text(f"{{data_dir: {tmp_path}/data, spark: {QUICK_SPARK}, retry: {{initial: 200ms, max: 1s}}}}")
    victim = Victim([tmp_path / "pipeline.yaml"], platform, tmp_path / "data", "outage")
    yield victim
    if victim.process is not None and victim.process.poll() is None:
        victim.kill("both")
    assert "Traceback" not in victim.data_dir.with_suffix(".out").read_text()


def statuses(victim: Victim) -> list[dict[str, Any]]:
    """Every status the run printed so far."""
    lines = victim.data_dir.with_suffix(".out").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"started"')]


def logged(victim: Victim) -> list[dict[str, Any]]:
    """What the run has logged."""
    lines = victim.data_dir.with_suffix(".out").read_text().splitlines()
    return [json.loads(line) for line in lines if '"event":' in line]


def sink_error(victim: Victim) -> str | None:
    found = statuses(victim)
    sinks = found[-1]["sinks"] if found else []
    return sinks[0]["error"]["code"] if sinks and sinks[0]["error"] else None


@pytest.mark.timeout(240)
def test_kafka_is_down_at_the_start_and_in_the_middle(run: Victim) -> None:
    with (
        PostgresServer(18) as server,
        KafkaBroker() as broker,
        psycopg.connect(server.dsn(), autocommit=True) as database,
    ):
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        broker.stop()
        run.files[0].write_text(DOCUMENT.format(dsn=server.dsn(), brokers=broker.bootstrap))
        run.start()
        eventually(run.tap_pid, 60, what=run.output)
        database.execute("INSERT INTO t SELECT g, 'start' FROM generate_series(1, 500) g")
        eventually(lambda: sink_error(run) == "sink.unavailable", 60, what=run.output)

        broker.start()
        eventually(lambda: offset(run) >= 500, 60, what=run.output)
        broker.kill()
        database.execute("UPDATE t SET v = 'middle'")
        eventually(lambda: sink_error(run) == "sink.unavailable", 60, what=run.output)
        broker.start()
        eventually(lambda: offset(run) >= 1000, 90, what=run.output)
        assert run.terminate(60) == 0, run.output()

        told = [line["event"] for line in logged(run) if line.get("sink") == "kafka" and line["level"] != "info"]
        assert told == ["pipeline.sink_write_error"] * 2, "once for each outage, however often it was tried"
        assert [line["event"] for line in logged(run)].count("sink.recovered") == 2

        rows: dict[int, list[str]] = {}
        for event in {record["event_id"]: record for record in read_topic(broker, "outage")}.values():
            rows.setdefault(event["after"]["id"], []).append(event["after"]["v"])
        assert rows == {number: ["start", "middle"] for number in range(1, 501)}


def offset(victim: Victim) -> int:
    """How far the sink is by the last status; 0 where its query has not begun."""
    found = statuses(victim)
    return max((sink["offset"] or 0 for status in found[-1:] for sink in status["sinks"]), default=0)


@pytest.mark.timeout(120)
def test_a_database_that_is_away_is_waited_for_and_one_that_cannot_replicate_is_not(
    run: Victim,
) -> None:
    with PostgresServer(16, settings={"wal_level": "replica"}) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as database:
            database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        server.stop()
        run.files[0].write_text(DOCUMENT.format(dsn=server.dsn(), brokers="127.0.0.1:1"))
        run.start()
        eventually(lambda: tap(run).get("state") == "waiting", 60, what=run.output)
        assert tap(run)["error"]["code"] == "source.unreachable"
        server.start()
        assert run.finish(60) == 3, run.output()
        problem = json.loads(run.output().splitlines()[-1])["problems"][0]
        assert problem["code"] == "source.wal_level"
        assert "wal_level = logical" in problem["hint"]
        assert server.password not in run.data_dir.with_suffix(".out").read_text()


def tap(victim: Victim) -> dict[str, Any]:
    found = statuses(victim)
    taps: list[dict[str, Any]] = found[-1]["taps"] if found else []
    return taps[0] if taps else {}
