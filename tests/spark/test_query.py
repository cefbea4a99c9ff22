"""Queries: what arrives, in which order, in which batches, and what happens twice."""

from __future__ import annotations

import errno
import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace.changelog import Bounds, LogReader, Retention, Subscribers
from tailrace.errors import LogError, SinkError
from tailrace.schema import Column
from tailrace.spark.control import Orders
from tailrace.spark.query import Began
from tailrace.spark.source import LogSource
from tailrace.spark.task import nobody_writes, writing
from tailrace.spec import Batch, Sharding
from tailrace.testing.captures import Row, capture
from tests.spark.logs import ORDERS, Shop
from tests.spark.sinks import LinesSink, read_commits, read_lines
from tests.spark.stage import Stage, wait_until

MakeSink = Callable[..., LinesSink]


def by_key(lines: list[dict[str, Any]], key: str = "id") -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for line in lines:
        found[line[key]].append(line["seq"])
    return found


def assert_in_order(lines: list[dict[str, Any]], key: str = "id") -> None:
    for value, seqs in by_key(lines, key).items():
        assert seqs == sorted(seqs), f"{key} {value} is out of order"


def test_delivers_every_change_once_in_order_per_key(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(1, 6000, 1)
    query = stage.start(sink())
    stage.delivered(query, end)
    end = stage.shop.commit(3)
    stage.delivered(query, end)

    lines = read_lines(stage.out)
    assert sorted(line["seq"] for line in lines) == list(range(end))
    assert [line["n"] for line in sorted(lines, key=lambda line: line["seq"])] == list(range(1, end + 1))
    assert_in_order(lines)
    assert {line["task"] for line in lines if line["span"] == [0, 6002]} == {0, 1}
    assert {line["task"] for line in lines if line["span"] == [6002, 6005]} == {0}
    assert lines[0]["value"]["tenant_id"] == "acme"


def test_a_sink_that_comes_to_a_trimmed_log_knows_where_it_began(stage: Stage, sink: MakeSink) -> None:
    stage.shop.writer.close()
    stage.shop = Shop(stage.shop.path, segment_bytes=1, manifest_bytes=1)
    end = [stage.shop.commit(10) for _ in range(5)][-1]
    whole = stage.start(sink())
    assert whole.began == Began(0)
    stage.delivered(whole, end)
    whole.drain(60)
    Retention(stage.shop.path).enforce(Bounds(max_bytes=0))
    earliest = LogReader(stage.shop.path).earliest
    shutil.rmtree(stage.state)
    added = stage.start(sink())
    assert added.began.offset == earliest > 0
    assert added.began.missed is not None
    assert (added.began.missed.rows, added.began.missed.tables) == (earliest, ("public.orders",))
    stage.delivered(added, stage.shop.commit(3))
    added.drain(60)
    assert stage.start(sink()).began == added.began


def test_a_sink_with_a_mark_missed_nothing(stage: Stage, sink: MakeSink) -> None:
    stage.shop.writer.close()
    stage.shop = Shop(stage.shop.path, segment_bytes=1, manifest_bytes=1)
    end = [stage.shop.commit(10) for _ in range(5)][-1]
    Retention(stage.shop.path).enforce(Bounds(max_bytes=0))
    stage.out.mkdir()
    (stage.out / "mark").write_text(str(end))
    assert stage.start(sink(marks=True)).began == Began(end)


def test_progress_counts_per_table(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(10, 10)
    query = stage.start(sink())
    stage.delivered(query, end)
    progress = query.progress()
    count = progress.tables["public.orders"]
    values = [json.dumps(line["value"], separators=(",", ":")) for line in read_lines(stage.out)]
    assert (progress.offset, progress.batches, count.rows) == (end, 1, 20)
    assert count.bytes is not None and count.bytes >= sum(len(value) for value in values)
    assert count.last_us == 1_700_000_000_000_001


def test_batches_respect_the_bound_and_split_no_transaction(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(40, 40, 40, 250, 10, 95, 5)
    query = stage.start(sink(), Batch(max_events=100))
    stage.delivered(query, end)

    spans = [(start, end) for start, end, _ in read_commits(stage.out)]
    assert spans == [(0, 80), (80, 120), (120, 370), (370, 380), (380, 480)]
    of_transaction: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for line in read_lines(stage.out):
        of_transaction[line["tx"]].add(tuple(line["span"]))
    assert all(len(spans) == 1 for spans in of_transaction.values())
    assert query.progress().bound_limited == 4


def test_a_sink_may_want_smaller_batches_but_gets_no_larger_ones(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(40, 40, 40)
    query = stage.start(sink(most_events=50), Batch(max_events=100))
    stage.delivered(query, end)
    assert query.drain(30)
    end = stage.shop.commit(40, 40, 40)
    query = stage.start(sink(most_events=500), Batch(max_events=100))
    stage.delivered(query, end)
    spans = [(start, end) for start, end, _ in read_commits(stage.out)]
    assert spans == [(0, 40), (40, 80), (80, 120), (120, 200), (200, 240)]


def test_an_uncommitted_batch_is_repeated_as_the_same_span(stage: Stage, sink: MakeSink) -> None:
    stage.shop.commit(5, 5)
    stage.out.mkdir()
    (stage.out / "refuse-commit").touch()
    query = stage.start(sink())
    wait_until(lambda: query.error() is not None)
    assert query.error().__class__ is SinkError
    assert query.error().as_dict() == {  # type: ignore[union-attr]
        "code": "sink.unavailable",
        "message": "commit refused",
        "hint": "remove refuse-commit",
        "where": "lines",
    }

    end = stage.shop.commit(7)
    (stage.out / "refuse-commit").unlink()
    again = stage.start(sink())
    stage.delivered(again, end)
    assert [commit[:2] for commit in read_commits(stage.out)] == [[0, 10], [10, 17]]
    lines = read_lines(stage.out)
    first, second = lines[:10], lines[10:20]
    assert [line["value"] for line in first] == [line["value"] for line in second]


def test_a_writers_error_arrives_as_itself(stage: Stage, sink: MakeSink) -> None:
    stage.shop.commit(6000)
    stage.out.mkdir()
    (stage.out / "refuse").touch()
    query = stage.start(sink())
    wait_until(lambda: query.error() is not None)
    error = query.error()
    assert isinstance(error, SinkError)
    assert (error.code, error.hint, error.where) == ("sink.unavailable", "remove refuse", "lines")
    wait_until(lambda: not query.is_active())
    assert read_commits(stage.out) == []


def test_a_batch_waits_for_writers_of_an_earlier_attempt(
    stage: Stage, sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []

    def look(lock: Path) -> bool:
        looks.append(nobody_writes(lock))
        return looks[-1]

    monkeypatch.setattr("tailrace.spark.records.nobody_writes", look)
    stage.state.mkdir()
    end = stage.shop.commit(3)
    with writing(stage.state / "writing.lock"):
        query = stage.start(sink())
        wait_until(lambda: len(looks) > 3, query)
        assert read_lines(stage.out) == []
    stage.delivered(query, end)
    assert looks[0] is False
    assert len(read_lines(stage.out)) == 3


def test_a_lost_checkpoint_repeats_nothing_in_a_marking_sink(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(5, 5)
    query = stage.start(sink(marks=True))
    stage.delivered(query, end)
    assert query.drain(30)
    shutil.rmtree(stage.state)

    end = stage.shop.commit(4)
    stage.delivered(stage.start(sink(marks=True)), end)
    assert [line["seq"] for line in read_lines(stage.out)] == list(range(end))


def test_a_mark_inside_a_batch_cuts_the_batch(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(5, 5)
    stage.out.mkdir()
    (stage.out / "refuse-commit").touch()
    query = stage.start(sink(marks=True))
    wait_until(lambda: query.error() is not None)
    (stage.out / "lines").unlink()
    (stage.out / "refuse-commit").unlink()
    (stage.out / "mark").write_text("5")

    stage.delivered(stage.start(sink(marks=True)), end)
    assert [line["seq"] for line in read_lines(stage.out)] == [5, 6, 7, 8, 9]
    assert {tuple(line["span"]) for line in read_lines(stage.out)} == {(5, 10)}, "named by what it holds"


def test_until_never_reads_past_the_target(stage: Stage, sink: MakeSink) -> None:
    target = stage.shop.commit(5, 5)
    query = stage.start(sink(gather_s=3600))
    query.until(target)
    stage.shop.commit(5)
    stage.delivered(query, target)
    assert query.drain(30)
    assert query.error() is None
    assert len(read_lines(stage.out)) == target


def test_orders_wait_for_space_on_the_disk(stage: Stage, sink: MakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
    target = stage.shop.commit(5)
    query = stage.start(sink())
    stage.delivered(query, target)
    full = iter([True, True, False])
    give = query._control.give

    def tried(orders: Orders) -> None:
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        give(orders)

    monkeypatch.setattr(query._control, "give", tried)
    assert not query.until(target)
    assert query.drain(30)
    assert (query.is_active(), query.error()) == (False, None)


def test_a_task_that_waits_is_told_of_the_end(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(5)
    query = stage.start(sink(away=True))
    wait_until((stage.out / "waiting").exists, query)
    assert query.drain(60)
    error = query.error()
    assert error is not None
    assert error.code == "sink.unavailable"
    stage.delivered(stage.start(sink()), end)
    assert len(read_lines(stage.out)) == end


@pytest.mark.parametrize("slow", [{"away": True}, {"pause_s": 0.0002}])
def test_a_batch_that_takes_too_long_is_given_up_and_comes_again(
    stage: Stage, sink: MakeSink, slow: dict[str, Any]
) -> None:
    end = stage.shop.commit(5)
    for _ in range(3):
        end = stage.shop.commit(20_000)
    query = stage.start(sink(**slow), deadline_s=0.5)
    wait_until(lambda: not query.is_active())
    error = query.error()
    assert error is not None
    assert error.code == "sink.unavailable"
    if not slow.get("away"):
        assert "longer than 0.5 seconds" in str(error)
    stage.delivered(stage.start(sink()), end)
    assert {line["seq"] for line in read_lines(stage.out)} == set(range(end))


def test_drain_leaves_nothing_half_done(stage: Stage, sink: MakeSink) -> None:
    stage.shop.commit(100)
    query = stage.start(sink(pause_s=0.005), Batch(max_events=1))
    wait_until(lambda: len(read_lines(stage.out)) > 10, query)
    stage.shop.commit(100)
    assert query.drain(30)
    assert not query.is_active()
    assert query.error() is None
    assert [commit[:2] for commit in read_commits(stage.out)] == [[0, 100]]

    stage.delivered(stage.start(sink()), 200)
    assert [line["seq"] for line in read_lines(stage.out)] == list(range(200))


def test_a_gathering_sink_gets_few_large_batches(stage: Stage, sink: MakeSink) -> None:
    stage.shop.commit(1)
    query = stage.start(sink(gather_s=1.0))
    ends = [stage.shop.commit(1) for _ in range(20)]
    stage.delivered(query, ends[-1])
    assert query.progress().batches <= 2


def test_sharding_by_a_column_orders_by_its_value(stage: Stage, sink: MakeSink) -> None:
    changed = [("u", n % 50, n // 3) for n in range(6000)]
    end = stage.shop.append([changed])
    query = stage.start(sink(), sharding=Sharding(count=2, key="n"))
    stage.delivered(query, end)
    lines = read_lines(stage.out)
    assert sorted(line["seq"] for line in lines) == list(range(end))
    assert_in_order(lines, "n")
    tasks_of: dict[int, set[int]] = defaultdict(set)
    for line in lines:
        tasks_of[line["n"]].add(line["task"])
    assert all(len(tasks) == 1 for tasks in tasks_of.values())
    assert len({line["task"] for line in lines}) == 2


def lives(keys: int, *, whole: bool, column: str = "n") -> list[Row]:
    """Each row is created, changed, deleted, created again, and gets another key, which is a delete and a create.

    `whole`: old rows are sent as they were. Otherwise deletes have the key only, and an update leaves `column` out.
    """
    table = replace(ORDERS, columns=(Column("id", "int8"), Column(column, "text")))

    def made(op: str, number: int, value: int) -> Row:
        key, image = {"id": number}, {"id": number, column: value}
        if op == "c":
            return Row("c", key, after=image, table=table)
        if op == "d":
            return Row("d", key, before=image if whole else key, table=table)
        if whole:
            return Row("u", key, before=image, after=image, table=table)
        return Row("u", key, after=key, unchanged=[column], table=table)

    steps = [[("c", 0)], [("u", 0)], [("d", 0)], [("c", 0)], [("d", 0), ("c", keys)], [("u", keys)]]
    return [made(op, key + more, key % 97) for step in steps for key in range(keys) for op, more in step]


def test_sharding_by_a_column_that_is_not_always_sent_keeps_the_order_of_rows(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.writer.append(capture(lives(1000, whole=False)))
    query = stage.start(sink(), sharding=Sharding(count=2, key="n"))
    stage.delivered(query, end)
    lines = read_lines(stage.out)
    assert sorted(line["seq"] for line in lines) == list(range(end))
    assert_in_order(lines)
    assert {"".join(line["op"] for line in lines if line["id"] == key) for key in range(1000)} == {"cudcd"}
    assert len({line["task"] for line in lines}) == 2
    assert ["public.orders" in warning and "n" in warning for warning in query.warnings()] == [True]


@pytest.mark.parametrize("column", ["n", "it's $.[\"] ${HOME}"])
def test_sharding_by_a_column_that_is_always_sent_orders_by_its_value(
    stage: Stage, sink: MakeSink, column: str
) -> None:
    end = stage.shop.writer.append(capture(lives(1000, whole=True, column=column)))
    query = stage.start(sink(), sharding=Sharding(count=2, key=column))
    stage.delivered(query, end)
    lines = read_lines(stage.out)
    assert sorted(line["seq"] for line in lines) == list(range(end))
    assert_in_order(lines)
    valued = [line | {"n": (line["value"]["after"] or line["value"]["before"])[column]} for line in lines]
    assert_in_order(valued, "n")
    tasks_of = {value: {line["task"] for line in valued if line["n"] == value} for value in range(97)}
    assert {len(tasks) for tasks in tasks_of.values()} == {1}
    assert len(set.union(*tasks_of.values())) == 2
    assert query.warnings() == ()


@pytest.mark.parametrize("column", ["id", "missing"])
def test_sharding_by_a_part_of_the_key_or_what_no_table_has(stage: Stage, sink: MakeSink, column: str) -> None:
    end = stage.shop.writer.append(capture(lives(900, whole=False)))
    query = stage.start(sink(), sharding=Sharding(count=2, key=column))
    stage.delivered(query, end)
    lines = read_lines(stage.out)
    assert sorted(line["seq"] for line in lines) == list(range(end))
    assert_in_order(lines)
    assert len({line["task"] for line in lines}) == 2
    assert query.warnings() == ()


def test_a_truncate_keeps_its_place_among_all_rows(stage: Stage, sink: MakeSink) -> None:
    rows = [("u", n % 50, n) for n in range(3000)]
    end = stage.shop.append([rows, [("t", 0, 0)], rows])
    query = stage.start(sink(), sharding=Sharding(count=2, key="n"))
    stage.delivered(query, end)
    assert [line["seq"] for line in read_lines(stage.out)] == list(range(end))


def test_a_recreated_log_is_refused(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(5)
    query = stage.start(sink())
    stage.delivered(query, end)
    assert query.drain(30)
    stage.shop.writer.close()
    shutil.rmtree(stage.shop.path)
    stage.shop = Shop(stage.shop.path)
    with pytest.raises(LogError) as refused:
        stage.start(sink())
    assert refused.value.code == "log.replaced"
    assert "checkpoint" in refused.value.hint


def test_a_lost_segment_stops_the_query_with_the_logs_own_error(stage: Stage, sink: MakeSink) -> None:
    stage.shop.commit(5)
    for segment in (stage.shop.path / "segments").iterdir():
        content = bytearray(segment.read_bytes())
        content[-1] ^= 0xFF
        segment.write_bytes(content)
    query = stage.start(sink())
    wait_until(lambda: query.error() is not None)
    error = query.error()
    assert isinstance(error, LogError)
    assert error.code == "log.corrupt"


def test_the_log_is_told_what_is_no_longer_needed(stage: Stage, sink: MakeSink) -> None:
    end = stage.shop.commit(5)
    query = stage.start(sink())
    stage.delivered(query, end)

    def reported() -> list[tuple[str, int, bool]]:
        return [(sub.name, sub.offset, sub.required) for sub in Subscribers(stage.shop.path).all()]

    wait_until(lambda: reported() == [("shop-feed/lines", end, True)], query)


def test_the_log_can_be_read_as_a_table(stage: Stage) -> None:
    end = stage.shop.commit(5, 5)
    stage.spark.dataSource.register(LogSource)
    frame = stage.spark.read.format("tailrace").option("path", str(stage.shop.path)).load()
    assert [row.seq for row in frame.select("seq").collect()] == list(range(end))
    assert LogReader(stage.shop.path).end == end


def test_an_idle_query_sleeps(stage: Stage, sink: MakeSink) -> None:
    """The JVM, its workers and this process, over five seconds. Generous: the machine may be busy."""
    end = stage.shop.commit(5)
    stage.delivered(stage.start(sink()), end)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in family if process.is_running())

    shares = []
    for _ in range(4):  # just-in-time compilation of what ran before may still be going on
        before = used()
        psutil.cpu_percent(interval=2.5)
        shares.append((used() - before) / 2.5)
    assert min(shares) < 0.15, shares
