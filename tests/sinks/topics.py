"""What is in a topic, for tests of the Kafka sink."""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.testing.servers import KafkaBroker


def topic() -> str:
    """The name of a new topic."""
    return f"t-{uuid.uuid4().hex[:12]}"


def make_topic(broker: KafkaBroker, **config: str) -> str:
    """A topic with one partition and settings of its own, with `_` for the dots."""
    name = topic()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = NewTopic(name, 1, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin.create_topics([wanted], operation_timeout=30)[name].result(30)
    return name


def messages(broker: KafkaBroker, name: str) -> list[Message]:
    """Everything in the topic that is committed, up to the end that each partition has now for such readers."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "tests", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    try:
        open_ones = set(consumer.list_topics(name, timeout=10).topics[name].partitions)
        consumer.assign([TopicPartition(name, number, 0) for number in open_ones])
        read: list[Message] = []
        deadline = time.monotonic() + 60
        while open_ones and time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    read.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ones.discard(message.partition())
        assert not open_ones, f"no end of {name} in sight"
        return read
    finally:
        consumer.close()


def headers(message: Message) -> dict[str, str]:
    """Those of a record of which no name is there twice."""
    found: Any = message.headers() or []
    return {name: text.decode() for name, text in found}


def values(broker: KafkaBroker, name: str) -> list[str]:
    return [(message.value() or b"").decode() for message in messages(broker, name)]
