"""Failpoints: they kill where they are named, and each one in the source has a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.failpoints import failpoint
from tailrace.testing.failpoints import dies_at

ROOT = Path(__file__).parents[1]
PASSING = (
    "from tailrace.failpoints import failpoint\nfor _ in range(3):\n    failpoint('a.step'); print('on', flush=True)"
)


@pytest.mark.parametrize(("wanted", "passed"), [("a.step", 0), ("a.step:3", 2)])
def test_the_environment_names_where_to_die(wanted: str, passed: int) -> None:
    environment = {**os.environ, "TAILRACE_FAILPOINT": wanted}
    done = subprocess.run([sys.executable, "-c", PASSING], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "on\n" * passed


def test_nothing_happens_where_none_is_wanted() -> None:
    failpoint("a.step")


def test_a_block_that_does_not_reach_its_failpoint_fails() -> None:
    with pytest.raises(AssertionError, match=r"a\.step was not reached"), dies_at("a.step"):
        failpoint("another.step")


def test_every_failpoint_is_used_by_a_test() -> None:
    named = {
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text())
    }
    tested = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py") if file.name != Path(__file__).name)
    assert sorted(name for name in named if f'"{name}"' not in tested) == []
