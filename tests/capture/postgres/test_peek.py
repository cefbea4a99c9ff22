"""Whether a log has everything, told by its slot while nobody reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailrace.capture.postgres import peek
from tailrace.changelog import tip
from tests.capture.running import Capturing, Database

Start = Callable[..., Capturing]


def complete(run: Capturing) -> bool | None:
    """Whether the log has every change of a row until now."""
    _, resume = tip(run.path)
    assert resume is not None
    return run.source.nothing_between(resume, run.source.current_position())


@pytest.mark.parametrize("major", [15, 18])
def test_only_changes_of_captured_rows_are_missed(
    major: int, database: Callable[..., Database], capturing: Start
) -> None:
    db = database(major)
    db.run("CREATE TABLE public.t (id int PRIMARY KEY)", "CREATE SCHEMA other", "CREATE TABLE other.t (id int)")
    run = capturing(db)
    db.run("INSERT INTO t VALUES (1)")
    assert len(run.changes()) == 1 and complete(run) is None  # somebody reads the slot
    run.stop()
    db.run("INSERT INTO other.t VALUES (1)", "CREATE TABLE public.later (id int)", "CHECKPOINT")
    assert complete(run) is True
    db.run("DELETE FROM t")
    assert complete(run) is False


def test_a_server_that_cannot_tell_is_not_taken_at_its_word(
    db: Database, capturing: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    run = capturing(db)
    run.changes()
    run.stop()
    _, resume = tip(run.path)
    assert resume is not None and complete(run) is True
    assert run.source.nothing_between(resume, "FFFF/0") is None  # its WAL does not reach that far
    assert run.source.nothing_between({**resume, "lsn": "0/1"}, run.source.current_position()) is None
    monkeypatch.setattr(peek, "PEEKED_CHANGES", 0)
    assert complete(run) is None
    db.drop_slots()
    assert complete(run) is None
