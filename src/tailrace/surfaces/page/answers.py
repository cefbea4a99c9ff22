"""HTML answers, and errors as pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

import jinja2
from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from tailrace import __version__
from tailrace.errors import ConfigError, TailraceError
from tailrace.surfaces.page import figures
from tailrace.surfaces.rest.access import COOKIE, Door
from tailrace.surfaces.rest.problems import status_of, told

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("tailrace.surfaces.page"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(figures.FILTERS)
HEADERS = {"Referrer-Policy": "same-origin"}
"""Without a referrer at all a form would come from the origin `null`, which is refused."""


class PageRoute(APIRoute):
    """Answers errors as pages; whoever lacks a token is sent to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except TailraceError as error:
                return refused(request, error)

        return handled


def render(request: Request, template: str, status: int = HTTPStatus.OK, **values: object) -> HTMLResponse:
    """A page. It knows who looks (`caller`; None: nobody yet), and the server's time."""
    door: Door = request.app.state.door
    known: dict[str, object] = {
        "caller": door.caller(request),
        "after": request.app.state.service.newest_event(),
        "has_cookie": COOKIE in request.cookies,
        "now": time.time(),
        "path": request.url.path,
        "version": __version__,
    }
    return HTMLResponse(_TEMPLATES.get_template(template).render(known | values), status, HEADERS)


def refused(request: Request, error: TailraceError) -> Response:
    if error.code == "access.denied":
        return _to_login(request)
    status = status_of(error)
    return render(request, "error.html", status, problem=told(error, status))


def see(place: str) -> RedirectResponse:
    """What was posted is done: look there."""
    return RedirectResponse(place, HTTPStatus.SEE_OTHER, HEADERS)


async def form(request: Request) -> Mapping[str, str]:
    """What a form sent, the last value of each field."""
    try:
        fields = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        hint = "send application/x-www-form-urlencoded"
        raise ConfigError("request.invalid", f"not a form: {error}", hint=hint, where="body") from None
    return {name: values[-1] for name, values in fields.items()}


Form = Annotated[Mapping[str, str], Depends(form)]


def _to_login(request: Request) -> Response:
    """A cookie that is valid no longer goes: where no token is needed, it would be in the way."""
    wanted = request.url.path if request.method == "GET" else "/"
    answer = see(f"/login?next={quote(wanted)}")
    answer.delete_cookie(COOKIE, path="/")
    return answer
