"""Pipelines: their documents, and what they shall do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from tailrace.config.document import parse_document
from tailrace.errors import ConfigError
from tailrace.supervisor.service import PipelineRecord, Service
from tailrace.surfaces.rest.access import Admin, Operator, Viewer
from tailrace.surfaces.rest.pages import cursor_of, place_of
from tailrace.surfaces.rest.shapes import (
    Answer,
    AppliedShown,
    DocumentVersion,
    Page,
    PipelineInfo,
    PlanShown,
    TransitionShown,
    etag_of,
)

router = APIRouter(tags=["pipelines"])
MOST = 1000


def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Use = Annotated[Service, Depends(service_of)]
Name = Annotated[str, Path(description="The pipeline.", min_length=1, max_length=128)]
IfMatch = Annotated[str | None, Header(description="The `etag` that the change is meant for.")]
Limit = Annotated[int, Query(ge=1, le=MOST, description="At most so many.")]
Cursor = Annotated[str | None, Query(description="`next` of the page before.", max_length=1000)]


class Validity(Answer):
    """Whether a document is right."""

    valid: bool
    pipeline: str | None = None
    source_type: str | None = None
    sink_count: int | None = None


async def document(request: Request) -> dict[str, Any]:
    """The body: a pipeline document, as JSON or as YAML."""
    raw = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        text = raw.decode()
        if kind in ("", "application/json", "application/merge-patch+json"):
            found = json.loads(text)
        else:
            found = parse_document(text, "body").data
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        hint = "send JSON, or YAML with `Content-Type: application/yaml`"
        raise ConfigError("config.syntax", f"the body is not valid: {error}", hint=hint, where="body") from None
    if not isinstance(found, Mapping):
        raise ConfigError("config.syntax", "the body is not an object", hint="send an object", where="body")
    return dict(found)


Document = Annotated[dict[str, Any], Depends(document)]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}


@router.post("/validate", response_model=Validity, openapi_extra=_BODY)
def validate(content: Document, service: Use, caller: Viewer) -> Validity:
    """Whether a document could be applied, as far as that can be said without connecting to anything."""
    pipeline = service.validate(content).pipeline
    return Validity(
        valid=True,
        pipeline=pipeline.name,
        source_type=pipeline.spec.source.type,
        sink_count=len(pipeline.spec.sinks),
    )


@router.post("/plan", response_model=PlanShown, openapi_extra=_BODY)
def plan(content: Document, service: Use, caller: Viewer) -> PlanShown:
    """What applying the document would change, and what each change costs. Nothing is changed."""
    return PlanShown.of(service.plan(content))


@router.post("/apply", response_model=AppliedShown, openapi_extra=_BODY)
def apply(
    content: Document,
    service: Use,
    caller: Operator,
    plan: Annotated[str | None, Query(description="The hash of the plan that is meant.", max_length=64)] = None,
) -> AppliedShown:
    """Make a pipeline as the document says; a new one runs."""
    done = service.apply(content, actor=caller.name, plan_hash=plan)
    return AppliedShown(outcome=done.outcome, plan=PlanShown.of(done.plan), pipeline=PipelineInfo.of(done.record))


@router.get("/pipelines", response_model=list[PipelineInfo])
def pipelines(
    service: Use,
    caller: Viewer,
    label: Annotated[list[str], Query(description="`name:value`, `name=value` or `name`; all of them.")] = [],  # noqa: B006
    figures: Annotated[bool, Query(description="Each with its figures.")] = False,
) -> list[PipelineInfo]:
    """All of them, by name."""
    labels, found = _labels(label), []
    after: str | None = None
    while page := service.pipelines(labels=labels, after=after, limit=MOST):
        found += [PipelineInfo.of(each, whole=figures) for each in page]
        after = page[-1].name
    return found


@router.post("/pipelines", response_model=PipelineInfo, openapi_extra=_BODY)
def create(content: Document, service: Use, caller: Operator, response: Response) -> PipelineInfo:
    """Make a pipeline and run it. 409 where there is one of its name."""
    return _told(service.create(content, actor=caller.name), response)


@router.get("/pipelines/{name}", response_model=PipelineInfo)
def pipeline(name: Name, service: Use, caller: Viewer, response: Response) -> PipelineInfo:
    """One, with its figures."""
    record = service.get(name)
    response.headers["ETag"] = etag_of(record)
    return PipelineInfo.of(record, whole=True)


@router.patch("/pipelines/{name}", response_model=PipelineInfo, openapi_extra=_BODY)
def patch(
    name: Name, changes: Document, service: Use, caller: Operator, response: Response, if_match: IfMatch = None
) -> PipelineInfo:
    """Change its document by a JSON merge patch: null removes, lists replace. It is checked as a whole, and one that is
    wrong changes nothing. A secret that is sent back as it was shown stays as it is."""
    expected = _expected(service, name, if_match)
    return _told(service.patch(name, changes, actor=caller.name, expected_version=expected), response)


@router.delete("/pipelines/{name}", status_code=HTTPStatus.NO_CONTENT)
def delete(name: Name, service: Use, caller: Admin, if_match: IfMatch = None) -> None:
    """End it, and forget its document. Its log, its slots, and what its sinks have stay."""
    service.delete(name, actor=caller.name, expected_version=_expected(service, name, if_match))


@router.post("/pipelines/{name}/pause", response_model=PipelineInfo)
def pause(name: Name, service: Use, caller: Operator) -> PipelineInfo:
    """Deliver nothing, and keep reading the source into the log."""
    return PipelineInfo.of(service.pause(name, actor=caller.name))


@router.post("/pipelines/{name}/resume", response_model=PipelineInfo)
def resume(name: Name, service: Use, caller: Operator) -> PipelineInfo:
    """Run; what has failed is tried anew."""
    return PipelineInfo.of(service.resume(name, actor=caller.name))


@router.post("/pipelines/{name}/stop", response_model=PipelineInfo)
def stop(name: Name, service: Use, caller: Operator) -> PipelineInfo:
    """Neither read nor deliver."""
    return PipelineInfo.of(service.stop(name, actor=caller.name))


@router.get("/pipelines/{name}/versions", response_model=Page[DocumentVersion])
def versions(
    name: Name, service: Use, caller: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[DocumentVersion]:
    """The versions of its document, the newest first."""
    filter = ["versions", name]
    found = service.history(name, before=place_of(cursor, filter, int), limit=limit)
    following = cursor_of(found[-1].version, filter) if len(found) == limit else None
    return Page(items=[DocumentVersion.of(each) for each in found], next=following)


@router.get("/pipelines/{name}/transitions", response_model=Page[TransitionShown])
def transitions(
    name: Name, service: Use, caller: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[TransitionShown]:
    """From which state to which it went, the newest first."""
    service.get(name)
    filter = ["transitions", name]
    found = service.transitions(name, before=place_of(cursor, filter, int), limit=limit)
    following = cursor_of(found[-1].number, filter) if len(found) == limit else None
    return Page(items=[TransitionShown.of(each) for each in found], next=following)


def _told(record: PipelineRecord, response: Response) -> PipelineInfo:
    response.headers["ETag"] = etag_of(record)
    return PipelineInfo.of(record)


def _expected(service: Service, name: str, if_match: str | None) -> int | None:
    """The version that an `If-Match` names; raises `store.precondition` where that is not the one of now."""
    if if_match is None or if_match.strip() == "*":
        return None
    record = service.get(name)
    if etag_of(record) not in [each.strip() for each in if_match.split(",")]:
        hint = "look at it again, and apply your change to what is there now"
        message = f"the pipeline {name!r} is at {etag_of(record)}"
        raise ConfigError("store.precondition", message, hint=hint, where="If-Match")
    return record.version


def _labels(labels: list[str]) -> Mapping[str, str | None]:
    found: dict[str, str | None] = {}
    for each in labels:
        sign = next((sign for sign in each if sign in ":="), "")
        name, _, value = each.partition(sign) if sign else (each, "", "")
        found[name] = value if sign else None
    return found
