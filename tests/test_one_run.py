"""One run of a whole pipeline: it is scraped, its log is read, its position at the source is lost, and all of it is
told to end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.changelog import LogReader, head
from tailrace.testing.servers import PostgresServer
from tailrace.testing.servers.process import free_port
from tailrace.testing.waiting import eventually
from tests.capture.running import Database
from tests.scraping import Figures, ask, figures
from tests.whole import System

pytestmark = pytest.mark.slow

VALUE = "canary-value-9e2f"
"""What a row holds: it is not in what a run says."""


class Scraped(System):
    """A pipeline that tells its metrics."""

    def __init__(self, db: Database, folder: Path) -> None:
        super().__init__(db, folder, mode="when_needed")
        self.port = free_port()
        self.platform.write_text(
            f"{self.platform.read_text().removesuffix('}')}, ports: {{metrics: {{port: {self.port}}}}}}}"
        )
        self.sink = ("system", "files", db.name)

    def figures(self) -> Figures:
        return figures(ask(self.port)[1])

    def log(self) -> LogReader:
        return LogReader(self.folder / "data" / "logs" / self.db.name)

    def printed(self) -> list[dict[str, Any]]:
        """What `run --json` has shown."""
        return [line for line in self.lines() if "started" in line]

    def logged(self) -> list[dict[str, Any]]:
        """What the run has logged."""
        return [line for line in self.lines() if "event" in line]

    def logged_by_tap(self) -> list[dict[str, Any]]:
        text = (self.folder / "data" / "taps" / f"{self.db.name}.log").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def lines(self) -> list[dict[str, Any]]:
        """All of it is JSON, also what goes to standard error."""
        lines = (self.folder / "data.out").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def settled(self) -> Figures | None:
        """The figures, once nothing is left to read or to deliver."""
        idle = not self.ledger.runs(self.db.name, "active") and self.ledger.runs(self.db.name, "done")
        end = head(self.folder / "data" / "logs" / self.db.name) if idle else 0
        found = self.figures()
        told = (found.get(("source_log_end_offset", self.db.name)), found.get(("sink_offset", *self.sink)))
        return found if end and told == (end, end) else None


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    with Database(postgres) as db:
        made = Scraped(db, tmp_path_factory.mktemp("run"))
        db.run("CREATE TABLE items (id int PRIMARY KEY, v text)")
        db.run(f"INSERT INTO items SELECT n, '{VALUE}' FROM generate_series(1, 300) n")
        made.start()
        try:
            eventually(made.settled, 90, what=made.victim.output)
            yield made
        finally:
            made.victim.kill("both")


def test_what_is_scraped_is_the_status(shop: Scraped) -> None:
    scraped: dict[float, Figures] = {}

    def told_twice() -> tuple[Figures, dict[str, Any]] | None:
        """A status that was scraped and printed."""
        found = shop.figures()
        scraped[found["status_timestamp_seconds",]] = found
        return next(((scraped[line["at"]], line) for line in shop.printed() if line["at"] in scraped), None)

    pair = eventually(told_twice, 20, what=shop.victim.output)
    assert pair is not None
    found, status = pair
    [tap], [sink], source = status["taps"], status["sinks"], shop.db.name
    assert found["source_state", source, tap["state"]] == found["sink_state", *shop.sink, sink["state"]] == 1
    assert (tap["state"], sink["state"], sink["tables"]["public.items"]["rows"]) == ("running", "running", 300)
    assert found["sink_rows_total", *shop.sink, "public.items"] == 300
    assert found["sink_offset", *shop.sink] == sink["offset"]
    assert found["sink_batches_total", *shop.sink] == sink["batches"]
    assert found["sink_lag_bytes", *shop.sink] == sink["lag_bytes"] == 0
    assert found["sink_table_lag_seconds", *shop.sink, "public.items"] == 0
    assert found["source_snapshot_rows_total", source] == 300
    assert found["source_log_bytes_total", source] == sum(line.bytes for line in shop.log().lines) > 0
    assert found["source_schema_versions", source, "public.items"] == 1
    batches = found["sink_batches_total", *shop.sink]
    assert batches == found["sink_batch_seconds_count", *shop.sink] == found["sink_batch_rows_count", *shop.sink] > 0
    mean = found["sink_delay_seconds_sum", *shop.sink] / found["sink_delay_seconds_count", *shop.sink]
    assert 0 < mean < status["at"] - status["started"]
    assert status["started"] < found["sink_last_delivery_timestamp_seconds", *shop.sink] <= status["at"]
    assert found["source_lag_bytes", source] == tap["lag_bytes"]
    assert found["source_retained_wal_bytes", source] == tap["held_bytes"] > 0
    assert ("source_safe_wal_bytes", source) not in found, "the server has no bound"


def test_what_happened_is_logged(shop: Scraped) -> None:
    lines, source, sink = shop.logged(), shop.db.name, {"pipeline": "system", "sink": "files", "source": shop.db.name}
    events = [line["event"] for line in lines]
    assert events[0] == "pipeline.started" and events.count("snapshot.finished") == 1
    assert {"level": "info", "state": "running", "was": "starting", **sink}.items() <= first(
        lines, "sink.state_changed"
    ).items()
    assert first(lines, "source.state_changed")["source"] == source
    streaming = first(shop.logged_by_tap(), "source.streaming")
    assert (streaming["source"], bool(streaming["position"])) == (source, True)
    assert len(lines) < 20, "progress is not logged"


def first(lines: list[dict[str, Any]], event: str) -> dict[str, Any]:
    """The first of these."""
    return next(line for line in lines if line["event"] == event)


def test_its_state_is_its_owners_alone(shop: Scraped) -> None:
    """What Spark's JVM writes has other permissions, in folders that nobody else enters."""
    data = shop.folder / "data"
    state = [path for path in (data, *data.rglob("*")) if "checkpoint" not in path.relative_to(data).parts]
    assert {path.name for path in state} >= {"control.db", "segments", "manifest", "spark.log", "staged", "run.lock"}
    assert [str(path) for path in state if path.exists() and path.stat().st_mode & 0o077] == []


