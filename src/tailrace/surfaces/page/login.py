"""A token becomes a cookie, which scripts cannot read and other sites' pages cannot send."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response

from tailrace.surfaces.page.answers import Form, PageRoute, render, see
from tailrace.surfaces.rest.access import COOKIE, Door

router = APIRouter(route_class=PageRoute)


@router.get("/login")
def form(request: Request, next: Annotated[str, Query(max_length=1000)] = "/") -> Response:
    return render(request, "login.html", next=_local(next), refused=False)


@router.post("/login")
def login(request: Request, sent: Form) -> Response:
    """The browser forgets the cookie when it ends; the token itself may expire sooner."""
    token, place = sent.get("token", "").strip(), _local(sent.get("next", "/"))
    door: Door = request.app.state.door
    if door.known(token) is None:
        return render(request, "login.html", HTTPStatus.UNAUTHORIZED, next=place, refused=True)
    answer = see(place)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, path="/", httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
def logout() -> Response:
    answer = see("/login")
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _local(place: str) -> str:
    """A path of this server, whatever was sent: a login leads to no other site."""
    parts = urlsplit(place.replace("\\", "/"))
    return "/" if parts.scheme or parts.netloc or not place.startswith("/") or place.startswith("//") else place
