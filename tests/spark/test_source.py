"""Where batches end, decided without Spark."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.changelog import LogReader, Subscribers
from tailrace.errors import LogError
from tailrace.passage import Parcel, find
from tailrace.spark import source
from tailrace.spark.checkpoint import Mark
from tailrace.spark.control import Control, Orders
from tailrace.spark.source import (
    Planner,
    ReadOptions,
    StreamReader,
    pack_partitions,
    partitions_of,
    unpack_partitions,
)
from tests.spark.logs import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path / "log")
    yield opened
    opened.writer.close()


@pytest.fixture
def options(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadOptions:
    monkeypatch.setattr(source, "IDLE_S", 0.05)
    return ReadOptions(path=str(shop.path), state=str(tmp_path), start=0, initial=0)


def ends(planner: Planner) -> list[int]:
    """Ends of batches until nothing more is planned."""
    found: list[int] = []
    while (end := planner.next_end().offset) != (found[-1] if found else 0):
        found.append(end)
    return found


def test_options_survive_being_text(options: ReadOptions) -> None:
    given = replace(options, log="a1", required=False, linger_ms=5, respect_source_tx=False)
    text = {name.upper(): value for name, value in given.as_text().items()}
    assert ReadOptions.from_text(text) == given


def test_a_source_without_a_path_says_so() -> None:
    with pytest.raises(LogError, match="no change log is named"):
        ReadOptions.from_text({})


def test_batches_end_at_transactions_within_the_bound(shop: Shop, options: ReadOptions) -> None:
    shop.commit(3, 3, 3)
    shop.commit(20, 1)
    assert ends(Planner(replace(options, max_events=6))) == [6, 9, 29, 30]


def test_without_respect_for_transactions_the_bound_is_exact(shop: Shop, options: ReadOptions) -> None:
    shop.commit(20)
    assert ends(Planner(replace(options, max_events=6, respect_source_tx=False))) == [6, 12, 18, 20]


def test_a_planner_continues_where_its_checkpoint_ends(shop: Shop, options: ReadOptions) -> None:
    shop.commit(3, 3, 3)
    planner = Planner(replace(options, start=3, max_events=3))
    assert planner.initial().offset == 0
    assert ends(planner) == [6, 9]


def test_nothing_is_planned_past_the_target(shop: Shop, options: ReadOptions, tmp_path: Path) -> None:
    shop.commit(3)
    shop.commit(3)
    Control(tmp_path).give(Orders(target=3))
    assert ends(Planner(replace(options, linger_ms=3_600_000))) == [3]


def test_draining_plans_nothing_and_says_so(shop: Shop, options: ReadOptions, tmp_path: Path) -> None:
    shop.commit(3)
    control = Control(tmp_path)
    planner = Planner(options)
    assert ends(planner) == [3]
    control.give(Orders(drain=True))
    shop.commit(3)
    assert not control.drained()
    assert planner.next_end().offset == 3
    assert control.drained()
    control.give(Orders())
    assert not control.drained()
    assert planner.next_end().offset == 6


def test_a_change_waits_for_company_but_not_for_ever(shop: Shop, options: ReadOptions) -> None:
    shop.commit(3)
    appended = time.time()
    planner = Planner(replace(options, linger_ms=200))
    assert planner.next_end().offset == 0
    while planner.next_end().offset == 0:
        assert time.time() < appended + 30
    assert time.time() - appended >= 0.19


def test_a_full_batch_does_not_wait(shop: Shop, options: ReadOptions) -> None:
    shop.commit(3)
    shop.commit(3)
    patient = replace(options, linger_ms=3_600_000)
    assert Planner(replace(patient, linger_bytes=1)).next_end().offset == 6
    assert Planner(replace(patient, max_events=3)).next_end().offset == 3


class Clock:
    """Time that passes only while somebody sleeps, who may be interrupted by `then`."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now, self._then = 0.0, then

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._then()


