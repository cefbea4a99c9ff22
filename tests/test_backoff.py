"""Waits double up to a bound and start over after a success."""

from __future__ import annotations

from tailrace.backoff import Backoff
from tailrace.contracts import SinkRetry
from tailrace.spec.platform import Retry


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(1.0, 10.0, 0.0)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next() == 1


def test_jitter_is_a_share_of_the_wait() -> None:
    low, high = Backoff(1.0, 60.0, 0.2, min), Backoff(1.0, 60.0, 0.2, max)
    assert [low.next(), low.next()] == [0.8, 1.6]
    assert [high.next(), high.next()] == [1.2, 2.4]


def test_what_each_wait_is_multiplied_by() -> None:
    backoff = Backoff(1.0, 100.0, 0.0, multiplier=3.0)
    assert [backoff.next() for _ in range(6)] == [1, 3, 9, 27, 81, 100]
    assert backoff.tries == 6
    backoff.reset()
    assert backoff.tries == 0


def test_what_a_sink_says_goes_over_what_the_platform_says() -> None:
    platform = Retry.from_document({"initial": "2s", "max": "1m", "jitter": 0, "multiplier": 3})
    own = SinkRetry(initial_wait_seconds=0.5, max_wait_seconds=4)
    assert [platform.backoff().next()] == [2.0]
    backoff = platform.backoff(own)
    assert [backoff.next() for _ in range(4)] == [0.5, 1.5, 4.0, 4.0]
