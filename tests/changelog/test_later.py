"""Later changes of a key: found over many lines and files, and unknown where the log is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.changelog import LogReader
from tailrace.changelog.later import LaterChanges
from tests.spark.logs import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "log", manifest_bytes=2_000)


def test_changes_of_the_same_key_and_truncates_lie_behind(shop: Shop) -> None:
    shop.append([[("c", 1, 1), ("c", 2, 2), ("u", 1, 3)]])
    shop.append([[("u", 2, 4)], [("u", 1, 5)]])
    end = shop.append([[("t", 9, 6)], [("c", 2, 7)]])
    later = LaterChanges(shop.path, LogReader(shop.path).log_id, [0, 3, 4])
    later.advance(3)
    assert (later.behind(0), later.behind(3)) == ([2], None)
    later.advance(end)
    assert later.behind(0) == [2, 4, 5]
    assert later.behind(3) == [5, 6]
    assert later.behind(4) == [5]
    assert later.behind(1) is None  # nobody asked


def test_many_files_are_read_on_as_the_log_grows(shop: Shop) -> None:
    shop.append([[("c", 1, 0)]])
    log_id = LogReader(shop.path).log_id
    later = LaterChanges(shop.path, log_id, [0])
    ends = [shop.append([[("u", n % 3, n)]]) for n in range(1, 60)]
    later.advance(ends[-1])
    assert later.behind(0) == [n for n in range(1, 60) if n % 3 == 1]
    assert len(list((shop.path / "manifest").iterdir())) > 1


def test_another_log_and_another_start_are_unknown(shop: Shop) -> None:
    end = shop.append([[("c", 1, 0), ("u", 1, 1)]])
    other = LaterChanges(shop.path, "another", [0])
    other.advance(end)
    assert other.behind(0) is None
    nothing = LaterChanges(shop.path, LogReader(shop.path).log_id, [])
    nothing.advance(end)
    assert nothing.behind(0) is None


def test_what_retention_took_is_unknown(shop: Shop) -> None:
    ends = [shop.append([[("u", 1, n)]]) for n in range(60)]
    first = sorted((shop.path / "manifest").iterdir())[0]
    first.unlink()
    later = LaterChanges(shop.path, LogReader(shop.path).log_id, [0, ends[-2]])
    later.advance(ends[-1])
    assert later.behind(0) is None
    assert later.behind(ends[-2]) == []