def test_when_needed_reads_everything_anew(shop: Scraped) -> None:
    """The slot is dropped, and what happens until the tap notices is in no stream."""
    tap = shop.victim.tap_pid()
    assert tap is not None
    os.kill(tap, signal.SIGSTOP)
    shop.db.drop_slots()
    shop.db.run("DELETE FROM items WHERE id < 50", "UPDATE items SET v = 'new' WHERE id < 100")
    os.kill(tap, signal.SIGCONT)
    eventually(lambda: len(shop.ledger.runs(shop.db.name)) == 2, 30, what=shop.victim.output)
    eventually(shop.settled, 60, what=shop.victim.output)
    shop.compare("items")
    assert first(shop.logged_by_tap(), "source.started_over")["hint"]


def test_a_signal_to_every_process_drains(shop: Scraped) -> None:
    """Rows are on their way when the tap, the JVM, Spark's Python processes and the driver get it. What they have begun
    they finish; what is left comes with the next run."""
    shop.db.run("UPDATE items SET v = 'before'")
    shop.db.run("INSERT INTO items SELECT n, 'more' FROM generate_series(1000, 30000) n")
    before = len(shop.lines())
    assert shop.victim.terminate_everyone(60) == 0, shop.victim.output()
    said = (shop.folder / "data.out").read_text()
    assert "Traceback" not in said
    assert not [line for line in shop.lines()[before:] if '"code"' in json.dumps(line)], "nothing failed at the end"
    assert shop.logged()[-1]["event"] == "pipeline.stopped"
    assert first(shop.logged_by_tap(), "source.stopped")["position"]
    shop.catch_up()
    shop.compare("items")


def test_no_secret_and_no_row_was_said(shop: Scraped) -> None:
    """After all of that, in everything that the run and its tap said."""
    for file in (shop.folder / "data.out", *(shop.folder / "data" / "taps").iterdir()):
        text = file.read_text()
        assert text and VALUE not in text and shop.db.server.password not in text, file.name
