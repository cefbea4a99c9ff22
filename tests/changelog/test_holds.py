"""Tables that wait: held as their sink is, and no longer than the sink knows of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.changelog import Bounds, Holds, LogReader, LogWriter, Retention, Subscriber, Subscribers
from tailrace.testing.captures import capture, insert

NOTHING = Bounds(max_bytes=0)


@pytest.fixture
def full(write: Callable[..., LogWriter]) -> LogWriter:
    """A log of 40 offsets over many small files."""
    writer = write(segment_bytes=1500, manifest_bytes=900)
    for number in range(40):
        writer.append(capture([insert(number)], first_xid=number + 1))
    return writer


def test_a_table_of_a_required_sink_keeps_what_it_waits_for(path: Path, full: LogWriter) -> None:
    holds = Holds(path, "shop/lake", required=True)
    holds.hold("public.a/b", 3)
    assert [each.name for each in Retention(path).enforce(NOTHING).holders] == ["shop/lake/public.a/b"]
    assert LogReader(path).earliest <= 3 and holds.expired() == ()
    holds.let_go("public.a/b")
    assert Retention(path).enforce(NOTHING).holders == () and LogReader(path).earliest > 3


def test_a_table_of_an_optional_sink_neither_blocks_nor_pins_and_says_what_it_lost(path: Path, full: LogWriter) -> None:
    holds = Holds(path, "shop/lake", required=False)
    holds.hold("public.orders", 3)
    assert holds.expired() == ()
    assert Retention(path).enforce(NOTHING).holders == ()
    [told] = holds.expired()
    assert "public.orders waits for changes from offset 3 on" in told and "expired" in told


def test_what_a_sink_does_not_know_of_is_let_go_and_told(path: Path, full: LogWriter) -> None:
    earlier = Holds(path, "shop/lake", required=True)
    for table in ("public.known", "public.unknown"):
        earlier.hold(table, 3)
    Holds(path, "shop/lake2", required=True).hold("public.unknown", 4)
    now = Holds(path, "shop/lake", required=True)
    now.hold("public.known", 3)
    [told] = now.let_others_go()
    assert "offset 3 on for shop/lake/public.unknown" in told
    assert Subscribers(path).all() == [
        Subscriber("shop/lake/public.known", 3, required=True),
        Subscriber("shop/lake2/public.unknown", 4, required=True),
    ]
