"""What every server here has in common: a folder, a port, and the ways it starts and ends."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tailrace.errors import SetupError
from tailrace.testing.servers.process import ServerProcess, free_port

_PORT_ATTEMPTS = 5
_PORT_TAKEN = ("Address already in use", "BindException")


class LocalServer(ABC):
    """A server that keeps its port and data through any number of `start`, `stop` and `kill`.

    Without a `directory` the data live in a temporary one, removed by `close()` or with the object; with one
    they stay. A subclass says how to prepare, launch, recognise readiness and end.
    """

    patience_s: ClassVar[float] = 60
    """How long it may take to start."""

    def __init__(self, kind: str, directory: Path | None) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=f"tailrace-{kind}-", ignore_cleanup_errors=True)
            directory = Path(self._temporary.name)
        self.directory = directory.absolute()
        self._process: ServerProcess | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The port on 127.0.0.1: chosen at the first start, the same ever after."""
        if self._port is None:
            raise SetupError("environment.server_not_started", "The server has no port yet", hint="call start()")
        return self._port

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def log(self) -> Path:
        """The server's own log, of all its runs."""
        return self.directory / "server.log"

    def start(self) -> Self:
        """Return when clients can connect; does nothing to a server that runs."""
        if self.running:
            return self
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        if self._port is not None:
            self._run(self._port)
        else:
            self._port = self._run_on_free_port()
        return self

    def stop(self) -> None:
        """End it in order, data intact; does nothing to a server that does not run."""
        if self._process is not None and self._process.running:
            self._end(self._process)
        self._process = None

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def kill(self) -> None:
        """SIGKILL it and its children, as a crash would; `start()` then recovers."""
        self._running().kill()
        self._process = None

    def close(self) -> None:
        """Stop it, and remove its data where they were temporary."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data directory unless it is there; called before each start."""

    @abstractmethod
    def _launch(self, port: int) -> ServerProcess: ...

    @abstractmethod
    def _ready(self, process: ServerProcess, port: int) -> bool: ...

    @abstractmethod
    def _end(self, process: ServerProcess) -> None: ...

    def _running(self) -> ServerProcess:
        if self._process is None or not self._process.running:
            raise SetupError("environment.server_not_started", "The server does not run", hint="call start()")
        return self._process

    def _run_on_free_port(self) -> int:
        for _ in range(_PORT_ATTEMPTS - 1):
            port = free_port()
            try:
                self._run(port)
                return port
            except SetupError as error:
                if not any(sign in error.message for sign in _PORT_TAKEN):
                    raise
        port = free_port()
        self._run(port)
        return port

    def _run(self, port: int) -> None:
        process = self._launch(port)
        process.wait_until(lambda: self._ready(process, port), seconds=self.patience_s)
        self._process = process
