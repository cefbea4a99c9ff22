"""Nobody delivers after death: kill the driver, the JVM or a worker while tasks write, and read what came
late."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.logs import Shop
from tests.spark.sinks import read_lines
from tests.spark.stage import wait_until

pytestmark = pytest.mark.slow
ROWS = 6000
"""Enough for two tasks."""
LATE_S = 0.5
"""What a dying process may still write: the kernel needs a moment on a busy machine."""


class Road:
    """A driver in a process of its own, delivering slowly; see `zombie_driver.py`."""

    def __init__(self, directory: Path) -> None:
        self.out = directory / "out"
        with_log = Shop(directory / "log")
        with_log.commit(ROWS)
        with_log.writer.close()
        command = [sys.executable, str(Path(__file__).with_name("zombie_driver.py")), str(directory)]
        self.driver = subprocess.Popen(command)
        self.family: list[psutil.Process] = []

    def wait_for_writers(self) -> None:
        """Until both tasks are in the middle of it."""
        wait_until(lambda: len(self.writers()) == 2)
        self.family = psutil.Process(self.driver.pid).children(recursive=True)

    def stop(self) -> None:
        self.driver.kill()
        self.driver.wait()

    def writers(self) -> set[int]:
        return {line["pid"] for line in read_lines(self.out)}

    def jvm(self) -> psutil.Process:
        return next(process for process in self.family if process.name() == "java")

    def daemon(self) -> psutil.Process:
        return psutil.Process(next(iter(self.writers()))).parent() or self.jvm()

    def kill(self, pid: int) -> float:
        os.kill(pid, signal.SIGKILL)
        return time.time()

    def assert_gone(self) -> None:
        wait_until(lambda: not any(alive(process) for process in self.family))


@pytest.fixture
def road(tmp_path: Path) -> Iterator[Road]:
    running = Road(tmp_path)
    try:
        running.wait_for_writers()
        yield running
    finally:
        running.stop()
        running.assert_gone()


def test_nothing_is_delivered_after_the_driver_dies(road: Road) -> None:
    road.jvm().suspend()  # as in a long garbage collection: it cannot end its workers itself
    assert_silence(road, road.driver.pid)


def test_nothing_is_delivered_after_the_jvm_dies(road: Road) -> None:
    road.daemon().suspend()  # it cannot end its workers itself
    psutil.Process(road.driver.pid).suspend()  # nor can the driver, which would end without its JVM
    assert_silence(road, road.jvm().pid)


def test_nothing_is_delivered_after_the_daemon_dies(road: Road) -> None:
    assert_silence(road, road.daemon().pid)


def alive(process: psutil.Process) -> bool:
    """Whether it can still do something; one that is dead may wait for its adoptive parent to notice."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_silence(road: Road, victim: int) -> None:
    writers = [process for process in road.family if process.pid in road.writers()]
    killed = road.kill(victim)
    wait_until(lambda: not any(alive(process) for process in writers))
    first = [line["at"] - killed for line in read_lines(road.out) if line["attempt"] == "1"]
    assert max(first) < LATE_S
    assert len(first) < ROWS


def test_the_attempt_after_a_killed_worker_waits_for_its_siblings(road: Road) -> None:
    """Spark abandons the sibling's task seconds before its process ends; nobody may overtake it in between."""
    road.kill(next(iter(road.writers())))
    assert road.driver.wait(timeout=120) == 0  # it tries again, as a supervisor would, until all is delivered

    attempts: dict[str, list[dict[str, Any]]] = {"1": [], "2": []}
    for line in read_lines(road.out):
        attempts[line["attempt"]].append(line)
    assert sorted(line["seq"] for line in attempts["2"]) == list(range(ROWS))
    assert max(line["at"] for line in attempts["1"]) <= min(line["at"] for line in attempts["2"])
