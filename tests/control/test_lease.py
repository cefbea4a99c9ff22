"""The lease: one holder at a time, and a higher epoch for each who comes after."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tailrace.control import Store
from tailrace.control.lease import Epoch, LeaseRow, Leases
from tailrace.testing.waiting import eventually

LONG, SHORT = timedelta(minutes=5), timedelta(milliseconds=200)


@pytest.fixture
def leases(store: Store) -> Leases:
    return Leases(store)


def test_one_holds_it_until_it_gives_it_back(leases: Leases) -> None:
    assert leases.look("active") is None
    first = leases.acquire("active", "one", LONG)
    assert first is not None and first.number == 1
    assert leases.acquire("active", "two", LONG) is None
    assert leases.look("active") == LeaseRow("active", "one", 1)
    again = leases.acquire("active", "one", LONG)
    assert again is not None and again.number == 1
    leases.release(first)
    assert leases.look("active") == LeaseRow("active", None, 1)
    second = leases.acquire("active", "two", LONG)
    assert second is not None and second.number == 2
    assert leases.acquire("other", "one", LONG) is not None


def test_whoever_comes_after_has_a_higher_epoch_and_the_first_nothing(leases: Leases) -> None:
    first = leases.acquire("active", "one", SHORT)
    assert first is not None
    second = eventually(lambda: leases.acquire("active", "two", LONG))
    assert second is not None and second.number == 2
    assert leases.renew(first, LONG) is None
    leases.release(first)
    assert leases.look("active") == LeaseRow("active", "two", 2)


def test_a_lease_that_lapsed_is_not_renewed_and_its_next_epoch_is_new(leases: Leases) -> None:
    first = leases.acquire("active", "one", SHORT)
    assert first is not None
    eventually(lambda: (found := leases.look("active")) is not None and found.holder is None)
    assert leases.renew(first, LONG) is None
    again = leases.acquire("active", "one", LONG)
    assert again is not None and again.number == 2


def test_a_holder_knows_by_its_own_clock_when_it_is_over(store: Store) -> None:
    now = [100.0]
    leases = Leases(store, monotonic=lambda: now[0])
    held = leases.acquire("active", "one", timedelta(seconds=30))
    assert held == Epoch("active", "one", 1, 130.0)
    now[0] = 120.0
    assert leases.renew(held, timedelta(seconds=40)) == Epoch("active", "one", 1, 160.0)


def test_a_file_has_the_time_it_is_given(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    with closing(Store(tmp_path / "control.db", clock=lambda: now[0])) as store:
        leases = Leases(store)
        held = leases.acquire("active", "one", timedelta(seconds=30))
        assert held is not None
        now[0] += 29.9
        assert leases.acquire("active", "two", LONG) is None
        held = leases.renew(held, timedelta(seconds=30))
        assert held is not None
        now[0] += 30
        assert leases.renew(held, LONG) is None
        assert leases.acquire("active", "two", LONG) is not None


def test_of_many_at_once_one_gets_it(store: Store) -> None:
    got: list[Epoch | None] = []
    begin = threading.Barrier(4)

    def take(number: int) -> None:
        with closing(Store(store.place)) as own:
            begin.wait(60)
            got.append(Leases(own).acquire("active", str(number), LONG))

    threads = [threading.Thread(target=take, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.number for each in got if each is not None] == [1]
    assert len(got) == 4
