"""What is told of a tap: what it said last, as long as that can be true, and how old its word is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.capture.postgres import PostgresSource
from tailrace.capture.tap import write_status
from tailrace.changelog import LogWriter
from tailrace.spec import Platform
from tailrace.supervisor.layout import Layout
from tailrace.supervisor.run import taps
from tailrace.supervisor.run.taps import TapProcess
from tailrace.supervisor.status import HolderStatus, TapStatus
from tailrace.testing.captures import capture, insert
from tailrace.testing.servers import PostgresServer
from tailrace.testing.waiting import eventually
from tests.capture.running import Database

SLOT: dict[str, Any] = {"wal_status": "reserved", "lag_bytes": 0, "lag_s": 0.0, "held_bytes": 9, "time_to_loss_s": 1.0}


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(data_dir=tmp_path / "data")


@pytest.fixture
def tap(platform: Platform) -> TapProcess:
    """A tap that says what the test says."""
    source = PostgresSource.model_validate({"id": "db", "dsn": "postgresql://localhost/db", "tables": ["a"]})
    return TapProcess("postgres", source, platform)


def says(tap: TapProcess, platform: Platform, state: str, *, age: float = 0.0, slot: float = 0.0, **more: Any) -> None:
    now = time.time()
    told = {"state": state, "pid": 7, "at": now - age, "slot_at": now - slot, "rows": 3, **SLOT, **more}
    write_status(Layout(platform.data_dir).tap_status(tap.source_id), told)


def of_slot(status: TapStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in SLOT}


NOTHING = dict.fromkeys(SLOT) | {"wal_status": ""}


def test_before_its_first_word_nothing_is_known(tap: TapProcess) -> None:
    assert tap.status() == TapStatus("db", "starting")
    assert (tap.status().lag_bytes, tap.status().head, tap.status().age_s) == (None, None, None)


def test_a_fresh_word_is_believed(tap: TapProcess, platform: Platform) -> None:
    says(tap, platform, "running", slot=9.0, last_commit_us=0, holders=[{"name": "a/b", "rows": 1, "bytes": 2}])
    tap.notices = ("old",)
    status = tap.status()
    assert (status.state, status.rows, of_slot(status)) == ("running", 3, SLOT)
    assert status.age_s is not None and status.age_s < 5.0
    assert (status.last_commit_us, status.holders, status.warnings) == (None, (HolderStatus("a/b", 1, 2),), ("old",))


@pytest.mark.parametrize("state", ["running", "blocked"])
def test_a_tap_that_says_nothing_for_seconds_is_silent(tap: TapProcess, platform: Platform, state: str) -> None:
    says(tap, platform, state, age=7.0)
    status = tap.status()
    assert (status.state, of_slot(status)) == ("silent", NOTHING)
    assert status.age_s is not None and status.age_s >= 7.0


@pytest.mark.parametrize(("state", "slot"), [("running", 31.0), ("waiting", 0.0), ("stopped", 0.0)])
def test_what_it_saw_of_its_slot_is_not_told_for_long(
    tap: TapProcess, platform: Platform, state: str, slot: float
) -> None:
    says(tap, platform, state, slot=slot)
    assert (tap.status().state, of_slot(tap.status())) == (state, NOTHING)


def test_a_log_that_cannot_be_read_is_the_taps_failure(tap: TapProcess, platform: Platform) -> None:
    log = Layout(platform.data_dir).log("db")
    with closing(LogWriter(log, "db")) as writer:
        writer.append(capture([insert(1)]))
        assert tap.status().head == 1
        writer.append(capture([insert(2)], first_xid=2))
        [file] = (log / "manifest").iterdir()
        file.write_bytes(file.read_bytes()[:-20] + b"x" * 19 + b"\n")
    tap.tick()
    assert tap.failure is not None and tap.failure.code == "log.corrupt"
    status = tap.status()
    assert (status.state, status.head) == ("failed", None)
    assert status.error is not None and status.error["code"] == "log.corrupt"


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    with Database(postgres) as made:
        made.run("CREATE TABLE t (id int PRIMARY KEY)")
        yield made


def test_a_stopped_process_is_silent_until_it_goes_on(
    db: Database, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = TapProcess("postgres", db.source(), platform)
    tap.start()
    try:
        eventually(lambda: tap.status().lag_bytes is not None, 60)
        monkeypatch.setattr(taps, "SILENT_S", 1.0)
        pid = tap.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: tap.status().state == "silent", 30)
        assert tap.status().lag_bytes is None
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: tap.status().state == "running", 30)
    finally:
        tap.kill()
