"""A proxy in front of a NATS server that loses what it is told to lose, and says nothing of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self

_SIZED = (b"PUB", b"HPUB", b"MSG", b"HMSG")


class NatsProxy:
    """`lose(frame)` decides about every message, with its head, in both directions."""

    def __init__(self, target: int, lose: Callable[[bytes], bool]) -> None:
        self._target, self.lose = target, lose
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            stream = source.makefile("rb")
            while frame := _frame(stream):
                if not (frame.startswith(_SIZED) and self.lose(frame)):
                    target.sendall(frame)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _frame(stream: IO[bytes]) -> bytes:
    """One line, with the message that it announces."""
    line = stream.readline()
    words = line.split()
    return line + stream.read(int(words[-1]) + 2) if words and words[0] in _SIZED else line
