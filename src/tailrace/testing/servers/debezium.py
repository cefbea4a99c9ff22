"""Debezium's PostgreSQL connector in a standalone Kafka Connect, from the Maven repository: what a user would run
instead of a pipeline, to be measured and compared with."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import SetupError
from tailrace.machine.java import java_home
from tailrace.machine.maven import fetch_jars
from tailrace.testing.servers.kafka import VERSION, KafkaBroker, fetch_kafka
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess
from tailrace.testing.waiting import eventually

DEBEZIUM = "3.5.0.Final"
JVM = ("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""What Kafka's own start script gives Connect."""
STREAMS_S = 300.0
"""How long the connector may take until it reads the stream."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"


class DebeziumConnect(LocalServer):
    """One worker with one connector, with the defaults of both: JSON without its schema, `pgoutput`, the tables of
    `tables` (a list of regular expressions), and no snapshot. Its topics are `name.schema.table`; it makes those that
    are not there, with one partition. `settings` are the connector's, and win."""

    def __init__(
        self,
        dsn: str,
        broker: KafkaBroker,
        name: str,
        tables: str,
        *,
        schemas: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("connect", None)
        self._dsn, self._broker, self.name, self._tables = dsn, broker, name, tables
        self._schemas, self._settings = schemas, dict(settings or {})

    @property
    def slot(self) -> str:
        return self.name

    def wait_for_stream(self) -> None:
        """Until it reads its slot: what is committed from now on is in its topics."""
        query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            eventually(
                lambda: self.running and connection.execute(query, (self.slot,)).fetchone() is not None,
                STREAMS_S,
                what=lambda: self.log.read_text(errors="replace")[-3000:],
            )

    def _prepare(self) -> None:
        fetch_debezium()

    def _launch(self, port: int) -> ServerProcess:
        worker = self._write("worker.properties", self._worker(port))
        connector = self._write("connector.properties", self._connector())
        path = os.pathsep.join(f"{folder}/*" for folder in fetch_debezium())
        command = [str(java_home() / "bin" / "java"), *JVM, "-cp", path]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(connector)]
        return ServerProcess(command, log=self.log, orphaned=signal.SIGKILL, env={**os.environ, "LC_ALL": "C"})

    def _ready(self, process: ServerProcess, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors/{self.name}/status", timeout=5) as answer:
                status = json.load(answer)
        except OSError:
            return False
        for each in (status["connector"], *status["tasks"]):
            if each["state"] == "FAILED":
                raise SetupError(
                    "environment.server_failed", f"the connector failed:\n{each['trace']}", hint="see its message"
                )
        return [task["state"] for task in status["tasks"]] == ["RUNNING"]

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=30)

    def _worker(self, port: int) -> dict[str, object]:
        schemas = str(self._schemas).lower()
        return {
            "bootstrap.servers": self._broker.bootstrap,
            "listeners": f"http://127.0.0.1:{port}",
            "key.converter": _JSON,
            "key.converter.schemas.enable": schemas,
            "value.converter": _JSON,
            "value.converter.schemas.enable": schemas,
            "offset.storage.file.filename": self.directory / "offsets",
            "plugin.discovery": "only_scan",
        }

    def _connector(self) -> dict[str, object]:
        database = conninfo_to_dict(self._dsn)
        return {
            "name": self.name,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": self.slot,
            "publication.name": self.name,
            "publication.autocreate.mode": "filtered",
            "snapshot.mode": "no_data",
            "topic.prefix": self.name,
            "topic.creation.default.partitions": 1,
            "topic.creation.default.replication.factor": 1,
            "table.include.list": self._tables,
            "database.hostname": database["host"],
            "database.port": database["port"],
            "database.user": database["user"],
            "database.password": database.get("password", "unused"),
            "database.dbname": database["dbname"],
            **self._settings,
        }

    def _write(self, name: str, settings: dict[str, object]) -> Path:
        path = self.directory / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


def fetch_debezium() -> tuple[Path, ...]:
    """The folders of the worker's jars, the connector's and their logger, downloaded the first time."""
    connect = fetch_jars("org.apache.kafka", "connect-runtime", VERSION)
    debezium = fetch_jars("io.debezium", "debezium-connector-postgres", DEBEZIUM)
    return connect, debezium, fetch_kafka()[1]
