"""Where the driver keeps letters: in the journal first, then in a subject of NATS, wherever it dies in between."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.contracts import Letter, Span
from tailrace.control import Store
from tailrace.control.journal import Journal
from tailrace.errors import SinkError
from tailrace.sinks.nats import NatsSink
from tailrace.spark.letters import LetterDesk, LetterKeeping
from tailrace.testing.failpoints import dies_at
from tailrace.testing.servers import NatsServer
from tailrace.testing.suites.sinks import DELIVERY
from tests.sinks.dead_letters import refused
from tests.sinks.nats_streams import nats_sink, stream_of

LOG = "log-1"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Store(tmp_path / "control.db")) as store:
        yield Journal(store, DELIVERY.pipeline)


@pytest.fixture
def sink(nats: NatsServer) -> NatsSink:
    made = nats_sink(nats, dlq_subject=f"dlq.{uuid.uuid4().hex}")
    made.prepare(DELIVERY)
    return made


@pytest.fixture
def desk(journal: Journal, tmp_path: Path) -> Callable[[NatsSink], LetterDesk]:
    """A driver's, which may be another one with the same files."""
    keeping = LetterKeeping(journal)
    return lambda sink: LetterDesk(keeping, sink, DELIVERY, tmp_path / "log", tmp_path / "state", required=True)


Open = Callable[[NatsSink], LetterDesk]


def letters(*seqs: int) -> list[Letter]:
    return [refused(seq).letter for seq in seqs]


def published(server: NatsServer, sink: NatsSink) -> list[tuple[str, str]]:
    """(event id, attempts) of each message."""
    told = [each.headers or {} for each in stream_of(server, f"{sink.stream}_DLQ")]
    return [(one["dlq.event_id"], one["dlq.attempts"]) for one in told]


def test_what_the_journal_has_is_published(desk: Open, sink: NatsSink, journal: Journal, nats: NatsServer) -> None:
    desk(sink).keep(letters(1, 2), LOG)
    assert published(nats, sink) == [("event-1", "1"), ("event-2", "1")]
    first = journal.find()[0]
    [message, _] = stream_of(nats, f"{sink.stream}_DLQ")
    assert (message.headers or {})["dlq.timestamp"] == str(first.first_us // 1000)
    assert message.data == refused(1).row["value"].encode()


@pytest.mark.parametrize(("place", "attempts"), [("dlq.letters.durable", "2"), ("dlq.letters.published", "1")])
def test_a_driver_that_dies_publishes_again(
    place: str, attempts: str, desk: Open, sink: NatsSink, journal: Journal, nats: NatsServer
) -> None:
    """The stream absorbs the second message, where there was a first."""
    with dies_at(place):
        desk(sink).keep(letters(1), LOG)
    desk(sink).keep(letters(1), LOG)
    assert published(nats, sink) == [("event-1", attempts)]
    assert [(kept.letter.event_id, kept.attempts) for kept in journal.find()] == [("event-1", 2)]


def test_a_server_that_is_away_keeps_the_batch_waiting_and_the_letter_in_the_journal(
    desk: Open, sink: NatsSink, journal: Journal, nats: NatsServer
) -> None:
    away = NatsSink.model_validate({**sink.model_dump(), "url": "nats://127.0.0.1:1", "connect_timeout_secs": 0.5})
    with pytest.raises(SinkError) as failure:
        desk(away).keep(letters(1), LOG)
    assert failure.value.code == "sink.unavailable"
    assert len(journal.find()) == 1 and published(nats, sink) == []
    desk(sink).keep(letters(1), LOG)
    assert published(nats, sink) == [("event-1", "2")]


def test_letters_that_a_dead_driver_left_of_a_span_are_kept(
    desk: Open, sink: NatsSink, journal: Journal, nats: NatsServer
) -> None:
    dead = desk(sink)
    dead.begin()
    dead.files.put("10-20-0", letters(11, 19))
    dead.files.put("0-10-0", letters(9))
    dead.files.put("20-30-0", letters(20))
    desk(sink).keep_left(Span("another log", 10, 20))
    assert journal.find() == []
    desk(sink).keep_left(Span(LOG, 10, 20))
    assert [kept.letter.seq for kept in journal.find()] == [11, 19]
    assert published(nats, sink) == [("event-11", "1"), ("event-19", "1")]


def test_a_sink_without_a_topic_publishes_nothing(desk: Open, journal: Journal, nats: NatsServer) -> None:
    quiet = nats_sink(nats)
    desk(quiet).keep(letters(1), LOG)
    assert len(journal.find()) == 1
