"""The whole road as a user runs it: `tailrace run` with a Kafka sink, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.meter import family
from benchmarks.stage import Stage, Table
from benchmarks.waiting import say, until
from tailrace.errors import SetupError
from tailrace.supervisor.layout import Layout
from tailrace.testing.servers import KafkaBroker

NAME = "road"
TOPIC = "road"
PARTITIONS = 4
WARM_TRANSACTIONS = 10
WARM_ROWS = 50
START_S = 300.0
DRAIN_S = 60.0


class Pipeline:
    """A running pipeline from the standard table to a topic."""

    slot = f"tailrace_{NAME}"

    def __init__(self, stage: Stage, broker: KafkaBroker, table: Table) -> None:
        self._stage, self.broker, self.table = stage, broker, table
        self._layout = Layout(stage.folder / "data")
        self._offsets = self.consumer()
        self._output = stage.folder / "run.log"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "run", *self._documents()], stdout=output, stderr=output
            )

    def consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "bench", "enable.auto.commit": False})

    def warm(self) -> None:
        """Carry a few hundred changes, so that Spark, its workers and the producer are there."""
        # What is committed before there is a slot is not for us.
        until(lambda: self._alive() and self._streams(), "the pipeline's tap streams", seconds=START_S)
        until(self._answers, "the topic has leaders", seconds=60)
        for _ in range(WARM_TRANSACTIONS):
            self.table.write(WARM_ROWS)
            until(self._caught_up, "the pipeline delivers", seconds=START_S)
        say(f"pipeline warm after {self.table.written} rows")

    def delivered(self) -> int:
        """Records acknowledged in the topic."""
        return sum(end for _, end in self.ends())

    def ends(self) -> list[tuple[int, int]]:
        """(partition, offset after its last record)."""
        return [
            (number, self._offsets.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=10)[1])
            for number in range(PARTITIONS)
        ]

    def tap_pid(self) -> int:
        return int(json.loads(self._layout.tap_status(NAME).read_text())["pid"])

    def pids(self, role: str) -> list[int]:
        """The processes of one role, oldest first."""
        return sorted(pid for pid, found in family(self.roles()) if found == role)

    def roles(self) -> dict[int, str]:
        sender = self._stage.walsender(self.slot)
        senders = {sender.pid: "walsender"} if sender else {}
        ours = {self._process.pid: "driver", self.tap_pid(): "tap", self.broker.pid: "broker"}
        return self._stage.roles() | ours | senders

    def close(self) -> None:
        """Drain it as Ctrl-C does."""
        self._offsets.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _streams(self) -> bool:
        return self._stage.walsender(self.slot) is not None

    def _answers(self) -> bool:
        with suppress(KafkaException):
            return self.delivered() == 0
        return False

    def _caught_up(self) -> bool:
        return self._alive() and self.delivered() >= self.table.written

    def _alive(self) -> bool:
        if self._process.poll() is None:
            return True
        end = self._output.read_text(errors="replace")[-2000:]
        raise SetupError("benchmark.pipeline", f"the pipeline ended:\n{end}", hint="see its message")

    def _documents(self) -> list[str]:
        source = {"id": NAME, "dsn": self._stage.dsn, "tables": [f"public.{self.table.name}"]}
        sink = {"id": "kafka", "brokers": self.broker.bootstrap, "topic": TOPIC}
        document = {
            "apiVersion": "tailrace/v1",
            "kind": "Pipeline",
            "metadata": {"name": NAME, "tenant": "bench"},
            "spec": {
                "source": {"type": "postgres", "config": source},
                "sinks": [{"type": "kafka", "config": sink}],
            },
        }
        # A YAML document may be written as JSON.
        pipeline = self._write("pipeline.yaml", document)
        platform = self._write("platform.yaml", {"data_dir": str(self._layout.root)})
        return [str(pipeline), "--platform-config", str(platform)]

    def _write(self, name: str, document: object) -> Path:
        path = self._stage.folder / name
        path.write_text(json.dumps(document))
        return path


@contextmanager
def open_pipeline(stage: Stage, table: Table) -> Iterator[Pipeline]:
    """A broker and a warm pipeline into it."""
    with KafkaBroker() as broker:
        say("starting the pipeline")
        _create_topic(broker)
        pipeline = Pipeline(stage, broker, table)
        try:
            pipeline.warm()
            yield pipeline
        finally:
            pipeline.close()


def _create_topic(broker: KafkaBroker) -> None:
    """Made here, so that its ends can be asked for from the start."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(timeout=30)
