"""The reader: the same range reads the same, batches end where transactions do, slices cover all rows once."""

from __future__ import annotations

import itertools
import pickle
import random
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.change import CHANGES, LANES
from tailrace.changelog import Limits, LogReader, LogWriter, Slice, head, read_slice, reader
from tailrace.errors import LogError
from tailrace.testing.captures import ITEMS, Row, capture, insert
from tests.changelog.looking import Change, changes, cuts, newest, seqs, sizes, transaction_ends

Write = Callable[..., LogWriter]


def test_there_must_be_a_log(tmp_path: Path) -> None:
    with pytest.raises(LogError) as caught:
        LogReader(tmp_path / "nowhere")
    assert caught.value.code == "log.missing"


def test_the_same_range_reads_the_same_however_it_is_cut(path: Path, write: Write) -> None:
    writer = write(segment_bytes=5000, manifest_bytes=2000)
    for number in range(30):
        writer.append(capture([insert(number * 10 + n) for n in range(5)], first_xid=number + 1))
    whole = changes(path)
    for start, end in [(0, 150), (0, 7), (7, 9), (9, 150), (149, 150), (60, 61), (75, 75)]:
        assert changes(path, start, end) == whole[start:end]
        assert changes(path, start, end) == whole[start:end]


def test_a_reader_tails_the_log_across_manifest_files(path: Path, write: Write) -> None:
    writer = write(manifest_bytes=700)
    tail = LogReader(path)
    seen: list[Change] = []
    for number in range(40):
        writer.append(capture([insert(number)], first_xid=number + 1))
        if number % 3:
            continue
        tail.refresh()
        for piece in tail.slices(len(seen), tail.end, 1):
            seen += [row for batch in read_slice(piece) for row in batch.to_pylist()]
        tail.forget(len(seen))
        assert tail.lines == []
    assert seqs(seen) == list(range(40))
    assert len(list((path / "manifest").iterdir())) > 3


