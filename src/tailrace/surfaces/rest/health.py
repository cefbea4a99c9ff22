"""Whether it lives, whether it is ready, and its figures."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from tailrace import telemetry
from tailrace.supervisor.service import PipelineRecord, Service
from tailrace.surfaces.rest.access import Admin, Door, Viewer
from tailrace.surfaces.rest.shapes import Answer, Matter, PipelineInfo

router = APIRouter(tags=["health"])
PAGE = 500


class Health(Answer):
    """Without a token: the word alone."""

    status: Literal["healthy", "unhealthy"]
    pipelines: int | None = None
    failed_pipelines: list[str] | None = None


class Alive(Answer):
    status: Literal["ok", "error"] = "ok"


class Component(Answer):
    """A pipeline, and what is the matter with it."""

    pipeline: str
    status: str
    matters: list[Matter]


class Readiness(Answer):
    status: Literal["ready", "not_ready"]
    components: list[Component] | None = None


class Ready(Answer):
    status: Literal["ready"] = "ready"
    pipelines: list[PipelineInfo] | None = None


@router.get("/health", responses={503: {"model": Health}})
def health(request: Request, response: Response) -> Health:
    """503 where a pipeline has failed."""
    service, door = _parts(request)
    records = _all(service)
    failed = [each.name for each in records if each.state == "failed"]
    response.status_code = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
    status: Literal["healthy", "unhealthy"] = "unhealthy" if failed else "healthy"
    if door.caller(request) is None:
        return Health(status=status)
    return Health(status=status, pipelines=len(records), failed_pipelines=failed or None)


@router.get("/ready")
def ready(request: Request) -> Ready:
    """The server takes requests; with its pipelines for whoever may see them. `/readyz` says whether these are well."""
    service, door = _parts(request)
    if door.caller(request) is None:
        return Ready()
    return Ready(pipelines=[PipelineInfo.of(each) for each in _all(service)])


@router.get("/healthz", responses={503: {"model": Alive}})
def healthz(request: Request, response: Response) -> Alive:
    """The process lives, and makes actual what is desired. 503 otherwise."""
    if _parts(request)[0].is_alive:
        return Alive()
    response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return Alive(status="error")


@router.get("/readyz", responses={503: {"model": Readiness}})
def readyz(request: Request, response: Response) -> Readiness:
    """503 where a pipeline that should run has failed, is degraded, or has not begun."""
    service, door = _parts(request)
    records = [each for each in _all(service) if each.desired == "running"]
    unwell = [each for each in records if each.state not in ("running", "snapshotting")]
    if unwell or not service.is_alive:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    status: Literal["ready", "not_ready"] = "not_ready" if unwell else "ready"
    if door.caller(request) is None:
        return Readiness(status=status)
    return Readiness(status=status, components=[_component(each) for each in records])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(request: Request, caller: Viewer) -> Response:
    """What Prometheus reads."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    request.app.state.figures.keep(_parts(request)[0].status())
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)


class LogLevel(Answer):
    level: telemetry.Level


@router.get("/log-level")
def log_level(caller: Viewer) -> LogLevel:
    """What the server says on its standard error: what is of this level or above."""
    return LogLevel(level=telemetry.level())


@router.put("/log-level")
def set_log_level(wanted: LogLevel, caller: Admin) -> LogLevel:
    """Say more, or less, from now on. Taps have the level that they were started with."""
    telemetry.set_level(wanted.level)
    return wanted


def _component(record: PipelineRecord) -> Component:
    findings = () if record.view is None else record.view.findings
    return Component(pipeline=record.name, status=record.state, matters=[Matter.of(each) for each in findings])


def _all(service: Service) -> list[PipelineRecord]:
    found: list[PipelineRecord] = []
    while page := service.pipelines(after=found[-1].name if found else None, limit=PAGE):
        found += page
    return found


def _parts(request: Request) -> tuple[Service, Door]:
    state: Any = request.app.state
    return state.service, state.door
