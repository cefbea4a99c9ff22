"""What every sink promises. Subclass, give the fixtures, and the promises become tests.

    class TestMySink(SinkSuite):
        repeats = "kept"

        @pytest.fixture
        def sink(self) -> MySink: ...

        @pytest.fixture
        def received(self, sink: MySink) -> Received: ...

No Spark is needed: `deliver` does what the query does with a batch, with records rendered in Python.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest

from tailrace.change import CHANGES, event_id
from tailrace.config import Reference, parse_template
from tailrace.contracts import Delivery, RecordSink, Span, Written
from tailrace.errors import Action, SinkError, decide
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.waiting import eventually

DELIVERY = Delivery(pipeline="shop", tenant="demo", source="shop-db")
LOG = "log-1"

Received = Callable[[], list[str]]
"""The fixture that reads back the values the sink made visible, in its order."""


@dataclass(frozen=True)
class Change:
    """One change for a test: version `n` of row `id` of a table, at an offset."""

    seq: int
    id: int
    n: int
    table: str = "orders"
    schema: str = "public"
    ts_us: int = 1_767_225_600_000_000
    text: str = ""

    @property
    def value(self) -> str:
        return json.dumps({"seq": self.seq, "id": self.id, "n": self.n, "text": self.text}, ensure_ascii=False)

    def row(self) -> dict[str, Any]:
        """The canonical columns, and `event_id` and `value` beside them."""
        position = f"0/{self.seq:X}"
        return {
            "seq": self.seq,
            "lane": self.id % 64,
            "source": DELIVERY.source,
            "op": "u" if self.n else "c",
            "database": "shop",
            "schema": self.schema,
            "table": self.table,
            "key": json.dumps({"id": self.id}),
            "before": None,
            "after": json.dumps({"id": self.id, "n": self.n, "text": self.text}, ensure_ascii=False),
            "unchanged": None,
            "ts_us": self.ts_us,
            "captured_us": self.ts_us,
            "tx_id": str(self.seq),
            "tx_ordinal": 0,
            "tx_last": True,
            "position": position,
            "schema_id": 1,
            "headers": None,
            "event_id": event_id(DELIVERY.source, position, 0),
            "value": self.value,
        }


def versions(start: int, keys: int, rounds: int) -> list[Change]:
    """`rounds` versions of each of `keys` rows, one after the other, from offset `start`."""
    return [Change(start + n * keys + key, key, n) for n in range(rounds) for key in range(keys)]


def span_of(changes: Sequence[Change]) -> Span:
    return Span(LOG, changes[0].seq, changes[-1].seq + 1)


def batch_for(sink: RecordSink, changes: Iterable[Change]) -> pa.RecordBatch:
    """The Arrow batch that the query would give the sink's writer."""
    rows = [change.row() for change in changes]
    types = {field.name: field.type for field in CHANGES} | {"event_id": pa.string(), "value": pa.string()}
    names = [*sink.columns(), *(["value"] if sink.wants_value() else [])]
    columns = {name: pa.array([row[name] for row in rows], types[name]) for name in names}
    for name, template in sink.routes().items():
        columns[name] = pa.array([_filled(template, row) for row in rows], pa.string())
    return pa.RecordBatch.from_pydict(columns)


