"""A real Kafka broker: one KRaft node that is its own controller, from the jars of the Maven repository."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import uuid
from pathlib import Path

from tailrace.errors import SetupError
from tailrace.machine.java import java_home, with_one_collector
from tailrace.machine.maven import fetch_jars
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess, free_port

VERSION = "4.3.0"

# The one that fits the slf4j-api among Kafka's own dependencies.
_LOGGER_VERSION = "1.7.36"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_LOGGING = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    # After a kill, the node waits for its own former session to expire before it is let in again.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.partitions": "4",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
}


class KafkaBroker(LocalServer):
    """One broker without authentication. Topics have 4 partitions by default; none is created by accident."""

    def __init__(self, directory: Path | None = None, heap: str = "256m") -> None:
        super().__init__("kafka", directory)
        self._heap = heap

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        fetch_kafka()

    def _launch(self, port: int) -> ServerProcess:
        properties = self._configure(port)
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(properties)
        return ServerProcess(
            self._java("kafka.Kafka", str(properties)),
            log=self.log,
            orphaned=signal.SIGKILL,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _ready(self, process: ServerProcess, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=15)

    def _configure(self, port: int) -> Path:
        path = self.directory / "server.properties"
        settings = self._settings(port, free_port())
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _settings(self, port: int, controller: int) -> dict[str, str]:
        return {
            **_SETTINGS,
            "listeners": f"CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.directory / "data"),
        }

    def _format_options(self) -> list[str]:
        return []

    def _format(self, properties: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", str(properties)]
        tool += self._format_options()
        done = subprocess.run(self._java(*tool), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(
                "environment.server_failed",
                f"Kafka's storage tool failed:\n{done.stderr}",
                hint="see its message",
            )

    def _java(self, *arguments: str) -> list[str]:
        java = str(java_home() / "bin" / "java")
        options = [f"-Xmx{self._heap}", *with_one_collector(_QUICK).split(), *_LOGGING]
        return [java, *options, "-cp", os.pathsep.join(f"{folder}/*" for folder in fetch_kafka()), *arguments]


def fetch_kafka() -> tuple[Path, Path]:
    """The folders of the broker's jars and of its logger, downloaded the first time."""
    broker = fetch_jars("org.apache.kafka", "kafka_2.13", VERSION)
    return broker, fetch_jars("org.slf4j", "slf4j-simple", _LOGGER_VERSION, transitive=False)
