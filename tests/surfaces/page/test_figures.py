"""Numbers as people read them, bands and flows."""

from __future__ import annotations

import pytest

from tailrace.surfaces.page.band import WIDTH, band
from tailrace.surfaces.page.document import Line, difference
from tailrace.surfaces.page.figures import UNKNOWN, count, duration, marked, short, size, when
from tailrace.surfaces.rest.shapes import TransitionShown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (60, "1 min"),
        (83, "1 min 23 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes(bytes: int, text: str) -> None:
    assert size(bytes) == text


def test_what_is_not_known_is_never_zero() -> None:
    assert [count(None), duration(None), size(None), when(None)] == [UNKNOWN] * 4
    assert count(0) == "0" and count(1_234_567) == "1,234,567"


def test_what_is_in_backticks_is_code_and_all_of_it_is_escaped() -> None:
    assert marked("correct `url<b>` & <i>") == "correct <code>url&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert marked("a lone ` stays") == "a lone ` stays"


def test_long_names_are_cut() -> None:
    assert short("abc", 3) == "abc" and short("abcd", 3) == "ab…"


def step(state: str, at: float) -> TransitionShown:
    return TransitionShown(number=1, before=None, after=state, code="", cause="", actor="system", at=at)


def test_a_band_has_each_state_for_as_long_as_it_lasted() -> None:
    found = band([step("running", 300.0), step("degraded", 200.0), step("starting", 100.0)], now=500.0)
    assert [(each.state, each.x, each.width) for each in found] == [
        ("starting", 0.0, WIDTH / 4),
        ("degraded", WIDTH / 4, WIDTH / 4),
        ("running", WIDTH / 2, WIDTH / 2),
    ]
    assert band([]) == []


def test_a_moment_is_wide_enough_to_be_seen() -> None:
    moment = band([step("running", 100.001), step("degraded", 100.0)], now=1e6)[0]
    assert moment.state == "degraded" and moment.width >= 3


def test_a_difference_has_all_lines_of_both() -> None:
    assert list(difference("a\nb\nc\n", "a\nB\nc\n")) == [
        Line("same", "a"),
        Line("removed", "b"),
        Line("added", "B"),
        Line("same", "c"),
    ]
