"""`GET /metrics`: the last status of a run, as Prometheus reads it. `figures` has every metric."""

from __future__ import annotations

import hmac
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar

from tailrace.errors import SetupError
from tailrace.supervisor.status import Status
from tailrace.surfaces.metrics.figures import LastStatus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tailrace.spec.platform import Metrics

__all__ = ["LastStatus", "served"]

CLIENT_S = 10.0
"""A client that neither asks nor reads for this long is hung up on."""


@contextmanager
def served(settings: Metrics | None) -> Iterator[Callable[[Status], None]]:
    """Answer until the block ends; yields what is to be called with each status. Nothing listens where there are no
    settings. Raises `metrics.address` where nothing can."""
    if settings is None:
        yield lambda status: None
        return
    told = LastStatus(settings.tables)
    with _Server(settings, told) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        thread.start()
        try:
            yield told.keep
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    """Answers each client in a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, settings: Metrics, told: LastStatus) -> None:
        from prometheus_client import CollectorRegistry

        self.registry: CollectorRegistry = CollectorRegistry()
        self.registry.register(told)
        self.expected = f"Bearer {settings.token.get_secret_value()}" if settings.token is not None else None
        try:
            [(self.address_family, *_, address), *_] = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM
            )
            super().__init__(address, _Answer)  # type: ignore[arg-type]
        except OSError as error:
            raise SetupError(
                "metrics.address",
                f"metrics cannot be served on {settings.host}:{settings.port}: {error.strerror or error}",
                hint="free the port, or choose another in the platform document's ports.metrics",
            ) from None


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout: ClassVar[float] = CLIENT_S

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        if self.path.partition("?")[0] != "/metrics":
            return self._say(HTTPStatus.NOT_FOUND, "text/plain", b"see /metrics\n")
        if not self._is_allowed():
            return self._say(HTTPStatus.UNAUTHORIZED, "text/plain", b"a bearer token is needed\n")
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        return self._say(HTTPStatus.OK, kind, encode(self.server.registry))

    def _is_allowed(self) -> bool:
        expected, given = self.server.expected, self.headers.get("Authorization", "")
        return expected is None or hmac.compare_digest(given.encode(), expected.encode())

    def _say(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Who asked is nobody's business."""
