"""Dead letters in a topic of Kafka, from a query: each is there at least once, with nothing that its chain hides, and
exactly once in the journal, wherever the driver dies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.contracts import Processor
from tailrace.control import Store
from tailrace.control.journal import Journal
from tailrace.errors import SparkError
from tailrace.failpoints import arm, disarm
from tailrace.processors.transform import TransformProcessor
from tailrace.sinks.kafka import KafkaSink
from tailrace.spark.letters import LetterKeeping
from tailrace.testing.servers import KafkaBroker
from tests.sinks.topics import headers, messages, topic
from tests.spark.stage import Stage, wait_until
from tests.spark.test_letters import Picky


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Store(tmp_path / "control.db")) as store:
        yield Journal(store, "shop-feed")


@pytest.fixture
def sink(kafka: KafkaBroker) -> Callable[..., KafkaSink]:
    def make(**settings: Any) -> KafkaSink:
        document = {"id": "bus", "brokers": kafka.bootstrap, "topic": topic(), **settings}
        return KafkaSink.from_document({"dlq_topic": f"{document['topic']}.dlq", **document})

    return make


Make = Callable[..., KafkaSink]


def published(broker: KafkaBroker, sink: KafkaSink) -> list[tuple[dict[str, str], dict[str, Any] | None]]:
    """(headers, record) of each letter in the topic."""
    found = []
    for message in messages(broker, sink.dlq_topic or ""):
        value = message.value()
        found.append((headers(message), None if value is None else json.loads(value)))
    return sorted(found, key=lambda one: int(one[0]["dlq.source.offset"]))


def delivered(broker: KafkaBroker, sink: KafkaSink) -> Counter[int]:
    return Counter(json.loads(message.value() or b"")["after"]["n"] for message in messages(broker, sink.topic))


def picky(*refused: int) -> Processor:
    return Picky(id="picky", refuses=refused, on_error="dlq")


@contextmanager
def dying_at(name: str) -> Iterator[None]:
    def fail() -> None:
        raise RuntimeError("died")

    arm(name, fail)
    try:
        yield
    finally:
        disarm(name)


def test_nothing_that_the_chain_hides_is_published(
    stage: Stage, sink: Make, journal: Journal, kafka: KafkaBroker
) -> None:
    """What the cluster refuses goes as the chain left it; what a processor failed for goes without its key, too."""
    bus = sink(topic="t-${after.gone}", dlq_topic=topic())
    hide = TransformProcessor.model_validate({"id": "hide", "mask": [{"columns": ["n"]}]})
    end = stage.shop.commit(2)
    query = stage.start(bus, processors=[picky(2), hide], letters=LetterKeeping(journal))
    stage.delivered(query, end)
    (unroutable, record), (failed, nothing) = published(kafka, bus)
    assert unroutable["dlq.error.type"] == "sink.unroutable" and "dlq.source.topic" not in unroutable
    assert record is not None and record["after"] == {"id": 1, "n": "***", "pad": ""}
    assert nothing is None and failed["dlq.processor"] == "picky"
    raw = [(each.key(), each.value(), each.headers()) for each in messages(kafka, bus.dlq_topic or "")]
    assert not re.search(r'"n": ?[0-9]', str(raw)) and [key for key, *_ in raw].count(None) == 1


def test_a_batch_that_its_task_committed_has_its_letters_all_the_same(
    stage: Stage, sink: Make, journal: Journal, kafka: KafkaBroker
) -> None:
    """With `exactly_once` the records are delivered before the driver hears of the letters; then it dies."""
    bus, keeping = sink(exactly_once=True), LetterKeeping(journal)
    end = stage.shop.commit(4)
    with dying_at("dlq.letters.found"):
        query = stage.start(bus, processors=[picky(3)], letters=keeping)
        with pytest.raises(SparkError, match="died"):
            wait_until(lambda: False, query)
    assert delivered(kafka, bus) == Counter([1, 2, 4])
    stage.delivered(stage.start(bus, processors=[picky(3)], letters=keeping), end)
    assert delivered(kafka, bus) == Counter([1, 2, 4])
    assert [kept.letter.seq for kept in journal.find()] == [2]
    assert [told["dlq.source.offset"] for told, _ in published(kafka, bus)] == ["2"]
