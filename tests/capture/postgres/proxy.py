"""A TCP proxy in front of a server that can stop carrying bytes, without a word to either side, and carry on."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class Proxy:
    """Listens on `port`. While cut, connections stay open, new ones are taken, and no byte passes."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        _start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flowing.set()
        self._listener.close()
        for one in self._sockets:
            one.close()

    def cut(self) -> None:
        self._flowing.clear()

    def mend(self) -> None:
        self._flowing.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    _start(self._carry, source, sink)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        """Until one side is gone, be it by a reset, which the other side must learn too."""
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flowing.wait()
                sink.sendall(data)
        self._flowing.wait()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _start(run: object, *arguments: object) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()  # type: ignore[arg-type]
