"""Counts by size, as Prometheus reads them."""

from __future__ import annotations

from tailrace.histogram import Histogram


def test_figures_are_counted_up_to_and_with_their_bound() -> None:
    found = Histogram.empty((1.0, 10.0)).seen(0.5, 1.0, 1.5, 10.0, 11.0)
    assert (found.counts, found.count, found.total) == ((2, 2, 1), 5, 24.0)
    assert found.cumulative() == [("1.0", 2.0), ("10.0", 4.0), ("+Inf", 5.0)]


def test_two_are_added_up_and_neither_changes() -> None:
    one, other = Histogram.empty((1.0,)).seen(0.5), Histogram.empty((1.0,)).seen(2.0, 3.0)
    assert one.plus(other) == Histogram((1.0,), (1, 2), 5.5)
    assert one.counts == (1, 0)
