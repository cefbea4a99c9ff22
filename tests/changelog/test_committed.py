"""How far a pipeline has delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.changelog import Awaited, Subscribers, delivered


@pytest.mark.parametrize(("enough", "offset"), [(1, 30), (2, 20), (3, 10)])
def test_what_enough_sinks_have_is_delivered(enough: int, offset: int) -> None:
    assert Awaited(("a", "b", "c"), enough).committed({"a": 10, "b": 30, "c": 20, "other": 99}) == offset


def test_a_sink_that_has_told_nothing_has_nothing() -> None:
    assert Awaited(("a", "b"), 2).committed({"a": 10}) == 0


def test_of_several_pipelines_the_slowest_counts(tmp_path: Path) -> None:
    subscribers = Subscribers(tmp_path)
    for name, offset in (("shop/a", 10), ("shop/b", 30), ("other/a", 20)):
        subscribers.report(name, offset, required=True)
    assert delivered(tmp_path, (Awaited(("shop/a", "shop/b"), 1), Awaited(("other/a",), 1))) == 20
    assert delivered(tmp_path, (Awaited(("shop/a", "shop/b"), 2), Awaited(("other/a",), 1))) == 10
