"""A sink's tables are tended for as long as its query runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tailrace.sinks.tables import Debt
from tailrace.supervisor.run.care import tended
from tailrace.testing.waiting import eventually


class Counting:
    def __init__(self, wait: float) -> None:
        self.wait, self.times = wait, 0

    def tend(self) -> float:
        self.times += 1
        return self.wait

    def debts(self) -> Mapping[str, Debt]:
        return {}

    def warnings(self) -> tuple[str, ...]:
        return ()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("care/")]


def test_again_and_again_until_the_query_ends() -> None:
    care = Counting(0.001)
    with tended(care, "shop/lake"):
        eventually(lambda: care.times > 3)
        assert threads() == ["care/shop/lake"]
    assert threads() == []


def test_an_end_does_not_wait_for_the_interval() -> None:
    care = Counting(3600)
    with tended(care, "shop/lake"):
        eventually(lambda: care.times == 1)
    assert threads() == [] and care.times == 1


def test_a_sink_that_wants_no_upkeep_has_no_thread() -> None:
    with tended(None, "shop/lake"):
        assert threads() == []
