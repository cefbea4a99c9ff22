"""An application's messages, from a table and from the database's log to Kafka: each in its topic, as its payload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

from tailrace.testing.servers import KafkaBroker
from tailrace.testing.waiting import eventually
from tests.whole import System

pytestmark = pytest.mark.slow

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE outbox (
    id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb, trace text
)
"""
INSERT = "INSERT INTO outbox VALUES ('{uuid}', 'order', '{number}', '{event}', '{payload}', 't-{number}')"
SENT = "SELECT pg_logical_emit_message(true, '{prefix}', '{content}')"
OUTBOX = """
  processors:
    - type: outbox
      topic: ${after.aggregate_type}.events
      default_topic: mail
      additional_headers: {trace: trace}
      raw_payload: true
"""


def uuid(number: int) -> str:
    return f"00000000-0000-0000-0000-00000000000{number}"


def inserted(number: int, event: str, payload: str) -> str:
    return INSERT.format(uuid=uuid(number), number=number, event=event, payload=payload)


@pytest.fixture
def pipeline(system: Callable[..., System], kafka: KafkaBroker) -> System:
    """Whose source says what is an outbox."""
    sink = f'{{{{type: kafka, config: {{{{id: bus, brokers: "{kafka.bootstrap}", topic: cdc}}}}}}}}'
    made = system(sinks=sink, mode="initial")
    text = made.document.read_text().replace(
        "tables: [public.*]", "tables: [public.*], outbox: {tables: [public.outbox], prefixes: [mail.*]}"
    )
    made.document.write_text(text.rstrip() + OUTBOX)
    return made


@pytest.fixture
def arrived(kafka: KafkaBroker) -> Iterator[Callable[[int], list[Message]]]:
    """`arrived(n)`: the first n messages of the three topics."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "outbox", "auto.offset.reset": "earliest"}
        | {"topic.metadata.refresh.interval.ms": 500, "allow.auto.create.topics": True}
    )
    consumer.subscribe(["order.events", "mail", "cdc"])
    found: list[Message] = []

    def first(count: int) -> list[Message]:
        def there() -> bool:
            found.extend(message for message in consumer.consume(100, timeout=0.5) if message.error() is None)
            return len(found) >= count

        eventually(there, 90, what=lambda: str([message.value() for message in found]))
        return found

    yield first
    consumer.close()


def told(message: Message) -> tuple[Any, ...]:
    headers: Any = dict(message.headers() or [])
    return message.topic(), (message.key() or b"").decode(), (message.value() or b"").decode(), headers


def headers(number: int, event: str) -> dict[str, bytes]:
    return {
        "df-source-kind": b"outbox",
        "df-event-id": uuid(number).encode(),
        "df-aggregate-type": b"order",
        "df-aggregate-id": str(number).encode(),
        "df-event-type": event.encode(),
        "trace": f"t-{number}".encode(),
    }


def test_messages_arrive_as_their_payloads(pipeline: System, arrived: Callable[[int], list[Message]]) -> None:
    db = pipeline.db
    db.run(*TABLES.strip().split(";"), inserted(1, "placed", '{"n": 12345678901234567890.10}'))
    pipeline.start()
    arrived(1)  # the snapshot's row: from here on the stream is read
    db.run(
        inserted(2, "paid", '{"total": "9.90"}'),
        "UPDATE outbox SET payload = '{}'",
        "DELETE FROM outbox",
        SENT.format(prefix="mail.welcome", content='{"to": "x", "id": 7}'),
        "INSERT INTO orders VALUES (5)",
        SENT.format(prefix="other", content="{}"),
    )
    found = [told(message) for message in arrived(5)]
    assert sorted(each for each in found if each[0] != "cdc") == [
        ("mail", "", '{"to": "x"}', {"df-source-kind": b"outbox", "df-event-id": b"7"}),
        ("order.events", "1", '{"n": 12345678901234567890.10}', headers(1, "placed")),
        ("order.events", "2", '{"total": "9.90"}', headers(2, "paid")),
    ]
    rest = [json.loads(value) for topic, _, value, _ in found if topic == "cdc"]
    assert sorted((each["op"], each["source"]["table"]) for each in rest) == [("c", "orders"), ("m", "other")]
