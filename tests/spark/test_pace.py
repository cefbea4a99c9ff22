"""When batches start, decided from times alone."""

from __future__ import annotations

import pytest

from tailrace.spark.pace import Pace


def ran(pace: Pace, *seconds: float) -> float:
    """Batches one after the other, each taking so long; returns when the last one was committed."""
    now = 100.0
    for each in seconds:
        pace.begin(now)
        now += each
        pace.end(now)
    return now


def test_the_first_batch_does_not_wait() -> None:
    assert Pace(0.3).left_s(5.0) == 0.0


def test_the_next_batch_starts_so_that_it_is_in_time() -> None:
    pace = Pace(0.3)
    now = ran(pace, *[0.1] * 50)
    assert pace.left_s(now) == pytest.approx(0.1, abs=1e-6)
    assert pace.left_s(now + 0.05) == pytest.approx(0.05, abs=1e-6)
    assert pace.left_s(now + 0.1) == pytest.approx(0.0, abs=1e-6)


def test_after_a_pause_nothing_waits() -> None:
    pace = Pace(0.3)
    assert pace.left_s(ran(pace, 0.1, 0.1) + 10.0) == 0.0


def test_batches_that_take_half_of_the_objective_follow_each_other() -> None:
    pace = Pace(0.3)
    assert pace.left_s(ran(pace, *[0.16] * 50)) == 0.0


def test_one_slow_batch_counts_at_once_and_is_forgotten_slowly() -> None:
    pace, steady = Pace(1.0), Pace(1.0)
    usual = steady.left_s(ran(steady, *[0.1] * 50))
    after_slow = pace.left_s(ran(pace, *[0.1] * 49, 0.3)) + 0.2
    assert after_slow == pytest.approx(usual - 0.1, abs=1e-3)
    pace = Pace(1.0)
    assert pace.left_s(ran(pace, *[0.3] * 49, 0.1)) == pytest.approx(1.0 - 0.29 - 0.1, abs=1e-3)


def test_without_an_objective_nothing_waits() -> None:
    pace = Pace(0.0)
    assert pace.left_s(ran(pace, 0.01)) == 0.0


def test_only_a_batch_that_ran_is_measured() -> None:
    pace = Pace(0.3)
    now = ran(pace, *[0.1] * 50)
    pace.end(now + 60.0)
    pace.begin(now + 60.0)
    assert pace.left_s(now + 60.0) == pytest.approx(0.2, abs=1e-6)
