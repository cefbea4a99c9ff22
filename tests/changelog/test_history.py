"""A log walked through both ways, at its own door."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.changelog import Bounds, LogWriter, Retention, Subscribers, history
from tailrace.changelog.history import History, Stretch
from tailrace.errors import LogError
from tailrace.schema import TableSchema
from tailrace.testing.captures import ITEMS, Row, capture, insert
from tailrace.testing.feed import schema_of

OTHERS = schema_of(7, "others", {"id": "bigint", "v": "text"})


def everything(table: TableSchema) -> bool:
    return True


def written(path: Path, *, small: bool = False) -> History:
    """Four changes in each append, of two tables in turn. `small`: a file for each append."""
    size = 1 if small else 1 << 20
    with closing(LogWriter(path, "shop", segment_bytes=size, manifest_bytes=size)) as writer:
        for number in range(12):
            table = (ITEMS, OTHERS)[number % 2]
            rows = [insert(4 * number + place, table=table) for place in range(4)]
            writer.append(capture(rows[:3], rows[3:], first_xid=2 * number + 1))
    return History(path)


def walked(found: History, start: int, end: int, *, newest_first: bool) -> list[int]:
    """The offsets that are read, in the order of the walk."""
    seen: list[int] = []
    for stretch in found.walk(start, end, everything, newest_first=newest_first):
        seqs = [seq for batch in found.read(stretch) for seq in batch.column("seq").to_pylist()]
        assert seqs == list(range(stretch.start, stretch.end))
        seen += reversed(seqs) if newest_first else seqs
    return seen


@pytest.mark.parametrize("small", [False, True], ids=["one manifest file", "many of them"])
@pytest.mark.parametrize("rows", [1, 10_000], ids=["a frame at a time", "all at once"])
def test_both_ways_have_every_change_once(
    tmp_path: Path, small: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "STRETCH_ROWS", rows)
    found = written(tmp_path / "log", small=small)
    assert (found.earliest, found.end) == (0, 48)
    for start, end in ((0, 48), (5, 30), (9, 10), (47, 48), (20, 20)):
        assert walked(found, start, end, newest_first=False) == list(range(start, end))
        assert walked(found, start, end, newest_first=True) == list(reversed(range(start, end)))


def test_what_is_not_wanted_is_covered_and_not_read(tmp_path: Path) -> None:
    found = written(tmp_path / "log")
    for newest_first in (False, True):
        stretches = list(found.walk(0, 48, lambda table: table.id == OTHERS.id, newest_first=newest_first))
        assert (min(each.start for each in stretches), max(each.end for each in stretches)) == (0, 48)
        tables = {name for each in stretches for batch in found.read(each) for name in batch["table"].to_pylist()}
        assert tables == {"others"}
        [nothing] = found.walk(0, 48, lambda table: False, newest_first=newest_first)
        assert (nothing.start, nothing.end, nothing.parts) == (0, 48, [])


def test_frames_without_a_key_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(LogWriter(path, "shop")) as writer:
        writer.append(capture([insert(100)]))
        writer.append(capture([Row("t", None)], first_xid=2))
        writer.append(capture([insert(200)], first_xid=3))
    found = History(path)
    [stretch] = found.walk(0, 3, everything, newest_first=False)
    assert [part.base for part in found.narrowed(stretch, ("200",)).parts] == [1, 2]
    assert [part.base for part in found.narrowed(stretch, ("1", "00")).parts] == [0, 1]


def test_a_walk_begins_where_retention_left_the_log_and_covers_nothing_that_is_gone(tmp_path: Path) -> None:
    found = written(tmp_path / "log", small=True)
    Subscribers(tmp_path / "log").report("shop/slow", 20, required=True)
    Retention(tmp_path / "log").enforce(Bounds(max_bytes=0))
    begins = found.earliest
    assert 0 < begins < 48
    for newest_first in (False, True):
        covered = sorted((each.start, each.end) for each in found.walk(0, 48, everything, newest_first=newest_first))
        assert (covered[0][0], covered[-1][1]) == (begins, 48)
        assert all(one[1] == other[0] for one, other in pairwise(covered))


def test_what_goes_during_a_walk_is_expired(tmp_path: Path) -> None:
    found = written(tmp_path / "log", small=True)
    stretches: list[Stretch] = list(found.walk(0, 4, everything, newest_first=False))
    Retention(tmp_path / "log").enforce(Bounds(max_bytes=0))
    with pytest.raises(LogError) as caught:
        list(found.read(stretches[0]))
    assert caught.value.code == "log.expired"


def test_tables_are_known_however_old_their_versions_are(tmp_path: Path) -> None:
    found = written(tmp_path / "log", small=True)
    assert [each.name for each in found.tables()] == ["public.items", "public.others"]


def test_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogError) as caught:
        History(tmp_path / "log")
    assert caught.value.code == "log.missing"
