"""A server without a process: the application over a service that runs nothing, and a client of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from tailrace.control.tokens import Tokens
from tailrace.spec import Platform
from tailrace.supervisor.service import Service
from tailrace.supervisor.service.states import PipelineView
from tailrace.surfaces.client import Client
from tailrace.surfaces.rest.app import build

URL = "http://127.0.0.1:8080"


class Door(httpx.BaseTransport):
    """The way to an application of this process."""

    def __init__(self, app: FastAPI) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


@dataclass
class Served:
    """A service that runs nothing: what its pipelines do is what `pretend` says."""

    service: Service
    app: FastAPI

    def client(self, token: str | None = None) -> Client:
        return Client(URL, token, Door(self.app))

    def token(self, name: str, scope: Any) -> str:
        return Tokens(self.service.store).create(name, scope, actor="test")[1]

    def pretend(self, name: str, state: Any, **parts: Any) -> None:
        """The pipeline, as its newest version, is in this state."""
        record = self.service.get(name)
        assert record.desired is not None
        kicks = self.service._kicks.get(name, 0)
        view = PipelineView(name, (record.version, kicks), record.desired, state, time.time() - 90)
        self.service._reconciler._views[name] = replace(view, **parts)


@contextmanager
def serving(folder: Path, *, tokens_required: bool = False) -> Iterator[Served]:
    service = Service(Platform.from_document({"data_dir": str(folder / "data")}), {"SHOP_DSN": DSN})
    try:
        yield Served(service, build(service, tokens_required=tokens_required))
    finally:
        service.close()


DSN = "postgresql://cdc:hidden@127.0.0.1:1/shop"


def document(name: str = "shop", **config: Any) -> dict[str, Any]:
    source = {"type": "postgres", "config": {"id": "shop", "dsn": "${SHOP_DSN}", "tables": ["public.*"]}}
    sink = {"type": "file", "config": {"id": "files", "path": "/tmp/nowhere", "format": "jsonl", **config}}
    return {"metadata": {"name": name, "labels": {"team": "pay"}}, "spec": {"source": source, "sinks": [sink]}}
