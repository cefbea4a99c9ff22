"""Errors as `application/problem+json` (RFC 9457), with our code, hint and place; `message` is for clients that know no
`detail`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tailrace.config.problems import DocumentError
from tailrace.config.secret import redact
from tailrace.errors import Action, ConfigError, SetupError, TailraceError, decide

MEDIA_TYPE = "application/problem+json"
STATUS = {
    "access.denied": HTTPStatus.UNAUTHORIZED,
    "access.forbidden": HTTPStatus.FORBIDDEN,
    "access.host": HTTPStatus.MISDIRECTED_REQUEST,
    "access.origin": HTTPStatus.FORBIDDEN,
    "dlq.no_letter": HTTPStatus.NOT_FOUND,
    "dlq.no_replay": HTTPStatus.NOT_FOUND,
    "feature.not_yet": HTTPStatus.NOT_IMPLEMENTED,
    "log.missing": HTTPStatus.NOT_FOUND,
    "log.no_table": HTTPStatus.NOT_FOUND,
    "log.no_version": HTTPStatus.NOT_FOUND,
    "operation.missing": HTTPStatus.NOT_FOUND,
    "pipeline.exists": HTTPStatus.CONFLICT,
    "pipeline.not_running": HTTPStatus.CONFLICT,
    "pipeline.missing": HTTPStatus.NOT_FOUND,
    "plan.outdated": HTTPStatus.CONFLICT,
    "request.too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "sink.missing": HTTPStatus.NOT_FOUND,
    "snapshot.missing": HTTPStatus.NOT_FOUND,
    "store.conflict": HTTPStatus.CONFLICT,
    "store.precondition": HTTPStatus.PRECONDITION_FAILED,
}
"""By code; the rest by kind."""


def answer(error: TailraceError) -> JSONResponse:
    """The error as an answer. What it quotes may have passwords in it, which are blanked."""
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    if decide(error) is Action.RETRY:
        headers["Retry-After"] = "5"
    return JSONResponse(told(error, status), status, headers, MEDIA_TYPE)


def status_of(error: TailraceError) -> HTTPStatus:
    if error.code in STATUS:
        return STATUS[error.code]
    if decide(error) is Action.RETRY:
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, ConfigError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, SetupError) else HTTPStatus.BAD_GATEWAY


def told(error: TailraceError, status: HTTPStatus) -> dict[str, Any]:
    fields = {name: redact(text) for name, text in error.as_dict().items()}
    problem = {
        "type": f"urn:tailrace:error:{error.code}",
        "title": status.phrase,
        "status": int(status),
        "detail": fields["message"],
        "code": error.code,
        "message": fields["message"],
        "hint": fields["hint"],
        "where": fields["where"],
    }
    if isinstance(error, DocumentError):
        problem["problems"] = [each.as_dict() for each in error.problems]
    return problem


def install(app: FastAPI) -> None:
    """Every error becomes a problem; a fault of ours is told as one, without its trace."""

    @app.exception_handler(TailraceError)
    async def ours(request: Request, error: TailraceError) -> JSONResponse:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(ConfigError("request.invalid", str(first["msg"]), hint="see /openapi.json", where=where))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        problem = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": str(error.detail)}
        code = f"request.{status.name.lower()}"
        return JSONResponse({**problem, "code": code, "message": str(error.detail)}, status, error.headers, MEDIA_TYPE)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        detail = f"a fault of Tailrace: {type(error).__name__}"
        problem = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
        return JSONResponse(
            {**problem, "code": "internal", "message": detail, "hint": "please report it"}, status, None, MEDIA_TYPE
        )
