"""Logins whose tokens a cloud's own library makes (SASL OAUTHBEARER)."""

from __future__ import annotations

import base64
import importlib
import json
import time
from collections.abc import Callable
from datetime import UTC
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from tailrace.config import Model
from tailrace.errors import SetupError, SinkError

Tokens = Callable[[str], tuple[str, float]]
"""What librdkafka asks for a token and the time at which it expires, in seconds since 1970."""

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class AwsMskIam(Model):
    """Amazon MSK by IAM: the AWS SDK's usual credentials, or a role that they may assume."""

    type: Annotated[Literal["aws_msk_iam"], Field(description="Amazon's tokens.")] = "aws_msk_iam"
    region: Annotated[str, Field(min_length=1, description="The cluster's region.", examples=["eu-central-1"])]
    role_arn: Annotated[str | None, Field(description="A role to assume.")] = None

    def tokens(self, sink: str) -> Tokens:
        signer: Any = _library("aws_msk_iam_sasl_signer", "msk", sink).MSKAuthTokenProvider

        def token(_: str) -> tuple[str, float]:
            if self.role_arn is None:
                text, expires_ms = signer.generate_auth_token(self.region)
            else:
                text, expires_ms = signer.generate_auth_token_from_role_arn(self.region, self.role_arn, "tailrace")
            return text, expires_ms / 1000

        return _made(token, sink)


class Google(Model):
    """Google's Managed Service for Apache Kafka: Application Default Credentials."""

    type: Annotated[Literal["google"], Field(description="Google's tokens.")] = "google"

    def tokens(self, sink: str) -> Tokens:
        auth, requests = (_library(name, "google", sink) for name in ("google.auth", "google.auth.transport.requests"))

        def token(_: str) -> tuple[str, float]:
            credentials, _project = auth.default(scopes=[_SCOPE])
            credentials.refresh(requests.Request())
            return _google_token(credentials)

        return _made(token, sink)


Login = Annotated[AwsMskIam | Google, Field(discriminator="type")]


class _GoogleCredentials(Protocol):
    token: str
    expiry: Any
    service_account_email: str


def _google_token(credentials: _GoogleCredentials) -> tuple[str, float]:
    """What Google's brokers take: a JWT's shape around an access token."""
    expires: float = credentials.expiry.replace(tzinfo=UTC).timestamp()
    head = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    body = {
        "exp": expires,
        "iat": time.time(),
        "iss": "Google",
        "scope": "kafka",
        "sub": credentials.service_account_email,
    }
    parts = (json.dumps(head), json.dumps(body), credentials.token)
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts), expires


def _library(name: str, extra: str, sink: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SetupError(
            "setup.library_missing",
            f"`oauth` needs the Python library {name}",
            hint=f"pip install 'tailrace[{extra}]', on every machine that runs Spark's tasks",
            where=sink,
        ) from None


def _made(token: Tokens, sink: str) -> Tokens:
    """The first token now, with a plain error where there is none: librdkafka would only wait for it."""
    try:
        token("")
    except Exception as error:  # the libraries have no root of their own errors
        raise SinkError(
            "sink.refused",
            f"no token for `oauth`: {type(error).__name__}: {error}",
            hint="check the credentials that this machine has, and the user's rights",
            where=sink,
        ) from error
    return token
