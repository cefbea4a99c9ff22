"""Steps that take a while are told when they begin and while they last, and not after their end."""

from __future__ import annotations

import re
import time

import pytest

from tailrace.surfaces.cli.steps import Steps
from tailrace.testing.waiting import eventually

SOON_S = 0.01


def test_a_step_is_told_again_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def hear() -> list[str]:
        told.extend(re.sub(r"^tailrace: +\d+ s  ", "", line) for line in capsys.readouterr().err.splitlines())
        return told

    with Steps(repeat_s=SOON_S) as steps:
        steps.begin("digging")
        eventually(lambda: hear().count("digging …") > 1, 10)
        steps.begin("filling")
        eventually(lambda: "filling …" in hear(), 10)
        steps.end("digging")  # another step lasts: that one is still told
        count = hear().count("filling …")
        eventually(lambda: hear().count("filling …") > count, 10)
        steps.end("filling")
        hear()
        steps.tell("done")
    last = [line for line in hear() if line != "filling …"]
    assert last[0] == "digging" and last[-2:] == ["filling", "done"]
    assert told[-1] == "done"


def test_seconds_are_since_whenever_it_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(time.time() - 100)
    steps.tell("a line")
    assert re.fullmatch(r"tailrace: 10\d s  a line\n", capsys.readouterr().err)
    assert 100 <= steps.seconds < 110
    assert Steps(time.time() + 100).seconds == 0
