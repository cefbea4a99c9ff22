"""Pipelines as a user runs them: `tailrace run` in a process of its own; the road is one with a Kafka sink."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.meter import family
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until
from tailrace import jvm
from tailrace.errors import SetupError
from tailrace.supervisor.layout import Layout
from tailrace.testing.servers import KafkaBroker

TOPIC = "road"
PARTITIONS = 4
WARM_TRANSACTIONS = 10
WARM_ROWS = 50
WARM_BATCHES = 2
START_S = 300.0
DRAIN_S = 60.0


class Running:
    """`tailrace run` with a pipeline from the standard table to one sink."""

    def __init__(
        self,
        stage: Stage,
        table: Table,
        name: str,
        kind: str,
        sink: dict[str, object],
        others: Sequence[Table] = (),
        processors: Sequence[dict[str, object]] = (),
    ) -> None:
        """`others` are captured too."""
        self._stage, self.table, self.name, self._others = stage, table, name, others
        self._processors = list(processors)
        self.slot = f"tailrace_{name}"
        self.layout = Layout(stage.folder / f"data-{name}")
        self.documents = self._documents(kind, sink)
        self._output = stage.folder / f"{name}.log"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "run", *self.documents], stdout=output, stderr=output
            )

    def tap_pid(self) -> int:
        return int(json.loads(self.layout.tap_status(self.name).read_text())["pid"])

    def pids(self, role: str) -> list[int]:
        """The processes of one role, oldest first."""
        return sorted(pid for pid, found in family(self.roles()) if found == role)

    def roles(self) -> dict[int, str]:
        sender = self._stage.walsender(self.slot)
        senders = {sender.pid: "walsender"} if sender else {}
        return self._stage.roles() | {self._process.pid: "driver", self.tap_pid(): "tap"} | senders

    def wait_for_stream(self) -> None:
        """What is committed before there is a slot is not for us."""
        streams = lambda: self.is_alive() and self._stage.walsender(self.slot) is not None  # noqa: E731
        until(streams, "the pipeline's tap streams", seconds=START_S)

    def is_alive(self) -> bool:
        if self._process.poll() is None:
            return True
        end = self._output.read_text(errors="replace")[-2000:]
        raise SetupError("benchmark.pipeline", f"the pipeline ended:\n{end}", hint="see its message")

    def close(self) -> None:
        """Drain it as Ctrl-C does."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _documents(self, kind: str, sink: dict[str, object]) -> list[str]:
        tables = [f"public.{each.name}" for each in (self.table, *self._others)]
        source = {"id": self.name, "dsn": self._stage.dsn, "tables": tables}
        document = {
            "apiVersion": "tailrace/v1",
            "kind": "Pipeline",
            "metadata": {"name": self.name, "tenant": "bench"},
            "spec": {
                "source": {"type": "postgres", "config": source},
                "processors": self._processors,
                "sinks": [{"type": kind, "config": sink}],
            },
        }
        # A YAML document may be written as JSON.
        pipeline = self._write(f"{self.name}.yaml", document)
        platform = self._write(f"{self.name}-platform.yaml", {"data_dir": str(self.layout.root)})
        return [str(pipeline), "--platform-config", str(platform)]

    def _write(self, name: str, document: object) -> Path:
        path = self._stage.folder / name
        path.write_text(json.dumps(document))
        return path


class Pipeline(Running):
    """A running pipeline from the standard table to a topic of its name."""

    def __init__(
        self,
        stage: Stage,
        broker: KafkaBroker,
        table: Table,
        name: str = TOPIC,
        processors: Sequence[dict[str, object]] = (),
    ) -> None:
        self.broker = broker
        sink: dict[str, object] = {"id": "kafka", "brokers": broker.bootstrap, "topic": name}
        super().__init__(stage, table, name, "kafka", sink, processors=processors)
        self._offsets = open_consumer(broker)

    def warm(self) -> None:
        """Carry a few changes, then many, so that Spark, its workers and the producer are there, and the plans for
        small and for large batches."""
        self.wait_for_stream()
        for rows in (*[WARM_ROWS] * WARM_TRANSACTIONS, *[2 * jvm.FEW] * WARM_BATCHES):
            self.table.write(rows, rows)
            until(self._caught_up, "the pipeline delivers", seconds=START_S)
        say(f"pipeline warm after {self.table.written} rows")

    def delivered(self) -> int:
        """Records acknowledged in the topic."""
        return sum(end for _, end in topic_ends(self._offsets, self.name))

    def roles(self) -> dict[int, str]:
        return super().roles() | {self.broker.pid: "broker"}

    def close(self) -> None:
        self._offsets.close()
        super().close()

    def _caught_up(self) -> bool:
        return self.is_alive() and self.delivered() >= self.table.written


def open_consumer(broker: KafkaBroker) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench", "enable.auto.commit": False})


def topic_ends(consumer: Consumer, topic: str) -> list[tuple[int, int]]:
    """(partition, offset after its last record)."""
    return [
        (number, consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1])
        for number in range(PARTITIONS)
    ]


@contextmanager
def open_pipeline(
    stage: Stage,
    broker: KafkaBroker,
    table: Table,
    name: str = TOPIC,
    processors: Sequence[dict[str, object]] = (),
) -> Iterator[Pipeline]:
    """A warm pipeline into a topic of the broker's."""
    say(f"starting the pipeline {name}")
    create_topic(broker, name)
    pipeline = Pipeline(stage, broker, table, name, processors)
    try:
        pipeline.warm()
        yield pipeline
    finally:
        pipeline.close()


def create_topic(broker: KafkaBroker, name: str) -> None:
    """Made here, so that its ends can be asked for from the start."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(timeout=30)
    consumer = open_consumer(broker)
    until(lambda: records(consumer, name) == 0, "the topic has leaders", seconds=60)
    consumer.close()


def records(consumer: Consumer, topic: str) -> int:
    """How many records the topic has; -1 while not all of its partitions have leaders."""
    with suppress(KafkaException):
        return sum(end for _, end in topic_ends(consumer, topic))
    return -1
