"""A sink's status says so when the batch bound is the bottleneck, and only then."""

from __future__ import annotations

from tailrace.spark.query import Progress
from tailrace.supervisor.run.deliveries import BOUND_WARNING_BATCHES, _Pressure


def test_a_run_of_batches_that_only_the_bound_ended_is_a_warning() -> None:
    pressure = _Pressure()
    for batches in range(1, BOUND_WARNING_BATCHES):
        assert pressure.warnings(Progress(0, batches, bound_limited=batches)) == ()
    [warning] = pressure.warnings(Progress(0, BOUND_WARNING_BATCHES, bound_limited=BOUND_WARNING_BATCHES))
    assert "max_events" in warning


def test_one_batch_that_took_all_there_was_ends_the_warning() -> None:
    pressure = _Pressure()
    assert pressure.warnings(Progress(0, 20, bound_limited=20))
    assert pressure.warnings(Progress(0, 21, bound_limited=20)) == ()
    assert pressure.warnings(Progress(0, 30, bound_limited=29)) == ()
