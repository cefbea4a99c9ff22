"""Kinesis by moto, in a process of its own: it checks what the service checks, and never throttles."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess


class KinesisServer(LocalServer):
    """Its streams are in its memory: they do not survive its end. `certificate` (with its key): TLS only."""

    def __init__(self, directory: Path | None = None, certificate: tuple[Path, Path] | None = None) -> None:
        super().__init__("kinesis", directory)
        self._certificate = certificate

    @property
    def endpoint(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        pass

    def _launch(self, port: int) -> ServerProcess:
        secure = (
            []
            if self._certificate is None
            else ["-s", "-c", str(self._certificate[0]), "-k", str(self._certificate[1])]
        )
        return ServerProcess(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), *secure],
            log=self.log,
            orphaned=signal.SIGKILL,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _ready(self, process: ServerProcess, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _end(self, process: ServerProcess) -> None:
        process.kill()  # it keeps nothing
