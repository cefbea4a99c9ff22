"""The routes of the page, beside those of REST."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tailrace.surfaces.page import admin, contract, document, login, overview, pipeline

PARTS = (overview, pipeline, document, admin, contract, login)
ROUTERS: tuple[APIRouter, ...] = tuple(each.router for each in PARTS)


class Static(StaticFiles):
    """Files that browsers keep, and ask each time whether they are still right."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def with_page(app: FastAPI) -> FastAPI:
    """The same application, with the page."""
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    app.mount("/static", Static(directory=Path(__file__).parent / "static"))
    return app
