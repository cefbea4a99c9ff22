"""A pipeline's document: as it is, as it was, and as it shall be: written, planned, applied."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import yaml
from fastapi import APIRouter, Path, Request, Response

from tailrace.config.document import Document, parse_document, show_path
from tailrace.config.problems import DocumentError, Problem
from tailrace.errors import ConfigError, TailraceError
from tailrace.supervisor.service import PipelineRecord
from tailrace.surfaces.page.answers import Form, PageRoute, render, see
from tailrace.surfaces.rest.access import Operator, Viewer
from tailrace.surfaces.rest.pipelines import Name, Use
from tailrace.surfaces.rest.problems import status_of, told
from tailrace.surfaces.rest.shapes import DocumentVersion, PlanShown

router = APIRouter(route_class=PageRoute)
VERSIONS = 100
TO_BEGIN_WITH = """\
metadata:
  name: my-pipeline
spec:
  source:
    type: postgres
    config:
      id: shop
      dsn: ${SHOP_DSN}        # a variable of the server's environment, so that no password stands here
      tables: [public.*]
      snapshot: {}            # what is there already is read, too
  sinks:
    - type: file
      config: {id: files, path: /tmp/my-pipeline, format: jsonl}
"""


@dataclass(frozen=True)
class Line:
    """Of a difference."""

    kind: Literal["same", "added", "removed"]
    text: str


@dataclass(frozen=True)
class Misfit:
    """A problem of a document, and the line that was sent; 0: none of them."""

    line: int
    problem: Problem


@router.get("/pipeline/{name}/document")
def document(request: Request, name: Name, service: Use, caller: Viewer) -> Response:
    """The document of now, and those before it."""
    record = service.get(name)
    versions = [DocumentVersion.of(each) for each in service.history(name, limit=VERSIONS)]
    return render(request, "document.html", record=record, text=_text(record.content), versions=versions)


@router.get("/pipeline/{name}/document/{version}")
def version(
    request: Request, name: Name, version: Annotated[int, Path(ge=1)], service: Use, caller: Viewer
) -> Response:
    """A version, and how it differs from the one before."""
    record = service.get(name)
    found = [DocumentVersion.of(each) for each in service.history(name, before=version + 1, limit=2)]
    if not found or found[0].version != version:
        raise ConfigError("pipeline.missing", f"{name!r} has no version {version}", hint="its page lists them")
    text, before = ([_text(each.document or {}) for each in found] + [""])[:2]
    lines = list(difference(before, text))
    return render(request, "version.html", record=record, shown=found[0], text=text, lines=lines)


@router.get("/new")
def new(request: Request, caller: Operator) -> Response:
    return render(request, "edit.html", record=None, text=TO_BEGIN_WITH, problem=None, misfits=[])


@router.get("/pipeline/{name}/edit")
def edit(request: Request, name: Name, service: Use, caller: Operator) -> Response:
    record = service.get(name)
    return render(request, "edit.html", record=record, text=_text(record.content), problem=None, misfits=[])


@router.post("/document/plan")
def plan(request: Request, service: Use, caller: Operator, sent: Form) -> Response:
    """What applying a document would change; whoever wants that applies just that."""
    text, name = _sent(sent), sent.get("name", "")
    record = service.get(name) if name else None
    parsed = None
    try:
        parsed = parse_document(text, "document")
        found = service.plan(parsed.data)
        _refuse_other(record, found.pipeline, found.version)
    except TailraceError as error:
        status = status_of(error)
        misfits, problem = list(_misfits(parsed, error)), told(error, status)
        return render(request, "edit.html", status, record=record, text=text, problem=problem, misfits=misfits)
    return render(request, "plan.html", record=record, plan=PlanShown.of(found), text=text)


@router.post("/document/apply")
def apply(service: Use, caller: Operator, sent: Form) -> Response:
    """Apply what a plan said."""
    content = parse_document(_sent(sent), "document").data
    done = service.apply(content, actor=caller.name, cause="the page", plan_hash=sent.get("plan", ""))
    return see(f"/pipeline/{done.record.name}")


def difference(before: str, after: str) -> Iterator[Line]:
    """All lines of both."""
    kinds: dict[str, Literal["same", "added", "removed"]] = {" ": "same", "+": "added", "-": "removed"}
    for each in difflib.ndiff(before.splitlines(), after.splitlines()):
        if each[0] in kinds:
            yield Line(kinds[each[0]], each[2:])


def _refuse_other(record: PipelineRecord | None, name: str, version: int) -> None:
    """A new pipeline must not be there yet, and a change is one of the pipeline that was looked at."""
    if record is None and version:
        hint = "choose another name, or edit that one"
        raise ConfigError("pipeline.exists", f"there is a pipeline {name!r} already", hint=hint, where="metadata.name")
    if record is not None and record.name != name:
        hint = "make a new pipeline of that name, and delete this one"
        raise ConfigError("pipeline.renamed", f"this would rename {record.name!r}", hint=hint, where="metadata.name")


def _misfits(parsed: Document | None, error: TailraceError) -> Iterator[Misfit]:
    if not isinstance(error, DocumentError):
        return
    lines = {} if parsed is None else {show_path(path): line for path, line in parsed.lines.items()}
    for problem in error.problems:
        yield Misfit(problem.line if parsed is None else lines.get(problem.path, 0), problem)


def _sent(sent: Mapping[str, str]) -> str:
    return sent.get("document", "").replace("\r\n", "\n")


def _text(content: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=100)
    return text
