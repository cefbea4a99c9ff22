"""Debezium in Kafka Connect, standalone, from the Maven repository: what a user would run instead of a pipeline."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from benchmarks.stage import Table
from tailrace.machine.java import java_home
from tailrace.machine.maven import fetch_jars
from tailrace.testing.servers import KafkaBroker
from tailrace.testing.servers.kafka import VERSION, fetch_kafka
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess

DEBEZIUM = "3.5.0.Final"
PREFIX = "rival"
SLOT = "rival"
JVM = ("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""What Kafka's own start script gives Connect."""
JSON = "org.apache.kafka.connect.json.JsonConverter"


class Connect(LocalServer):
    """One worker with one connector, with the defaults of both: JSON without its schema, pgoutput, no snapshot."""

    def __init__(self, dsn: str, table: Table, broker: KafkaBroker) -> None:
        super().__init__("connect", None)
        self._database, self._table, self._broker = conninfo_to_dict(dsn), f"public.{table.name}", broker

    @property
    def topic(self) -> str:
        return f"{PREFIX}.{self._table}"

    def _prepare(self) -> None:
        _jars()

    def _launch(self, port: int) -> ServerProcess:
        worker = self._write("worker.properties", self._worker(port))
        connector = self._write("connector.properties", self._connector())
        command = [str(java_home() / "bin" / "java"), *JVM, "-cp", os.pathsep.join(f"{folder}/*" for folder in _jars())]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(connector)]
        return ServerProcess(command, log=self.log, orphaned=signal.SIGKILL, env={**os.environ, "LC_ALL": "C"})

    def _ready(self, process: ServerProcess, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors/{PREFIX}/status", timeout=5) as answer:
                status = json.load(answer)
        except OSError:
            return False
        return [task["state"] for task in status["tasks"]] == ["RUNNING"]

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=30)

    def _worker(self, port: int) -> dict[str, object]:
        return {
            "bootstrap.servers": self._broker.bootstrap,
            "listeners": f"http://127.0.0.1:{port}",
            "key.converter": JSON,
            "key.converter.schemas.enable": "false",
            "value.converter": JSON,
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": self.directory / "offsets",
            "plugin.discovery": "only_scan",
        }

    def _connector(self) -> dict[str, object]:
        database = self._database
        return {
            "name": PREFIX,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": SLOT,
            "publication.autocreate.mode": "filtered",
            "snapshot.mode": "no_data",
            "topic.prefix": PREFIX,
            "table.include.list": self._table,
            "database.hostname": database["host"],
            "database.port": database["port"],
            "database.user": database["user"],
            "database.password": database.get("password", "unused"),
            "database.dbname": database["dbname"],
        }

    def _write(self, name: str, settings: dict[str, object]) -> Path:
        path = self.directory / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


def _jars() -> tuple[Path, ...]:
    connect = fetch_jars("org.apache.kafka", "connect-runtime", VERSION)
    debezium = fetch_jars("io.debezium", "debezium-connector-postgres", DEBEZIUM)
    return connect, debezium, fetch_kafka()[1]
