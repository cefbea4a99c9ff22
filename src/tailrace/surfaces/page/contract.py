"""The OpenAPI document, to be read: FastAPI's own pages load scripts from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Request, Response

from tailrace.surfaces.page.answers import PageRoute, render
from tailrace.surfaces.rest.access import Viewer

router = APIRouter(route_class=PageRoute)


@dataclass(frozen=True)
class Field:
    """A parameter of an operation."""

    name: str
    place: str
    required: bool
    kind: str
    meaning: str


@dataclass(frozen=True)
class Operation:
    group: str
    method: str
    path: str
    meaning: str
    fields: tuple[Field, ...]
    body: str
    answers: tuple[tuple[str, str], ...]


@router.get("/api")
def contract(request: Request, caller: Viewer) -> Response:
    found = sorted(_operations(request.app.openapi()), key=lambda each: each.group)
    groups = [(name, list(each)) for name, each in groupby(found, lambda each: each.group)]
    return render(request, "contract.html", groups=groups)


def _operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            body = each.get("requestBody", {}).get("content", {})
            yield Operation(
                (each.get("tags") or ["other"])[0],
                method.upper(),
                path,
                each.get("description") or each.get("summary", ""),
                tuple(_field(field) for field in each.get("parameters", ())),
                ", ".join(body),
                tuple((status, answer.get("description", "")) for status, answer in each["responses"].items()),
            )


def _field(told: Mapping[str, Any]) -> Field:
    meaning = told.get("description", "")
    return Field(told["name"], told["in"], told.get("required", False), _kind(told.get("schema", {})), meaning)


def _kind(schema: Mapping[str, Any]) -> str:
    """In a word or two."""
    if several := schema.get("anyOf"):
        return " or ".join(_kind(each) for each in several if each.get("type") != "null")
    if "enum" in schema:
        return " or ".join(str(each) for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type") or schema.get("$ref", "").rpartition("/")[2])
