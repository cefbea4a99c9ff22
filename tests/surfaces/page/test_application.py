"""The page beside REST: no path means two things."""

from __future__ import annotations

from fastapi import FastAPI

from tailrace.surfaces.page.application import ROUTERS
from tailrace.surfaces.rest.app import routed


def test_the_page_has_no_path_of_rest() -> None:
    page = FastAPI()
    for router in ROUTERS:
        page.include_router(router)
    mine, theirs = paths(page), paths(routed())
    assert len(mine) > 10 and mine.isdisjoint(theirs)


def paths(app: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths. REST's are served without `/v1`, too."""
    found = [(method, path) for path, methods in app.openapi()["paths"].items() for method in methods]
    return {*found, *((method, path.removeprefix("/v1")) for method, path in found)}
