"""The journal's promises: once per sink and event, within its bounds, counted where something goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.contracts import Letter
from tailrace.control import Store
from tailrace.control.journal import Journal, JournalBounds, LetterFilter
from tailrace.errors import Action, SinkError, decide

DAY_S = 86_400


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def letter(n: int, **settings: Any) -> Letter:
    made = Letter(
        sink="out",
        processor="",
        source="shop",
        log_id="log",
        seq=n,
        part="",
        event_id=f"event-{n}",
        op="u",
        schema="public",
        table="orders",
        key=f'{{"id": {n}}}',
        schema_id=0,
        position="0/1",
        ts_us=1,
        code="sink.rejected",
        message="too large",
        row="packed",
    )
    return replace(made, **settings)


@pytest.fixture
def journal(store: Store) -> Callable[..., Journal]:
    return lambda **bounds: Journal(store, "shop-feed", JournalBounds(**bounds), Clock())


def seqs(journal: Journal, **wanted: Any) -> list[int]:
    return [kept.letter.seq for kept in journal.find(LetterFilter(**wanted))]


def test_a_letter_is_there_once_however_often_it_comes(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put([letter(1), letter(2)])
    desk.put([letter(2), letter(3), letter(2, sink="other")])
    kept = desk.find()
    assert [(each.letter, each.attempts) for each in kept] == [
        (letter(1), 1),
        (letter(2), 2),
        (letter(2, sink="other"), 1),
        (letter(3), 1),
    ]
    assert [each.number for each in kept] == [1, 2, 3, 4]


def test_a_closed_letter_stays_closed_when_its_batch_comes_again(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put([letter(1), letter(2)])
    assert desk.close(LetterFilter(numbers=(1,)), "acknowledged") == 1
    desk.put([letter(1), letter(2)])
    assert [(each.letter.state, each.letter.row) for each in desk.find()] == [
        ("acknowledged", ""),
        ("waiting", "packed"),
    ]
    assert desk.close(LetterFilter(), "acknowledged") == 1
    assert desk.totals().open == 0


def test_a_message_may_have_any_characters(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put([letter(1, message="a\x00b\ud800é")])
    desk.refused_again(1, "sink.rejected", "again \x00")
    assert [each.letter.message for each in desk.find()] == ["again \\x00"]
    desk.put([letter(2, message="a\x00b\ud800é")])
    assert [each.letter.message for each in desk.find()][1:] == ["a\\x00b\\ud800é"]


def test_numbers_are_never_given_twice(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put([letter(1), letter(2)])
    assert desk.purge(LetterFilter(numbers=(2,))) == 1
    desk.put([letter(3)])
    assert [each.number for each in desk.find()] == [1, 3]


def test_the_oldest_make_room_and_are_counted(journal: Callable[..., Journal]) -> None:
    desk = journal(max_entries=3)
    desk.put([letter(n) for n in range(5)])
    desk.put([letter(5)])
    assert seqs(desk) == [3, 4, 5]
    totals = desk.totals()
    assert (totals.open, totals.evicted, totals.expired) == (3, 3, 0)


def test_reject_writes_none_of_what_has_no_room_and_stops(journal: Callable[..., Journal]) -> None:
    desk = journal(max_entries=3, overflow="reject")
    desk.put([letter(1), letter(2)])
    with pytest.raises(SinkError) as caught:
        desk.put([letter(3), letter(4)])
    assert caught.value.code == "dlq.overflow" and decide(caught.value) is Action.STOP
    assert seqs(desk) == [1, 2]
    desk.put([letter(3)])


def test_block_waits_until_there_is_room(journal: Callable[..., Journal]) -> None:
    desk = journal(max_entries=2, overflow="block")
    desk.put([letter(1)])
    desk.refuse_when_full()
    desk.put([letter(2), letter(3)])  # of a batch that had begun
    with pytest.raises(SinkError) as caught:
        desk.refuse_when_full()
    assert caught.value.code == "dlq.full" and decide(caught.value) is Action.RETRY
    desk.close(LetterFilter(numbers=(1, 2)), "acknowledged")
    desk.refuse_when_full()


def test_age_makes_room_too_and_what_it_costs_is_counted(store: Store) -> None:
    clock = Clock()
    desk = Journal(store, "shop-feed", JournalBounds(max_entries=2, max_age_s=7 * DAY_S, overflow="block"), clock)
    desk.put([letter(1), letter(2)])
    desk.close(LetterFilter(numbers=(2,)), "acknowledged")
    clock.now += 7 * DAY_S + 1
    desk.put([letter(3)])
    assert seqs(desk) == [3]
    assert desk.totals().expired == 1  # the other was closed


def test_letters_are_found_by_all_that_is_said(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put(
        [
            letter(1),
            letter(2, table="items"),
            letter(3, sink="other"),
            letter(4, code="sink.unroutable"),
            letter(5, state="held"),
        ]
    )
    assert seqs(desk, sink="out") == [1, 2, 4, 5]
    assert seqs(desk, table="public.items") == seqs(desk, table="items") == [2]
    assert seqs(desk, code="sink.unroutable") == [4]
    assert seqs(desk, key='{"id": 5}') == [5]
    assert seqs(desk, states=("held",)) == [5]
    assert seqs(desk, sink="out", table="orders", code="sink.rejected") == [1, 5]
    now = int(Clock().now * 1e6)
    assert seqs(desk, since_us=now + 1) == [] == seqs(desk, until_us=now)
    assert [(each.code, each.table, each.sink, each.state, each.letters) for each in desk.groups()] == [
        ("sink.rejected", "public.items", "out", "waiting", 1),
        ("sink.rejected", "public.orders", "other", "waiting", 1),
        ("sink.rejected", "public.orders", "out", "held", 1),
        ("sink.rejected", "public.orders", "out", "waiting", 1),
        ("sink.unroutable", "public.orders", "out", "waiting", 1),
    ]


def test_what_only_the_log_has_is_needed_from_its_first_offset_on(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put([letter(1), letter(2, row=""), letter(3, cut=True), letter(0, row="", sink="other")])
    assert desk.needed_from("out", "log") == 2
    desk.close(LetterFilter(numbers=(3,)), "acknowledged")
    assert desk.needed_from("out", "log") == 3
    assert desk.needed_from("out", "another") is None


def test_a_key_is_held_from_its_first_open_letter_on(journal: Callable[..., Journal]) -> None:
    desk = journal()
    desk.put([letter(5), letter(7, key='{"id": 5}', state="held"), letter(1, key=None), letter(2, sink="other")])
    assert desk.held_keys("out") == [("public", "orders", '{"id": 5}', 5)]
    desk.close(LetterFilter(numbers=(3,)), "replayed")
    assert desk.held_keys("out") == [("public", "orders", '{"id": 5}', 7)]


def test_pipelines_know_nothing_of_each_other(store: Store) -> None:
    mine, other = Journal(store, "mine"), Journal(store, "other")
    mine.put([letter(1)])
    other.put([letter(1), letter(2)])
    assert (seqs(mine), seqs(other)) == ([1], [1, 2])
    assert other.purge(LetterFilter()) == 2
    assert seqs(mine) == [1]
