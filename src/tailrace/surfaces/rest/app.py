"""The application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry

from tailrace import __version__
from tailrace.control.tokens import Tokens
from tailrace.supervisor.service import Service
from tailrace.surfaces.metrics import LastStatus
from tailrace.surfaces.rest import events, health, letters, pipelines, problems, tables
from tailrace.surfaces.rest.access import Door, Guard
from tailrace.surfaces.rest.shapes import ProblemShown

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    pipelines.router,
    letters.router,
    tables.router,
    events.router,
)


def build(
    service: Service, *, tokens_required: bool = False, hosts: Iterable[str] = (), token: str | None = None
) -> FastAPI:
    """The application over a service. `hosts`: what the server is called besides the names of loopback. `token`:
    one that may do everything, besides those of the store."""
    app = routed()
    door = Door(Tokens(service.store), required=tokens_required, hosts=hosts, own=token)
    app.state.service, app.state.door = service, door
    app.state.figures, app.state.registry = LastStatus(), CollectorRegistry()
    app.state.registry.register(app.state.figures)
    app.add_middleware(Guard, door=door)
    return app


def routed() -> FastAPI:
    """Every route under `/v1`, and bare for clients of old; only the former are in the OpenAPI document."""
    app = FastAPI(
        title="Tailrace",
        version=__version__,
        summary="Pipelines that carry every committed change of a database.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        responses={"default": {"model": ProblemShown, "description": "What went wrong (RFC 9457)."}},
        generate_unique_id_function=lambda route: route.name,
    )
    for router in ROUTERS:
        app.include_router(router, prefix="/v1")
        app.include_router(router, include_in_schema=False)
    problems.install(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; errors have a media type of their own."""
    if app.openapi_schema is None:
        found = FastAPI.openapi(app)
        operations = [each for methods in found["paths"].values() for each in methods.values()]
        for operation in operations:
            answers = operation["responses"]
            answers.pop("422", None)  # what is malformed is a problem like any other
            for each in (answers[code] for code in ("default", "501") if code in answers):
                each["content"] = {problems.MEDIA_TYPE: next(iter(each["content"].values()))}
    return app.openapi_schema or {}