def paced(options: ReadOptions, clock: Clock, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Planner:
    """A planner whose first batch just began."""
    monkeypatch.setattr(source, "IDLE_S", 60.0)
    planner = Planner(replace(options, latency_ms=300, **settings), clock, clock.sleep)
    assert planner.next_end().offset == 3
    assert clock.now == 0.0, "the first batch waits for nothing"
    return planner


def test_a_batch_starts_as_late_as_it_may(shop: Shop, options: ReadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.commit(3)
    clock = Clock()
    planner = paced(options, clock, monkeypatch)
    clock.now, usual = 0.1, 0.05
    shop.commit(3)
    assert planner.next_end().offset == 6
    assert clock.now == pytest.approx(0.3 - usual)


def test_a_full_batch_is_not_held_back(shop: Shop, options: ReadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.commit(3)
    clock = Clock()
    planner = paced(options, clock, monkeypatch, max_events=3)
    shop.commit(3, 3, 1)
    assert [planner.next_end().offset for _ in range(2)] == [6, 9]
    assert clock.now == 0.0


def test_a_change_after_a_pause_is_not_held_back(
    shop: Shop, options: ReadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.commit(3)
    clock = Clock(lambda: shop.commit(3) if clock.now > 1.0 else None)
    planner = paced(options, clock, monkeypatch)
    assert planner.next_end().offset == 6
    assert clock.now <= 1.0 + source.LAST_POLL_S


@pytest.mark.parametrize(("orders", "end"), [(Orders(drain=True), 3), (Orders(target=6), 6)])
def test_orders_are_not_held_back(
    shop: Shop, options: ReadOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: Orders, end: int
) -> None:
    shop.commit(3)
    control = Control(tmp_path)
    clock = Clock(lambda: control.give(orders) if clock.now <= source.PACED_POLL_S else None)
    planner = paced(options, clock, monkeypatch)
    shop.commit(3)
    monkeypatch.setattr(source, "IDLE_S", 2 * source.PACED_POLL_S)
    assert planner.next_end().offset == end
    assert control.drained() is orders.drain
    assert clock.now <= 2 * source.PACED_POLL_S


def test_a_fixed_wait_takes_the_place_of_the_pace(
    shop: Shop, options: ReadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "IDLE_S", 60.0)
    clock = Clock()
    planner = Planner(replace(options, latency_ms=300, linger_ms=3_600_000, linger_rows=3), clock, clock.sleep)
    for end in (3, 6):
        shop.commit(3)
        assert planner.next_end().offset == end
    assert clock.now == 0.0


def test_what_a_job_reads_survives_being_text(shop: Shop) -> None:
    end = shop.commit(6000)
    slices = LogReader(shop.path).slices(0, end, 2)
    assert len(slices) == 2
    found = unpack_partitions(pack_partitions(partitions_of(slices, {}, "all", None)))
    assert [each.value for each in found] == slices


def test_changes_end_the_wait(shop: Shop, options: ReadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "IDLE_S", 60.0)
    planner = Planner(options)
    threading.Timer(0.05, lambda: shop.commit(3)).start()
    assert planner.next_end().offset == 3


def test_the_subscriber_is_told_only_what_is_committed(shop: Shop, options: ReadOptions) -> None:
    shop.commit(3)
    planner = Planner(replace(options, subscriber="feed/lines", required=False))
    seen = []
    for _ in range(2):
        planner.next_end()
        seen += [(sub.name, sub.offset, sub.required) for sub in Subscribers(shop.path).all()]
    assert seen == [("feed/lines", 0, False), ("feed/lines", 3, False)]


def test_under_a_steady_load_the_log_hears_of_progress_seldom(shop: Shop, options: ReadOptions) -> None:
    clock = Clock()
    planner = Planner(replace(options, subscriber="feed/lines", max_events=3), clock, clock.sleep)
    shop.commit(*[3] * 5)
    seen = []
    for _ in range(4):
        planner.next_end()
        seen += [sub.offset for sub in Subscribers(shop.path).all()]
        clock.now += 0.4 * source.REPORT_S
    assert seen == [0, 0, 0, 9]


def test_another_log_is_refused(shop: Shop, options: ReadOptions) -> None:
    shop.commit(3)
    with pytest.raises(LogError) as refused:
        Planner(replace(options, log="other"))
    assert refused.value.code == "log.replaced"


def test_an_offset_of_another_log_is_refused(shop: Shop, options: ReadOptions) -> None:
    end = shop.commit(3)
    planner = Planner(options)
    with pytest.raises(LogError) as refused:
        planner.slices(Mark("other", 0), Mark("other", end))
    assert refused.value.code == "log.replaced"


def test_errors_leave_the_process_as_text_that_can_be_read(options: ReadOptions) -> None:
    shutil.rmtree(options.path)
    with pytest.raises(Parcel) as raised:
        StreamReader(options).latestOffset()
    quoted = f"org.apache.spark.SparkException: Traceback ...\nParcel: {raised.value}\n\tat java.lang.Thread"
    error = find(quoted)
    assert isinstance(error, LogError)
    assert error.code == "log.missing"


def test_other_errors_are_not_mistaken_for_ours() -> None:
    assert find("java.lang.OutOfMemoryError") is None
