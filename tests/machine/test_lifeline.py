"""Processes that die with those they work for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

SOURCE = str(Path(__file__).parents[2] / "src")

TREES = {
    # Each prints the pid that must die; the one that is killed is the process itself.
    "hold": """
        pid = os.fork()
        if pid == 0:
            lifeline.hold(os.getppid())
            print(os.getpid(), flush=True)
        signal.pause()
    """,
    "bind_to_parent": """
        pid = os.fork()
        if pid == 0:
            lifeline.bind_to_parent()
            print(os.getpid(), flush=True)
        signal.pause()
    """,
    "post_sentinel": """
        boss, ward = os.getpid(), os.fork()
        if ward == 0:
            os.setpgid(0, 0)
            lifeline.post_sentinel(os.getpid(), over=[boss])
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.fork()  # a worker, which only its group tells apart
            print(os.getpid(), flush=True)
        signal.pause()
    """,
}


def start(tree: str, expected: int) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    head = f"import os, signal, sys\nsys.path.insert(0, {SOURCE!r})\nfrom tailrace.machine import lifeline\n"
    code = head + textwrap.dedent(tree)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(expected):
        process.stdout.readline()
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize(
    ("tie", "announced", "dependants"), [("hold", 1, 1), ("bind_to_parent", 1, 1), ("post_sentinel", 2, 3)]
)
def test_dependants_die_with_the_process(tie: str, announced: int, dependants: int) -> None:
    process, family = start(TREES[tie], announced)
    assert len(family) == dependants
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_sentinel_leaves_with_its_ward() -> None:
    process, family = start(TREES["post_sentinel"], 2)
    ward = next(child for child in family if child.ppid() == process.pid)
    sentinel = next(child for child in family if os.getsid(child.pid) == child.pid)
    worker = next(child for child in family if child not in (ward, sentinel))
    ward.kill()
    _, alive = psutil.wait_procs([sentinel], timeout=10)
    assert alive == []
    assert process.poll() is None
    for other in (worker, process):
        other.kill()
    process.wait()
