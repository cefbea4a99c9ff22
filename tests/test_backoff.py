"""Waits double up to a bound and start over after a success."""

from __future__ import annotations

from tailrace.backoff import Backoff


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(1.0, 10.0, 0.0)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next() == 1


def test_jitter_is_a_share_of_the_wait() -> None:
    low, high = Backoff(1.0, 60.0, 0.2, min), Backoff(1.0, 60.0, 0.2, max)
    assert [low.next(), low.next()] == [0.8, 1.6]
    assert [high.next(), high.next()] == [1.2, 2.4]
