"""A real HTTP server, of the standard library, that keeps what it gets and answers as it is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from tailrace.machine.durable import replace_file
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess


@dataclass(frozen=True)
class Request:
    """A request that came in whole, with the status that answered it (0: the connection was closed instead). Names of
    headers are in lower case; `client` is the port that it came from; `began` and `ended` are seconds since 1970."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    client: int
    began: float
    ended: float
    status: int


@dataclass(frozen=True)
class Rule:
    """An answer to requests whose path begins with `path`, and, where that is said, whose body contains a text or is
    larger, or that lack a header with this value. `times`: to so many of them; None: to all. `status` 0 closes the
    connection without an answer; `stall_s`: the answer comes so late."""

    path: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    contains: str | None = None
    larger_than: int | None = None
    lacks: tuple[str, str] | None = None
    times: int | None = None
    stall_s: float = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class HttpEndpoint(LocalServer):
    """Answers 200 until told otherwise, and knows all its requests, also those before a restart. With `cert` and `key`
    it speaks TLS; with `client_ca` it wants a certificate of its clients too."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        cert: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
    ) -> None:
        super().__init__("http", directory)
        self._tls = [str(each) for each in (cert, key, client_ca) if each is not None]
        self._rules: list[Rule] = []

    @property
    def url(self) -> str:
        """Without a path."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def answer(self, *rules: Rule) -> Self:
        """From now on; rules that were given before come behind."""
        self._rules = [*rules, *self._rules]
        replace_file(self.directory / "rules.json", json.dumps([asdict(rule) for rule in self._rules]))
        return self

    def requests(self, path: str = "/") -> list[Request]:
        """Those whose path begins with `path`, in the order in which they were answered."""
        file = self.directory / "requests.jsonl"
        whole = file.read_text().split("\n")[:-1] if file.exists() else []
        found = (Request(**json.loads(line)) for line in whole)
        return [request for request in found if request.path.startswith(path)]

    def _prepare(self) -> None:
        """Needs nothing."""

    def _launch(self, port: int) -> ServerProcess:
        program = [sys.executable, "-m", "tailrace.testing.servers.endpoint", str(self.directory), str(port)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return ServerProcess([*program, *self._tls], log=self.log, orphaned=signal.SIGKILL, env=environ)

    def _ready(self, process: ServerProcess, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=5)
