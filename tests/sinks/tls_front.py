"""TLS in front of a server that is built without it: a real handshake with real certificates, plain bytes behind."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from types import TracebackType
from typing import Self

from tests.capture.postgres.authority import Authority, Certificate

_CHUNK = 1 << 16


class TlsFront:
    """Listens on `port` with a certificate, and takes clients that have one of the same authority."""

    def __init__(self, target: int, authority: Authority, own: Certificate) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(own.cert, own.key)
        self._context.load_verify_locations(authority.root)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        _start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                _start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target)) as server,
            self._context.wrap_socket(client, server_side=True) as encrypted,
        ):
            _start(_carry, server, encrypted)
            _carry(encrypted, server)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def _start(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]
