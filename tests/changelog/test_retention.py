"""Retention: never what a required subscriber needs; what others miss is refused as expired, never shortened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.changelog import (
    Bounds,
    Holder,
    LogReader,
    LogWriter,
    Owner,
    Retention,
    Subscriber,
    Subscribers,
    Trimmed,
    read_slice,
    reader,
    trimmed,
)
from tailrace.errors import LogError
from tailrace.testing.captures import ITEMS, capture, insert
from tests.changelog.looking import changes, seqs

Write = Callable[..., LogWriter]
NOTHING = Bounds(max_bytes=0)


@pytest.fixture
def full(write: Write) -> LogWriter:
    """A log of 40 offsets over many small manifest files and segments, appended at 1970-01-01."""
    writer = write(segment_bytes=1500, manifest_bytes=900, clock=lambda: 0.0)
    for number in range(40):
        writer.append(capture([insert(number)], first_xid=number + 1))
    return writer


def test_nothing_goes_within_the_bounds(path: Path, full: LogWriter) -> None:
    verdict = Retention(path).enforce(Bounds(max_age_s=60.0), clock=lambda: 59.0)
    assert (verdict.dropped, verdict.blocked_by) == (0, ())
    assert verdict.bytes == sum(file.stat().st_size for file in (path / "segments").iterdir())
    assert len(changes(path)) == 40


@pytest.mark.parametrize("bounds", [Bounds(max_bytes=0), Bounds(max_age_s=60.0)])
def test_what_is_beyond_the_bounds_goes(path: Path, full: LogWriter, bounds: Bounds) -> None:
    verdict = Retention(path).enforce(bounds, clock=lambda: 61.0)
    earliest = LogReader(path).earliest
    assert verdict.dropped > 0
    assert 20 < earliest <= 40
    assert seqs(changes(path)) == list(range(earliest, 40))
    assert len(list((path / "manifest").iterdir())) == 1


@pytest.mark.parametrize("offset", range(0, 41, 5))
def test_a_required_subscriber_keeps_what_it_has_not_read(path: Path, full: LogWriter, offset: int) -> None:
    Subscribers(path).report("files", offset, required=True)
    Subscribers(path).report("extra", 0, required=False)
    Retention(path).enforce(NOTHING)
    assert LogReader(path).earliest <= offset
    assert seqs(changes(path, offset, 40)) == list(range(offset, 40))


def test_the_bound_and_who_holds_it_are_named(path: Path, full: LogWriter) -> None:
    subscribers = Subscribers(path)
    subscribers.report("slow", 3, required=True)
    subscribers.report("fast", 40, required=True)
    assert Retention(path).enforce(NOTHING).blocked_by == ("slow",)
    assert Retention(path).enforce(Bounds()).blocked_by == ()
    subscribers.report("slow", 40, required=True)
    assert Retention(path).enforce(NOTHING).blocked_by == ()


def test_what_a_holder_has_not_read_is_counted(path: Path, full: LogWriter) -> None:
    Subscribers(path).report("shop/slow", 3, required=True)
    Subscribers(path).report("shop/never", 0, required=True)
    verdict = Retention(path).enforce(NOTHING)
    assert verdict.holders == (Holder("shop/never", 40, verdict.bytes),)
    Subscribers(path).forget("shop/never")
    verdict = Retention(path).enforce(NOTHING)
    [slow] = verdict.holders
    assert (slow.name, slow.rows) == ("shop/slow", 37) and 0 < slow.bytes <= verdict.bytes


@pytest.mark.parametrize(("quorum", "kept"), [(1, 30), (2, 20), (3, 5)])
def test_what_a_quorum_has_read_may_go(path: Path, full: LogWriter, quorum: int, kept: int) -> None:
    subscribers = Subscribers(path)
    for name, offset in (("fast", 30), ("middle", 20), ("slow", 5)):
        subscribers.report(f"shop/{name}", offset, required=True, quorum=quorum)
    subscribers.report("shop/extra", 0, required=False, quorum=quorum)
    verdict = Retention(path).enforce(NOTHING)
    assert [holder.name for holder in verdict.holders] == [{30: "shop/fast", 20: "shop/middle", 5: "shop/slow"}[kept]]
    assert kept - 5 < LogReader(path).earliest <= kept


def test_each_pipeline_has_a_quorum_of_its_own(path: Path, full: LogWriter) -> None:
    subscribers = Subscribers(path)
    for pipeline, offsets in (("shop", (40, 3)), ("other", (40, 25))):
        for number, offset in enumerate(offsets):
            subscribers.report(f"{pipeline}/{number}", offset, required=True, quorum=1)
    assert Retention(path).enforce(NOTHING).holders == ()
    assert LogReader(path).earliest > 25


def test_a_released_subscriber_holds_nothing_and_keeps_its_place(path: Path, full: LogWriter) -> None:
    subscribers = Subscribers(path)
    subscribers.release("shop/old", 7)
    assert subscribers.all() == [Subscriber("shop/old", 7, required=False, released=True)]
    assert Retention(path).enforce(NOTHING).holders == ()
    assert LogReader(path).earliest > 7
    subscribers.report("shop/old", 40, required=True)
    assert subscribers.all() == [Subscriber("shop/old", 40, required=True)]


@pytest.mark.parametrize("owner", [Owner("shop", "files"), Owner("shop", "lake", "public.a/b"), None])
def test_a_name_says_whose_it_is(owner: Owner | None) -> None:
    name = "somebody" if owner is None else owner.name
    assert Subscriber(name, 0, required=True).owner == owner


def test_a_name_may_be_longer_than_a_file_may_be_called(path: Path, full: LogWriter) -> None:
    """As that of a halted table, in characters of three bytes each."""
    names = [f"shop/lake/{'☃' * 60}.{end}" for end in ("a", "b")]
    subscribers = Subscribers(path)
    for name in names:
        subscribers.report(name, 1, required=True)
    assert sorted(each.name for each in subscribers.all()) == names
    subscribers.forget(names[0])
    assert [each.name for each in subscribers.all()] == names[1:]


def test_a_forgotten_subscriber_holds_nothing(path: Path, full: LogWriter) -> None:
    subscribers = Subscribers(path)
    subscribers.report("gone/away", 0, required=True)
    assert subscribers.all() == [Subscriber("gone/away", 0, True)]
    subscribers.forget("gone/away")
    subscribers.forget("gone/away")
    assert Retention(path).enforce(NOTHING).dropped > 0


def test_an_expired_range_is_refused(path: Path, full: LogWriter) -> None:
    Retention(path).enforce(NOTHING)
    with pytest.raises(LogError) as caught:
        changes(path, 0, 40)
    assert caught.value.code == "log.expired"
    with pytest.raises(LogError) as caught:
        LogReader(path, start=0).slices(0, 40, 1)
    assert caught.value.code == "log.expired"


def test_a_slice_whose_segment_was_dropped_is_expired(path: Path, full: LogWriter) -> None:
    [piece] = LogReader(path).slices(0, 40, 1)
    Retention(path).enforce(NOTHING)
    with pytest.raises(LogError) as caught:
        list(read_slice(piece))
    assert caught.value.code == "log.expired"


def test_a_range_over_what_retention_took_from_under_a_reader_is_never_shorter(
    path: Path, full: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader holds the oldest lines and had not read the next ones when their manifest files went."""
    monkeypatch.setattr(reader, "WINDOW_LINES", 2)
    slow = LogReader(path)
    assert slow.end == 2
    Retention(path).enforce(NOTHING)
    monkeypatch.setattr(reader, "WINDOW_LINES", 100)
    for start in (0, 1, 2):
        with pytest.raises(LogError) as caught:
            slow.slices(start, 40, 1)
        assert caught.value.code == "log.expired"
    earliest = slow.earliest
    assert seqs(
        [row for piece in slow.slices(earliest, 40, 1) for b in read_slice(piece) for row in b.to_pylist()]
    ) == (list(range(earliest, 40)))