def write(sink: RecordSink, changes: Sequence[Change], *, tasks: int = 2, span: Span | None = None) -> list[str]:
    """The tasks' half of a batch: each key in one task, in order. The receipts are what `commit` gets."""
    receipts, tasks = [], sink.tasks() or tasks
    for task in range(tasks):
        mine = [change for change in changes if change.id % tasks == task]
        halves = (mine[: len(mine) // 2], mine[len(mine) // 2 :])
        batches = iter([batch_for(sink, half) for half in halves if half])
        receipts.append(_receipt(sink.open(DELIVERY, span or span_of(changes), task).write(batches)))
    return receipts


def _receipt(written: Written) -> str:
    """The receipt of a part of which nothing was refused."""
    for refused in written.rejected:
        raise refused.error
    return written.receipt


def deliver(sink: RecordSink, changes: Sequence[Change], *, tasks: int = 2) -> None:
    """A whole batch, as the query does it: what is below the mark is not written again."""
    fresh = [change for change in changes if change.seq >= sink.mark(DELIVERY, LOG)]
    if fresh:
        sink.commit(DELIVERY, span_of(fresh), write(sink, fresh, tasks=tasks))


class SinkSuite:
    """The promises of every sink. `repeats` says what its docstring says about a batch delivered twice:
    `absorbed` (it is there once) or `kept` (it is there twice, each time in order)."""

    repeats: ClassVar[Literal["absorbed", "kept"]]

    @pytest.fixture
    def sink(self) -> RecordSink:
        """A sink with a place of its own, empty and not yet prepared."""
        raise NotImplementedError

    @pytest.fixture
    def received(self, sink: RecordSink) -> Received:
        raise NotImplementedError

    def test_its_docstring_says_how_it_absorbs_a_repeat(self, sink: RecordSink) -> None:
        assert "repeat" in (type(sink).__doc__ or "")

    def test_its_description_pickles(self, sink: RecordSink) -> None:
        assert pickle.loads(pickle.dumps(sink)) == sink

    def test_its_description_survives_a_document(self, sink: RecordSink) -> None:
        assert type(sink).model_json_schema()["properties"].keys() >= {"id", "required", "envelope"}

    def test_every_change_arrives_in_order_per_key(self, sink: RecordSink, received: Received) -> None:
        changes = versions(0, keys=7, rounds=20)
        sink.prepare(DELIVERY)
        deliver(sink, changes[:70])
        deliver(sink, changes[70:])
        assert _by_key(received()) == _by_key(change.value for change in changes)

    def test_the_same_span_twice(self, sink: RecordSink, received: Received) -> None:
        changes = versions(0, keys=5, rounds=4)
        sink.prepare(DELIVERY)
        deliver(sink, changes)
        deliver(sink, changes)
        values = [change.value for change in changes]
        assert _by_key(received()) == _by_key(values if self.repeats == "absorbed" else values + values)

    def test_an_attempt_without_commit_is_repeated(self, sink: RecordSink, received: Received) -> None:
        changes = versions(0, keys=5, rounds=4)
        sink.prepare(DELIVERY)
        write(sink, changes)
        sink.prepare(DELIVERY)
        deliver(sink, changes)
        seen = received()
        assert set(seen) == {change.value for change in changes}
        if self.repeats == "absorbed":
            assert len(seen) == len(changes)

    def test_the_mark_is_honest(self, sink: RecordSink) -> None:
        changes = versions(0, keys=5, rounds=4)
        sink.prepare(DELIVERY)
        assert sink.mark(DELIVERY, LOG) == 0
        receipts = write(sink, changes)
        assert sink.mark(DELIVERY, LOG) == 0
        sink.commit(DELIVERY, span_of(changes), receipts)
        assert sink.mark(DELIVERY, LOG) == (len(changes) if self.repeats == "absorbed" else 0)
        assert sink.mark(DELIVERY, "another-log") == 0

    def test_an_empty_batch_is_nothing_special(self, sink: RecordSink, received: Received) -> None:
        sink.prepare(DELIVERY)
        writer = sink.open(DELIVERY, Span(LOG, 0, 5), 0)
        sink.commit(DELIVERY, Span(LOG, 0, 5), [_receipt(writer.write(iter([])))])
        assert received() == []

    def test_a_process_that_is_killed_inside_a_batch(
        self, sink: RecordSink, received: Received, tmp_path: Path
    ) -> None:
        changes = versions(0, keys=5, rounds=40)
        sink.prepare(DELIVERY)
        _killed_halfway(sink, changes, tmp_path / "halfway")
        sink.prepare(DELIVERY)
        deliver(sink, changes)
        self.has_all(received(), changes)

    @pytest.mark.parametrize("text", ["žluťoučký kůň", "🐘 \u2028 \u0000 \\ \" '", "\ufeff\U0010ffff\ud7ff"])
    def test_any_text(self, sink: RecordSink, received: Received, text: str) -> None:
        changes = [Change(0, 1, 0, text=text), Change(1, 1, 1)]
        sink.prepare(DELIVERY)
        deliver(sink, changes)
        assert [json.loads(value)["text"] for value in received()] == [text, ""]

    def has_all(self, values: Sequence[str], changes: Sequence[Change]) -> None:
        """Every change is there, in order per key: once where repeats are absorbed; otherwise once more for each
        attempt, of which the last was whole."""
        found, wanted = _by_key(values), _by_key(change.value for change in changes)
        if self.repeats == "absorbed":
            assert found == wanted
            return
        assert found.keys() == wanted.keys()
        for key, all_of_it in wanted.items():
            assert found[key][-len(all_of_it) :] == all_of_it
            assert _is_attempts(found[key], all_of_it), found[key]


class ServerSinkSuite(SinkSuite):
    """The further promises of a sink whose records go to a server."""

    poison: ClassVar[str]
    """A text that the server or its client refuses to take as (a part of) a record."""
    large: ClassVar[tuple[int, ...]] = (1_000_000, 10_000_000)
    """Sizes of values that it takes."""

    @pytest.fixture
    def server(self) -> LocalServer:
        """The server of `sink`. It is stopped, started and frozen."""
        raise NotImplementedError

    @pytest.fixture
    def hasty(self, sink: RecordSink) -> RecordSink:
        """The sink, with as little patience as it can have."""
        return sink

    @pytest.fixture
    def unavailable(self) -> RecordSink:
        """A sink whose server is not there, with as little patience as it can have."""
        raise NotImplementedError

    def test_no_server_at_start_is_a_wait(self, unavailable: RecordSink) -> None:
        with pytest.raises(SinkError) as failure:
            unavailable.prepare(DELIVERY)
        assert failure.value.code == "sink.unavailable"
        assert failure.value.hint
        assert decide(failure.value) is Action.RETRY

    def test_no_server_in_the_middle_is_a_wait(self, unavailable: RecordSink) -> None:
        with pytest.raises(SinkError) as failure:
            write(unavailable, versions(0, keys=3, rounds=2))
        assert failure.value.code == "sink.unavailable"

    def test_a_refused_record_is_named(self, sink: RecordSink) -> None:
        changes = versions(0, keys=1, rounds=3)
        refused = Change(3, 0, 3, table="letters", text=self.poison)
        sink.prepare(DELIVERY)
        with pytest.raises(SinkError) as failure:
            write(sink, [*changes, refused, Change(4, 0, 4)], tasks=1)
        assert failure.value.code == "sink.rejected"
        assert "public.letters at 0/3" in str(failure.value)
        assert decide(failure.value) is Action.SET_ASIDE

    def test_a_refused_record_keeps_no_other_back(self, sink: RecordSink, received: Received) -> None:
        before, behind = versions(0, keys=1, rounds=3), Change(4, 0, 4)
        refused = Change(3, 0, 3, table="letters", text=self.poison)
        sink.prepare(DELIVERY)
        changes = [*before, refused, behind]
        written = sink.open(DELIVERY, span_of(changes), 0).write(iter([batch_for(sink, changes)]))
        sink.commit(DELIVERY, span_of(changes), [written.receipt])
        assert [each.error.code for each in written.rejected] == ["sink.rejected"]
        assert [each.row.num_rows for each in written.rejected] == [1]
        assert received() == [change.value for change in (*before, behind)]

    def test_large_values(self, sink: RecordSink, received: Received) -> None:
        sink.prepare(DELIVERY)
        texts = ["x" * (size - 200) for size in self.large]
        deliver(sink, [Change(n, n % 2, n, text=text) for n, text in enumerate(texts)])
        found = {json.loads(value)["n"]: json.loads(value)["text"] for value in received()}
        assert found == dict(enumerate(texts))

    def test_a_server_that_was_away(
        self, sink: RecordSink, hasty: RecordSink, received: Received, server: LocalServer
    ) -> None:
        changes = versions(0, keys=3, rounds=20)
        hasty.prepare(DELIVERY)
        server.stop()
        try:
            with pytest.raises(SinkError) as failure:
                write(hasty, changes)
        finally:
            server.start()
        assert failure.value.code == "sink.unavailable"
        sink.prepare(DELIVERY)
        deliver(sink, changes)
        self.has_all(received(), changes)

    def test_a_server_that_says_nothing(
        self, sink: RecordSink, hasty: RecordSink, received: Received, server: LocalServer
    ) -> None:
        changes = versions(0, keys=3, rounds=20)
        hasty.prepare(DELIVERY)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(SinkError) as failure:
                write(hasty, changes)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert failure.value.code == "sink.unavailable"
        sink.prepare(DELIVERY)
        deliver(sink, changes)
        self.has_all(received(), changes)


def _killed_halfway(sink: RecordSink, changes: Sequence[Change], reached: Path) -> None:
    """Writes the first half of `changes` in a process that is killed while it waits for the rest."""
    child = multiprocessing.get_context("spawn").Process(target=_write_half, args=(sink, tuple(changes), reached))
    child.start()
    try:
        eventually(lambda: reached.exists() or not child.is_alive(), 60)
        assert child.is_alive(), "it ended by itself"
    finally:
        child.kill()
        child.join()


def _write_half(sink: RecordSink, changes: Sequence[Change], reached: Path) -> None:
    half = len(changes) // 2

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, changes[: half // 2])
        yield batch_for(sink, changes[half // 2 : half])
        reached.touch()
        signal.pause()

    sink.open(DELIVERY, span_of(changes), 0).write(batches())


def _is_attempts(found: list[int], wanted: list[int]) -> bool:
    """Whether `found` is beginnings of `wanted`, one after another."""
    place = 0
    for n in found:
        place = 0 if n == wanted[0] else place
        if place == len(wanted) or n != wanted[place]:
            return False
        place += 1
    return True


def _by_key(values: Iterable[str]) -> dict[int, list[int]]:
    keys: dict[int, list[int]] = {}
    for value in values:
        row = json.loads(value)
        keys.setdefault(row["id"], []).append(row["n"])
    return keys


def _filled(template: str, row: dict[str, Any]) -> str | None:
    parts = [part if isinstance(part, str) else _look_up(part, row) for part in parse_template(template)]
    return None if None in parts else "".join(str(part) for part in parts)


def _look_up(reference: Reference, row: dict[str, Any]) -> object:
    match reference.path:
        case ("source", name):
            return row["database" if name == "db" else name]
        case (image, name):
            return json.loads(row[image] or "{}").get(name)
        case (word, *_):
            return row[word]
        case _:
            return None
