"""One pipeline: what it does, what became of it, and what is done to it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tailrace.surfaces.page.answers import PageRoute, render, see
from tailrace.surfaces.page.band import band
from tailrace.surfaces.page.flow import flow
from tailrace.surfaces.page.shown import PipelineShown
from tailrace.surfaces.rest.access import Admin, Operator, Viewer
from tailrace.surfaces.rest.pipelines import Name, Use
from tailrace.surfaces.rest.shapes import TransitionShown

router = APIRouter(route_class=PageRoute)
STEPS = 50


@router.get("/pipeline/{name}")
def pipeline(request: Request, name: Name, service: Use, caller: Viewer) -> Response:
    shown = PipelineShown.of(service.get(name))
    steps = [TransitionShown.of(each) for each in service.transitions(name, limit=STEPS)]
    flows = [flow(shown, across=True), flow(shown, across=False)]
    return render(request, "pipeline.html", shown=shown, info=shown.info, steps=steps, band=band(steps), flows=flows)


@router.post("/pipeline/{name}/pause")
def pause(name: Name, service: Use, caller: Operator) -> Response:
    service.pause(name, actor=caller.name)
    return see(f"/pipeline/{name}")


@router.post("/pipeline/{name}/resume")
def resume(name: Name, service: Use, caller: Operator) -> Response:
    service.resume(name, actor=caller.name)
    return see(f"/pipeline/{name}")


@router.post("/pipeline/{name}/stop")
def stop(name: Name, service: Use, caller: Operator) -> Response:
    service.stop(name, actor=caller.name)
    return see(f"/pipeline/{name}")


@router.post("/pipeline/{name}/delete")
def delete(name: Name, service: Use, caller: Admin) -> Response:
    service.delete(name, actor=caller.name)
    return see("/")
