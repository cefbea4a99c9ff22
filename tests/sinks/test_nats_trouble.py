"""Messages and acknowledgements that are lost, servers that die, freeze and forget: order per row holds."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from nats.js import JetStreamContext

from tailrace.contracts import Span
from tailrace.errors import SinkError
from tailrace.sinks.nats import NatsSink, writer
from tailrace.testing.servers import NatsServer
from tailrace.testing.suites.sinks import DELIVERY, Change, batch_for, deliver, span_of, versions, write
from tailrace.testing.waiting import eventually
from tests.sinks.nats_proxy import NatsProxy
from tests.sinks.nats_streams import add_stream, asked, nats_sink, values

FOREVER = 3600.0


@pytest.fixture(scope="module")
def own() -> Iterator[NatsServer]:
    """One that may be stopped, and takes large values."""
    with NatsServer(settings={"max_payload": 12_000_000, "max_pending": 64_000_000}) as server:
        yield server


def seen(server: NatsServer, sink: NatsSink) -> dict[int, list[int]]:
    """The versions of each row, as the stream has them."""
    rows: dict[int, list[int]] = {}
    for value in values(server, sink):
        row = json.loads(value)
        rows.setdefault(row["id"], []).append(row["n"])
    return rows


def of_row(identity: int, n: int, kind: bytes) -> Callable[[bytes], bool]:
    """A message of version `n` of a row: the first that passes."""
    lost: list[bytes] = []

    def lose(frame: bytes) -> bool:
        wanted = frame.startswith(kind) and f'"id": {identity}, "n": {n},'.encode() in frame and not lost
        lost.extend([frame] * wanted)
        return wanted

    return lose


def fails(sink: NatsSink, changes: list[Change]) -> SinkError:
    with pytest.raises(SinkError) as failure:
        write(sink, changes, tasks=1)
    assert failure.value.code == "sink.unavailable"
    return failure.value


def test_a_message_that_is_lost_is_not_overtaken_by_its_row(nats: NatsServer) -> None:
    """A leader that changes loses messages out of the middle of what is on its way, and takes those behind them."""
    changes = versions(0, keys=4, rounds=30)
    with NatsProxy(nats.port, of_row(1, 17, b"HPUB")) as proxy:
        sink = nats_sink(nats, send_timeout_secs=0.5).model_copy(update={"url": _dsn(proxy.url)})
        sink.prepare(DELIVERY)
        fails(sink, changes)
        assert seen(nats, sink)[1] == list(range(17))
        deliver(sink, changes, tasks=1)
    assert seen(nats, sink) == {row: list(range(30)) for row in range(4)}


def test_rows_do_not_wait_for_each_other(nats: NatsServer) -> None:
    """So the test above has messages behind the one that is lost."""
    changes = [Change(row, row, 0) for row in range(100)]
    with NatsProxy(nats.port, of_row(10, 0, b"HPUB")) as proxy:
        sink = nats_sink(nats, send_timeout_secs=0.5).model_copy(update={"url": _dsn(proxy.url)})
        sink.prepare(DELIVERY)
        fails(sink, changes)
        assert seen(nats, sink).keys() == set(range(50)) - {10}  # the first of two Arrow batches
        deliver(sink, changes)
    assert seen(nats, sink) == {row: [0] for row in range(100)}


def test_acknowledgements_that_are_lost_repeat_nothing(nats: NatsServer) -> None:
    changes, count = versions(0, keys=4, rounds=30), iter(range(1000))

    def lose(frame: bytes) -> bool:
        return frame.startswith(b"MSG _INBOX") and b'"seq"' in frame and next(count) in (40, 41)

    with NatsProxy(nats.port, lose) as proxy:
        sink = nats_sink(nats, send_timeout_secs=0.5).model_copy(update={"url": _dsn(proxy.url)})
        sink.prepare(DELIVERY)
        fails(sink, changes)
        deliver(sink, changes, tasks=1)
    assert seen(nats, sink) == {row: list(range(30)) for row in range(4)}


def _dsn(url: str) -> object:
    return NatsSink.from_document({"id": "x", "url": url, "subject": "x"}).url


def forget(server: NatsServer, probe: str) -> None:
    """Return when the stream that takes the subject `probe` has forgotten all that it has now."""

    async def again(context: JetStreamContext) -> bool:
        return not (await context.publish(probe, b"", headers={"Nats-Msg-Id": "probe"})).duplicate

    asked(server, again)
    eventually(lambda: asked(server, again))


@pytest.mark.parametrize("batches", [1, 2])
def test_a_repeat_that_is_absorbed_only_in_part_waits(nats: NatsServer, batches: int) -> None:
    """The stream has forgotten the first version, and would take it again behind the second, which it remembers."""
    first, second = Change(0, 0, 0), Change(1, 0, 1)
    again = [[first, second]] if batches == 1 else [[first], [second]]
    stream = f"W{batches}"
    add_stream(nats, stream, [f"w.{batches}", f"probe.{batches}"], duplicate_window=1)
    sink = nats_sink(nats, subject=f"w.{batches}", stream=stream, create=False)
    write(sink, [first])
    forget(nats, f"probe.{batches}")
    write(sink, [second])

    for part in again[:-1]:
        deliver(sink, part)
    error = fails(sink, again[-1])
    assert "duplicate_window" in error.hint

    def delivered() -> bool:
        try:
            deliver(sink, again[-1])
        except SinkError:
            return False
        return True

    eventually(delivered)
    stored = [json.loads(value)["n"] for value in values(nats, sink) if value]
    assert stored[:3] == [0, 1, 0]
    assert stored[-1] == 1
    asked(nats, lambda context: context.delete_stream(stream))


def test_a_delete_of_a_row_without_a_key_waits_for_all_and_is_waited_for(nats: NatsServer) -> None:
    """`alone` in the batch: truncates and messages too."""
    changes = [Change(seq, seq, 0) for seq in range(60)]
    with NatsProxy(nats.port, of_row(30, 0, b"HPUB")) as proxy:
        sink = nats_sink(nats, send_timeout_secs=0.5).model_copy(update={"url": _dsn(proxy.url)})
        sink.prepare(DELIVERY)
        batch = batch_for(sink, changes)
        ops = ["d" if seq == 30 else "c" for seq in range(60)]
        for name, column in (("op", ops), ("key", [None] * 60)):
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, pa.array(column, pa.string()))

        def task() -> None:
            sink.open(DELIVERY, span_of(changes), 0).write(iter([batch]))

        with pytest.raises(SinkError):
            task()
        assert list(seen(nats, sink)) == list(range(30))
        task()
    assert [json.loads(value)["id"] for value in values(nats, sink)] == list(range(60))


def test_a_frozen_server_is_a_wait_and_its_repeat_is_absorbed(own: NatsServer) -> None:
    sink = nats_sink(own, send_timeout_secs=0.5, connect_timeout_secs=0.5)
    changes = versions(0, keys=7, rounds=30)
    sink.prepare(DELIVERY)
    deliver(sink, versions(1000, keys=1, rounds=1))

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, changes[:70])
        os.kill(own.pid, signal.SIGSTOP)
        yield batch_for(sink, changes[70:])

    try:
        with pytest.raises(SinkError) as failure:
            sink.open(DELIVERY, span_of(changes), 0).write(batches())
        assert failure.value.code == "sink.unavailable"
        with pytest.raises(SinkError) as failure:
            sink.prepare(DELIVERY)
        assert failure.value.code == "sink.unavailable"
    finally:
        os.kill(own.pid, signal.SIGCONT)
    deliver(sink, changes)
    assert seen(own, sink) == {0: [0, *range(30)]} | {row: list(range(30)) for row in range(1, 7)}


def test_a_server_that_dies_and_comes_again_has_each_change_once(own: NatsServer) -> None:
    sink = nats_sink(own, send_timeout_secs=2, connect_timeout_secs=2)
    changes = versions(0, keys=7, rounds=30)
    sink.prepare(DELIVERY)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_for(sink, changes[:70])
        own.kill()
        yield batch_for(sink, changes[70:])

    with pytest.raises(SinkError) as failure:
        sink.open(DELIVERY, span_of(changes), 0).write(batches())
    assert failure.value.code == "sink.unavailable"
    fails(sink, changes)
    own.start()
    deliver(sink, changes)
    assert seen(own, sink) == {row: list(range(30)) for row in range(7)}


def test_a_connection_that_broke_between_two_batches_is_made_anew(own: NatsServer) -> None:
    sink = nats_sink(own)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=1, rounds=1), tasks=1)
    (link,) = [link for (_, stream, _), link in writer._links.items() if stream == sink.stream]
    own.restart()
    eventually(lambda: not link.usable)
    deliver(sink, versions(1, keys=1, rounds=1))
    assert len(values(own, sink)) == 2


@pytest.mark.parametrize("size", [1_000_000, 10_000_000])
def test_large_values_arrive_whole(own: NatsServer, size: int) -> None:
    sink = nats_sink(own)
    changes = [Change(seq, 0, seq, text="ž" * (size // 2)) for seq in range(3)]
    sink.prepare(DELIVERY)
    deliver(sink, changes)
    assert values(own, sink) == [change.value for change in changes]


def test_a_batch_that_takes_too_long_is_given_up(nats: NatsServer) -> None:
    sink = nats_sink(nats, batch_timeout_secs=0.01)
    sink.prepare(DELIVERY)
    error = fails(sink, versions(0, keys=1, rounds=5000))
    assert "batch_timeout_secs" in error.message


def test_a_run_that_ends_does_not_wait_for_a_server_that_says_nothing(own: NatsServer) -> None:
    sink = nats_sink(own, send_timeout_secs=FOREVER, connect_timeout_secs=FOREVER, batch_timeout_secs=FOREVER)
    sink.prepare(DELIVERY)
    deliver(sink, versions(0, keys=1, rounds=1), tasks=1)
    ending = replace(DELIVERY, ending=lambda: True)
    batch = batch_for(sink, versions(1, 1, 1))
    os.kill(own.pid, signal.SIGSTOP)
    since = time.monotonic()
    try:
        for attempt in (
            lambda: sink.open(ending, Span("log-1", 1, 2), 0).write(iter([batch])),
            lambda: sink.prepare(ending),
        ):
            with pytest.raises(SinkError) as failure:
                attempt()
            assert failure.value.code == "sink.unavailable"
    finally:
        os.kill(own.pid, signal.SIGCONT)
    assert time.monotonic() - since < 20