def test_the_writer_goes_on_after_retention(path: Path, full: LogWriter, write: Write) -> None:
    Retention(path).enforce(NOTHING)
    full.append(capture([insert(40)], first_xid=41))
    full.close()
    again = write()
    assert (again.end, again.state().resume) == (41, {"lsn": "0/29"})
    again.append(capture([insert(41)], first_xid=42))
    assert seqs(changes(path))[-2:] == [40, 41]


def test_what_is_gone_is_told_with_its_tables(path: Path, full: LogWriter) -> None:
    assert trimmed(path, 99) is None
    late = replace(ITEMS, id=1, table="late")
    full.append(capture([insert(40, table=late)], first_xid=41))
    Subscribers(path).report("half", 20, required=True)
    Retention(path).enforce(NOTHING)
    earliest = LogReader(path).earliest
    assert 0 < earliest <= 20
    assert trimmed(path, 99) == Trimmed(earliest, ("public.items",), since_us=0)  # of `late` all is there
    Subscribers(path).forget("half")
    Retention(path).enforce(NOTHING)
    assert trimmed(path, 99) == Trimmed(41, ("public.items", "public.late"), since_us=99)  # nothing is left


def test_of_a_log_that_was_made_anew_nothing_is_gone(path: Path, full: LogWriter, write: Write) -> None:
    full.close()
    shutil.rmtree(path / "manifest")
    again = write(segment_bytes=1500, manifest_bytes=900, clock=lambda: 5.0)
    base = again.end
    assert base > 0 and trimmed(path, 99) is None
    for number in range(40):
        again.append(capture([insert(number)], first_xid=number + 1))
    Subscribers(path).report("half", base + 20, required=True)
    Retention(path).enforce(NOTHING)
    assert trimmed(path, 99) == Trimmed(LogReader(path).earliest - base, ("public.items",), since_us=5_000_000)


def test_parts_of_an_open_transaction_are_never_dropped(path: Path, full: LogWriter) -> None:
    full.append(capture([insert(n) for n in range(100, 150)], first_xid=41, open_end=True))
    Retention(path).enforce(NOTHING)
    full.append(capture([insert(150)], first_xid=41, ordinal=50))
    assert seqs(changes(path, 40, 91)) == list(range(40, 91))
