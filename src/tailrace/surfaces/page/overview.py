"""All pipelines, the worst first."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tailrace.supervisor.service import PipelineRecord, Service
from tailrace.supervisor.service.states import WORST
from tailrace.surfaces.page.answers import PageRoute, render
from tailrace.surfaces.page.shown import PipelineShown
from tailrace.surfaces.rest.access import Viewer
from tailrace.surfaces.rest.pipelines import Use

router = APIRouter(route_class=PageRoute)
SHOWN = 100
"""Pipelines, unless more are asked for."""
PART = 500


@router.get("/")
def overview(
    request: Request,
    service: Use,
    caller: Viewer,
    q: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    most: Annotated[int, Query(ge=1, le=10_000)] = SHOWN,
) -> Response:
    """`q`: a part of a name, or of a label as `team=pay`."""
    every = _every(service)
    named = [each for each in every if q.lower() in _words(each)]
    found = sorted((each for each in named if state in ("", each.state)), key=_urgency)
    return render(
        request,
        "overview.html",
        total=len(every),
        states=sorted(Counter(each.state for each in named).items(), key=lambda each: WORST.index(each[0])),
        pipelines=[PipelineShown.of(each) for each in found[:most]],
        more=max(0, len(found) - most),
        most=most,
        q=q,
        state=state,
    )


def _every(service: Service) -> list[PipelineRecord]:
    found: list[PipelineRecord] = []
    while page := service.pipelines(after=found[-1].name if found else None, limit=PART):
        found += page
    return found


def _words(record: PipelineRecord) -> str:
    labels = (record.content.get("metadata") or {}).get("labels") or {}
    return " ".join([record.name, *(f"{label}={value}" for label, value in labels.items())]).lower()


def _urgency(record: PipelineRecord) -> tuple[int, float, str]:
    """The worst state, then whoever is furthest behind."""
    lags = [sink.lag_s or 0.0 for sink in record.view.sinks] if record.view else []
    return WORST.index(record.state), -max(lags, default=0.0), record.name
