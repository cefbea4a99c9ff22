"""Logins over HTTP, for every sink that speaks it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import httpx
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tailrace.config import Model, Secret
from tailrace.sinks.http.addresses import problem_of_header


def _plain_secret(secret: Secret) -> Secret:
    problem = problem_of_header("authorization", secret.get_secret_value())
    if problem or not secret.get_secret_value():
        context = {"hint": "check the variable that it comes from: it may end with a line break, or be empty"}
        raise PydanticCustomError("config.invalid_value", "not a secret that can be sent", context)
    return secret


Sent = Annotated[Secret, AfterValidator(_plain_secret)]
"""A secret that fits into a header."""


class BearerAuth(Model):
    """A token, in `Authorization: Bearer`."""

    type: Annotated[Literal["bearer"], Field(description="A token.")] = "bearer"
    token: Annotated[Sent, Field(description="The token; never shown.")]

    def login(self) -> httpx.Auth:
        return _Token("Bearer", self.token.get_secret_value())


class BasicAuth(Model):
    """User and password, in `Authorization: Basic`."""

    type: Annotated[Literal["basic"], Field(description="User and password.")] = "basic"
    username: Annotated[str, Field(pattern=r"^[^:\x00-\x1f]+$", description="The user.")]
    password: Annotated[Sent, Field(description="The password; never shown.")]

    def login(self) -> httpx.Auth:
        return httpx.BasicAuth(self.username.encode(), self.password.get_secret_value().encode())


class ApiKeyAuth(Model):
    """A key of the server's own, in `Authorization: ApiKey`."""

    type: Annotated[Literal["api_key"], Field(description="An API key.")] = "api_key"
    key: Annotated[
        Sent, Field(description="The key as the server encodes it (base64 of its id and secret); never shown.")
    ]

    def login(self) -> httpx.Auth:
        return _Token("ApiKey", self.key.get_secret_value())


class _Token(httpx.Auth):
    def __init__(self, scheme: str, token: str) -> None:
        self._header = f"{scheme} {token}"

    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["Authorization"] = self._header
        yield request
