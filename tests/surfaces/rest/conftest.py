"""The application over a service that makes nothing actual: what is asked and answered, without Spark."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from tailrace.spec import Platform
from tailrace.supervisor.service import Service
from tailrace.surfaces.rest.app import build
from tailrace.testing.waiting import eventually

CANARY = "c4n4ry-0f-a-secret"
ENVIRON = {"DSN": f"postgresql://me:{CANARY}@127.0.0.1:1/db"}


def document(name: str = "shop", **labels: str) -> dict[str, Any]:
    source = {"id": name, "dsn": "${DSN}", "tables": ["public.*"]}
    spec = {
        "source": {"type": "postgres", "config": source},
        "sinks": [{"type": "console", "config": {"id": "screen"}}],
    }
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(Platform(data_dir=tmp_path / "data"), ENVIRON)
    yield made
    made.close()


class Asking(httpx.Client):
    """A client of an application that listens on a port of its own. `host` is what it calls the server."""

    def __init__(self, app: FastAPI, *, token: str | None = None, host: str | None = None) -> None:
        self._line = socket.create_server(("127.0.0.1", 0))
        port = self._line.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._line]}, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= {} if host is None else {"Host": host}
        super().__init__(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=30)

    def close(self) -> None:
        super().close()
        self._server.should_exit = True
        self._thread.join()
        self._line.close()


@pytest.fixture
def client_of(service: Service) -> Iterator[Callable[..., Asking]]:
    """`client_of(token=…, host=…, tokens_required=…, hosts=…)`."""
    with ExitStack() as clients:

        def make(
            *, token: str | None = None, host: str | None = None, own: str | None = None, **settings: Any
        ) -> Asking:
            app = build(service, token=own, **settings)
            return clients.enter_context(Asking(app, token=token, host=host))

        yield make


@pytest.fixture
def client(client_of: Callable[..., Asking]) -> Asking:
    return client_of()
