"""What a run says of its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from tailrace.contracts import Letter
from tailrace.control import Store
from tailrace.control.journal import Journal, JournalBounds, LetterFilter, Overflow
from tailrace.supervisor.run.letters import LOOK_S, LetterWatch
from tailrace.supervisor.status import LetterGroup, LetterStatus


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_S
        return self.now


def letters(*seqs: int) -> list[Letter]:
    names = ("sink", "processor", "source", "log_id", "part", "op", "schema", "table", "position", "code", "message")
    return [
        Letter(**dict.fromkeys(names, "x"), key=None, schema_id=0, ts_us=0, seq=seq, event_id=str(seq))  # type: ignore[arg-type]
        for seq in seqs
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "control.db")) as opened:
        yield opened


@pytest.mark.parametrize("overflow", get_args(Overflow))
def test_a_journal_that_fills_up_is_said_twice(store: Store, overflow: Overflow) -> None:
    journal = Journal(store, "shop", JournalBounds(max_entries=20, overflow=overflow))
    watch = LetterWatch(journal, Clock())
    journal.put(letters(*range(15)))
    assert watch.status() == LetterStatus("shop", 15, 0, 20, 0, 0, (), (LetterGroup("x", "x", 15),))
    journal.put(letters(15))
    [warning] = watch.status().warnings
    assert "more than 80% full (80%)" in warning and "tailrace dlq" in warning
    journal.put(letters(16, 17, 18))
    assert "more than 95% full (95%)" in watch.status().warnings[0]
    journal.close(LetterFilter(), "acknowledged")
    assert watch.status().warnings == () and watch.status().open == 0


def test_the_store_is_asked_now_and_then(store: Store) -> None:
    journal = Journal(store, "shop")
    times = iter((0.0, 0.0, LOOK_S / 2, LOOK_S, LOOK_S))
    watch = LetterWatch(journal, lambda: next(times))
    assert watch.status().open == 0
    journal.put(letters(1))
    assert [watch.status().open for _ in range(2)] == [0, 1]
