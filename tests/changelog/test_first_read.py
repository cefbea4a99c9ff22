"""Which rows of a first snapshot are new: told by the log alone, the same wherever a batch begins or ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tailrace.changelog import Limits, LogReader, first_read, read_slice
from tailrace.contracts import Portion
from tailrace.errors import LogError
from tailrace.testing.feed import Feed, schema_of

ITEMS = schema_of(1, "items", {"id": "bigint", "n": "integer"})
OTHERS = schema_of(2, "others", {"id": "bigint"}, relation=200)
REKEYED = schema_of(3, "items", {"id": "bigint", "n": "integer"}, key=("n",))
WIDER = schema_of(4, "items", {"id": "bigint", "n": "bigint"})


def images(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "n": 0} for number in numbers]


def offsets(path: Path, start: int, end: int, portion: Portion | None, tasks: int = 1, version: int = 1) -> list[int]:
    slices = LogReader(path).slices(start, end, tasks, version, portion=portion)
    batches = [batch for piece in slices for batch in read_slice(piece)]
    return sorted(int(seq) for batch in batches for seq in batch.column("seq").to_numpy())


def end_of(path: Path) -> int:
    return LogReader(path).end


def new(path: Path, began: int = 0, version: int = 1) -> list[int]:
    return offsets(path, began, end_of(path), Portion(began, new=True), version=version)


def test_a_row_is_new_unless_a_change_before_it_has_its_key(path: Path) -> None:
    feed = Feed(path)
    feed.add(ITEMS, "c", {"id": 1, "n": 1}).add(ITEMS, "d", {"id": 2}).add(OTHERS, "c", {"id": 3})
    feed.read(ITEMS, images(1, 2, 3))
    feed.add(ITEMS, "u", {"id": 3, "n": 1}).add(ITEMS, "u", {"id": 5, "n": 1})
    feed.read(ITEMS, images(4, 5, 6))
    assert new(path) == [5, 8, 10]
    everything = offsets(path, 0, end_of(path), None)
    assert offsets(path, 0, end_of(path), Portion(0, new=False)) == sorted(set(everything) - set(new(path)))


def test_rows_of_a_snapshot_take_less_of_a_batch(path: Path) -> None:
    """Where it ends, and what waits for it: as much more of them, also of a chunk that is halfway delivered."""
    Feed(path).read(ITEMS, images(1, 2, 3, 4)).read(ITEMS, images(5, 6)).add(ITEMS, "c", {"id": 7, "n": 1}).flush(0)
    log, four = LogReader(path), Limits(max_events=2, snapshot_batches=4)
    assert [log.cut(0, Limits(max_events=4)), log.cut(0, four), log.cut(4, four)] == [4, 6, 7]
    assert [log.pending(start, four).rows for start in (0, 2, 6)] == [2.5, 2, 1]


@pytest.mark.parametrize(
    ("run", "disjoint"), [("second", True), ("first", False)], ids=["a second snapshot", "keys that were read again"]
)
def test_what_may_have_been_read_before_is_not_new(path: Path, run: str, disjoint: bool) -> None:
    feed = Feed(path)
    feed.read(ITEMS, images(1)).read(ITEMS, images(2), run, disjoint=disjoint).read(ITEMS, images(3))
    assert new(path) == [0, 2]


def test_only_what_is_since_its_beginning_counts(path: Path) -> None:
    """A sink that came later holds nothing from before."""
    feed = Feed(path)
    feed.add(ITEMS, "c", {"id": 1, "n": 1}).read(ITEMS, images(1, 2), "early")
    feed.read(ITEMS, images(1, 2), "later")
    assert new(path, 3) == [3, 4]
    assert new(path, 0) == [2]


def test_columns_beside_the_key_may_change(path: Path) -> None:
    feed = Feed(path)
    feed.read(ITEMS, images(1)).evolve(WIDER).read(WIDER, images(2))
    assert new(path, 0, WIDER.id) == [2]


def test_a_table_that_got_another_key_has_no_new_rows(path: Path) -> None:
    feed = Feed(path)
    feed.read(ITEMS, images(1)).evolve(REKEYED).read(REKEYED, images(2))
    with pytest.raises(LogError, match="can no longer be told"):
        new(path, 0, REKEYED.id)


def test_a_log_that_was_trimmed_cannot_tell(path: Path) -> None:
    feed = Feed(path)
    feed.add(ITEMS, "c", {"id": 1, "n": 1}).flush(0)
    began = feed.trim()
    feed.read(ITEMS, images(1, 2))
    assert not first_read.FirstRead(path, 0, ITEMS).advance(end_of(path))
    assert new(path, began) == [began, began + 1]


@pytest.mark.parametrize("bound", ["MOST_KEYS", "MOST_ROWS"])
def test_above_a_bound_nothing_is_told(path: Path, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(path)
    for number in range(5):
        feed.add(ITEMS, "c", {"id": number, "n": 1})
    feed.read(ITEMS, images(10))
    assert first_read.FirstRead(path, 0, ITEMS).advance(end_of(path))
    monkeypatch.setattr(first_read, bound, 4)
    assert not first_read.FirstRead(path, 0, ITEMS).advance(end_of(path))


@pytest.mark.parametrize("seed", range(30))
def test_any_cut_gives_the_same_answer(path: Path, seed: int) -> None:
    """Against a slow account of every change."""
    chance = random.Random(seed)
    feed = Feed(path)
    touched: set[int] = set()
    expected: list[int] = []
    at = 0
    unread = list(range(40))
    while unread:
        if chance.random() < 0.5:
            number = chance.randrange(40)
            feed.add(ITEMS, chance.choice("cud"), {"id": number, "n": 1})
            touched.add(number)
            at += 1
            continue
        mine, unread = unread[:7], unread[7:]
        feed.read(ITEMS, images(*mine))
        expected += [at + place for place, number in enumerate(mine) if number not in touched]
        at += len(mine)
    account = first_read.FirstRead(path, 0, ITEMS)
    start = 0
    while start < at:
        end = min(at, start + chance.randint(1, 15))
        assert account.advance(end)
        found = offsets(path, start, end, Portion(0, new=True), tasks=chance.randint(1, 4))
        assert found == [seq for seq in expected if start <= seq < end], (seed, start, end)
        start = end
