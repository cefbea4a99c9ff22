"""The page of a service, in this process, at a loopback port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tailrace.supervisor.service import Service
from tailrace.surfaces.page import with_page
from tailrace.surfaces.rest.app import build


@contextmanager
def listening(service: Service, *, tokens_required: bool = False, port: int = 0) -> Iterator[str]:
    """Its address, until the block ends."""
    app = with_page(build(service, tokens_required=tokens_required))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind(("127.0.0.1", port))
        line.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [line]}, name="page")
        thread.start()
        try:
            yield f"http://127.0.0.1:{line.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