def test_a_readers_memory_is_bounded(path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_LINES", 8)
    writer = write(manifest_bytes=900)
    for number in range(50):
        writer.append(capture([insert(number)], first_xid=number + 1))
    tail, seen = LogReader(path), 0
    while seen < 50:
        tail.refresh()
        assert len(tail.lines) <= 8
        end = tail.cut(seen, Limits())
        assert sum(b.num_rows for piece in tail.slices(seen, end, 1) for b in read_slice(piece)) == end - seen
        seen = end
        tail.forget(seen)


def test_a_range_planned_before_a_restart_is_read_after_it(
    path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before it in its manifest file must not use up the window."""
    monkeypatch.setattr(reader, "WINDOW_LINES", 8)
    writer = write()
    for number in range(30):
        writer.append(capture([insert(number)], first_xid=number + 1))
    assert seqs(_read(LogReader(path, start=20), 20, 27)) == list(range(20, 27))
    tail = LogReader(path)
    assert seqs(_read(tail, 20, 27)) == list(range(20, 27))
    assert seqs(_read(tail, 3, 9)) == list(range(3, 9))


def test_pending_says_what_waits(path: Path, write: Write) -> None:
    times = iter([10.0, 20.0])
    writer = write(clock=lambda: next(times))
    writer.append(capture([insert(1), insert(2)]))
    writer.append(capture([insert(3)], first_xid=2))
    tail = LogReader(path)
    waits = [tail.pending(start, Limits()) for start in (0, 2, 3)]
    assert [(each.rows, each.oldest_us) for each in waits] == [(3, 10_000_000), (1, 20_000_000), (0, None)]
    assert [each.bytes > 0 for each in waits] == [True, True, False]


def test_an_offset_the_log_never_had_is_refused(path: Path, write: Write) -> None:
    write().append(capture([insert(1)]))
    with pytest.raises(LogError) as caught:
        LogReader(path).slices(0, 5, 1)
    assert caught.value.code == "log.replaced"


@pytest.mark.parametrize("place", [0, 20, 200, -1])
def test_damaged_rows_are_refused(path: Path, write: Write, place: int) -> None:
    writer = write()
    writer.append(capture([insert(n) for n in range(50)]))
    segment = newest(path / "segments")
    data = bytearray(segment.read_bytes())
    data[place] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogError) as caught:
        changes(path)
    assert caught.value.code == "log.corrupt"
    assert segment.name in caught.value.where


def _flipped(line: bytes) -> bytes:
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def _not_json(line: bytes) -> bytes:
    body = line[9:-2]
    return b"%08x %s\n" % (zlib.crc32(body), body)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": _flipped,
    "zeros": lambda line: line[:20] + bytes(8) + line[28:],
    "a carriage return": lambda line: line[:20] + b"\r" + line[21:],
    "no JSON": _not_json,
    "another kind of entry": lambda line: b"%08x %s\n" % (zlib.crc32(b'{"x":1}'), b'{"x":1}'),
    "nothing": lambda line: b"\n",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_line_is_an_error_at_once(path: Path, write: Write, kind: str) -> None:
    """Also where nothing follows it: a line that ends was acknowledged, so it is not waited for and not cut away."""
    writer = write()
    writer.append(capture([insert(1)]))
    reader = LogReader(path)
    file = newest(path / "manifest")
    before = file.stat().st_size
    writer.append(capture([insert(2)], first_xid=2))
    writer.close()
    whole = file.read_bytes()
    file.write_bytes(whole[:before] + DAMAGE[kind](whole[before:]))
    damaged = file.read_bytes()
    for look in (reader.refresh, reader.refresh, lambda: LogReader(path), lambda: head(path), write):
        with pytest.raises(LogError) as caught:
            look()
        assert (caught.value.code, caught.value.where) == ("log.corrupt", f"{file}:3")
        assert f"truncate -s {before} '{file}'" in caught.value.hint
    assert file.read_bytes() == damaged
    file.write_bytes(whole)
    reader.refresh()
    assert reader.end == 2


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_damaged_header_hides_nothing(path: Path, write: Write, place: str) -> None:
    """A log must not seem to begin where its second file does."""
    writer = write(manifest_bytes=300)
    for number in range(3):
        writer.append(capture([insert(number)], first_xid=number + 1))
    names = sorted((path / "manifest").iterdir())
    file = names[0] if place == "first" else names[-1]
    file.write_bytes(_flipped(file.read_bytes()))
    for start in (None, writer.end):
        with pytest.raises(LogError) as caught:
            LogReader(path, start)
        assert (caught.value.code, caught.value.where) == ("log.corrupt", f"{file}:1")


def test_a_finished_manifest_file_that_was_cut_short_is_damaged(path: Path, write: Write) -> None:
    writer = write(manifest_bytes=900)
    for number in range(9):
        writer.append(capture([insert(number)], first_xid=number + 1))
    file = min((path / "manifest").iterdir())
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(LogError) as caught:
        LogReader(path)
    assert caught.value.code == "log.corrupt"


def test_a_segment_cut_short_is_refused(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(n) for n in range(50)]))
    segment = newest(path / "segments")
    segment.write_bytes(segment.read_bytes()[:-100])
    with pytest.raises(LogError) as caught:
        changes(path)
    assert caught.value.code == "log.corrupt"


# -- batches -----------------------------------------------------------------------------------------------------

PLAN = st.lists(  # lines of transactions of so many rows, and whether the first is handed over in parts
    st.lists(st.integers(1, 12), min_size=1, max_size=4).flatmap(lambda line: st.tuples(st.just(line), st.booleans())),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(plan=PLAN, events=st.integers(1, 30), size=st.integers(1, 20_000), whole=st.booleans())
def test_batches_never_split_a_transaction_and_keep_their_bounds(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[list[int], bool]], events: int, size: int, whole: bool
) -> None:
    path = tmp_path_factory.mktemp("cut")
    with closing(LogWriter(path, "shop")) as writer:
        _write_plan(writer, plan)
    rows = changes(path)
    lawful = sorted({0, *transaction_ends(rows)})
    tail = LogReader(path)
    ends = cuts(tail, Limits(events, size, respect_source_tx=whole))
    assert ends[-1] == len(rows)
    if not whole:
        assert max(sizes(ends)) <= events
        return
    assert set(ends) <= set(lawful)
    for before, after in pairwise(ends):
        one_transaction = lawful[lawful.index(before) + 1] == after
        assert after - before <= events or one_transaction


def test_a_batch_takes_many_lines_and_stops_before_its_bounds(path: Path, write: Write) -> None:
    writer = write()
    for number in range(10):
        writer.append(capture([insert(number), insert(number)], first_xid=number + 1))
    tail = LogReader(path)
    assert cuts(tail, Limits(max_events=7)) == [0, 6, 12, 18, 20]
    assert cuts(tail, Limits()) == [0, 20]
    assert cuts(tail, Limits(max_bytes=tail.lines[0].bytes * 4)) == [0, 8, 16, 20]


def test_a_transaction_beyond_the_bounds_is_one_batch(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)], [insert(n) for n in range(100)], [insert(2)]))
    tail = LogReader(path)
    assert cuts(tail, Limits(max_events=10)) == [0, 1, 101, 102]
    assert max(sizes(cuts(tail, Limits(max_events=10, respect_source_tx=False)))) == 10


# -- slices ------------------------------------------------------------------------------------------------------


def test_slices_cover_every_row_once_in_lane_order(path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ONE_TASK_ROWS", 10)
    chance = random.Random(5)
    writer = write(segment_bytes=30_000)
    _write_plan(writer, [([chance.randint(1, 40) for _ in range(5)], chance.random() < 0.5) for _ in range(12)])
    whole = changes(path)
    for tasks in (1, 2, 3, 7, 64, 100):
        start, end = chance.randint(0, 100), chance.randint(150, len(whole))
        pieces = [pickle.loads(pickle.dumps(piece)) for piece in LogReader(path).slices(start, end, tasks)]
        assert len(pieces) == min(tasks, LANES)
        read = [row for piece in pieces for row in _rows(piece)]
        assert sorted(read, key=lambda row: row["seq"]) == whole[start:end]
        for piece in pieces:
            _assert_lane_order(_rows(piece))


def test_the_last_change_of_each_key_is_read_alone(path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one table version, in a range that ends inside frames; what has no key stays."""
    monkeypatch.setattr(reader, "ONE_TASK_ROWS", 10)
    chance, writer = random.Random(6), write(segment_bytes=30_000)
    other = replace(ITEMS, id=1, table="other")
    for xid in range(1, 15):
        rows = [insert(chance.randrange(60), table=chance.choice((ITEMS, other))) for _ in range(30)]
        writer.append(capture(rows, [Row("m", None)], first_xid=xid * 2))
    whole = changes(path)
    for tasks, version in itertools.product((1, 2, 7), (ITEMS.id, other.id)):
        start, end = chance.randint(0, 150), chance.randint(200, len(whole))
        mine = [row for row in whole[start:end] if row["schema_id"] == version]
        last = {row["key"] or row["seq"]: row for row in mine}
        pieces = LogReader(path).slices(start, end, tasks, version, last=True)
        read = [row for piece in pieces for row in _rows(piece)]
        assert sorted(read, key=itemgetter("seq")) == sorted(last.values(), key=itemgetter("seq"))
        assert len(read) < len(mine)


def test_tasks_without_a_key_have_no_last_change(path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ONE_TASK_ROWS", 10)
    other = replace(ITEMS, id=1, table="other")
    writer = write()
    writer.append(capture([insert(1, str(n)) for n in range(50)]))
    writer.append(capture([insert(n, table=other) for n in range(50)], [insert(1)], first_xid=2))
    for end, last in ((50, 49), (101, 100)):
        pieces = LogReader(path).slices(0, end, 4, ITEMS.id, last=True)
        assert len(pieces) == 4
        assert [row["seq"] for piece in pieces for row in _rows(piece)] == [last]


def test_a_small_range_is_one_task(path: Path, write: Write) -> None:
    write().append(capture([insert(n) for n in range(100)]))
    [piece] = LogReader(path).slices(0, 100, 8)
    assert seqs(_rows(piece)) == list(range(100))


def test_a_change_of_all_keys_is_delivered_in_order_by_one_task(
    path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "ONE_TASK_ROWS", 1)
    writer = write()
    writer.append(capture([insert(n) for n in range(50)]))
    writer.append(capture([Row("t", None)], [insert(n) for n in range(50)], first_xid=2))
    tail = LogReader(path)
    assert len(tail.slices(0, 50, 4)) == 4
    [piece] = tail.slices(0, 101, 4)
    assert seqs(_rows(piece)) == list(range(101))


def test_slices_have_the_canonical_schema(path: Path, write: Write) -> None:
    write().append(capture([insert(n) for n in range(10)]))
    [piece] = LogReader(path).slices(0, 10, 1)
    assert {batch.schema for batch in read_slice(piece)} == {CHANGES}


# -- steps -------------------------------------------------------------------------------------------------------


def _write_plan(writer: LogWriter, plan: list[tuple[list[int], bool]]) -> None:
    """Lines of transactions; where the flag is set the first one of the line is handed over in parts."""
    xid = 1
    for line, spill in plan:
        first, *others = [[insert(xid * 1000 + n) for n in range(size)] for size in line]
        half = len(first) // 2
        if spill and half:
            writer.append(capture(first[:half], first_xid=xid, open_end=True))
            writer.append(capture(first[half:], *others, first_xid=xid, ordinal=half))
        else:
            writer.append(capture(first, *others, first_xid=xid))
        xid += len(line)


def _read(tail: LogReader, start: int, end: int) -> list[Change]:
    return [row for piece in tail.slices(start, end, 1) for row in _rows(piece)]


def _rows(piece: Slice) -> list[Change]:
    return [row for batch in read_slice(piece) for row in batch.to_pylist()]


def _assert_lane_order(rows: list[Change]) -> None:
    for lane in {row["lane"] for row in rows}:
        of_lane = seqs([row for row in rows if row["lane"] == lane])
        assert of_lane == sorted(of_lane)
