"""Who may come in, and who did what."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request, Response

from tailrace.control.audit import AuditFilter
from tailrace.control.tokens import Scope
from tailrace.errors import ConfigError
from tailrace.supervisor.service import Service
from tailrace.surfaces.page.answers import Form, PageRoute, render, see
from tailrace.surfaces.rest.access import Admin
from tailrace.surfaces.rest.pipelines import Use

router = APIRouter(route_class=PageRoute)
ROWS = 100
DAY_US = 24 * 3600 * 1_000_000
DAYS = ("7", "30", "90", "365")
"""How long a new token may last."""

Before = Annotated[int | None, Query(ge=1)]
Text = Annotated[str, Query(max_length=200)]


@router.get("/admin")
def admin(
    request: Request, service: Use, caller: Admin, before: Before = None, actor: Text = "", name: Text = ""
) -> Response:
    return _shown(request, service, before=before, actor=actor, name=name)


@router.post("/admin/tokens")
def create(request: Request, service: Use, caller: Admin, sent: Form) -> Response:
    """The token's clear text is shown now, and never again."""
    name, scope, days = sent.get("name", "").strip(), sent.get("scope"), sent.get("days")
    found = next((each for each in get_args(Scope) if each == scope), None)
    if not name or found is None or days not in DAYS:
        hint = f"give a name, a scope of {', '.join(get_args(Scope))}, and {', '.join(DAYS)} days"
        raise ConfigError("request.invalid", "a token was not described", hint=hint, where="body")
    expires = int(time.time() * 1e6) + int(days) * DAY_US
    sees = "sees_values" in sent
    _, clear = service.tokens.create(name, found, sees_values=sees, expires_us=expires, actor=caller.name)
    return _shown(request, service, clear=clear)


@router.post("/admin/tokens/{token}/revoke")
def revoke(token: str, service: Use, caller: Admin) -> Response:
    service.tokens.revoke(token, actor=caller.name)
    return see("/admin")


def _shown(
    request: Request, service: Service, *, before: int | None = None, actor: str = "", name: str = "", clear: str = ""
) -> Response:
    wanted = AuditFilter(actor=actor or None, name=name or None)
    rows = service.audit.list(wanted, before=before, limit=ROWS)
    return render(
        request,
        "admin.html",
        HTTPStatus.OK,
        tokens=service.tokens.list(),
        scopes=get_args(Scope),
        days=DAYS,
        clear=clear,
        rows=rows,
        more=rows[-1].number if len(rows) == ROWS else None,
        actor=actor,
        name=name,
    )
