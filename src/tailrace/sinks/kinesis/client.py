"""Kinesis' side: clients, what its errors mean, and its streams."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    SSLError,
)

from tailrace.config import redact
from tailrace.contracts import never
from tailrace.errors import SinkError

LAST_WAIT_S = 2.0
"""How long a run that ends still waits for a service that says nothing."""
_LOOK_S = 0.2

MISSING = "ResourceNotFoundException"
_IN_USE = "ResourceInUseException"
OF_CONTENT = frozenset({"InvalidArgumentException", "ValidationException", "SerializationException"})
"""Codes of calls that are refused for what they carry, before anything of them is stored."""
_NO_LOGIN = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "KMSAccessDeniedException",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


@dataclass(frozen=True)
class Access:
    """Where the service is and who the sink is there; hashable, so that a process keeps one client for it."""

    sink: str
    region: str | None
    endpoint: str | None
    login: tuple[str, str, str | None] | None = field(repr=False)
    """Key id, secret and session token; None: what the environment says."""
    root_cert: Path | None
    cert: Path | None
    key: Path | None
    verify: bool
    patience: float
    connect_patience: float


_clients: dict[Access, Any] = {}
_making = threading.Lock()


@cache
def _session() -> Any:
    """One for all clients: it has read what the service's calls are like, which takes longer than a call."""
    return boto3.session.Session()


def client_for(access: Access) -> Any:
    """This process's client. It repeats nothing by itself. Raises `SinkError`."""
    with _making:  # sessions are not for several threads
        if access not in _clients:
            try:
                _clients[access] = _new_client(access)
            except (BotoCoreError, ValueError, OSError) as error:
                raise kinesis_error(error, access.sink) from None
        return _clients[access]


def discard(access: Access) -> None:
    """Close its connections: nothing is sent on them any more."""
    client = _clients.pop(access, None)
    if client is not None:
        client.close()


def _new_client(access: Access) -> Any:
    for path in (access.root_cert, access.cert, access.key):
        if path is not None:
            path.read_bytes()
    if not access.verify:  # it was asked for, and would be said again with every call
        warnings.filterwarnings("ignore", message="Unverified HTTPS request")
    own = (str(access.cert), str(access.key)) if access.key is not None else str(access.cert)
    key_id, secret, token = access.login or (None, None, None)
    return _session().client(
        "kinesis",
        region_name=access.region,
        endpoint_url=access.endpoint,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        aws_session_token=token,
        verify=str(access.root_cert) if access.verify and access.root_cert is not None else access.verify,
        config=Config(
            connect_timeout=access.connect_patience,
            read_timeout=access.patience,
            retries={"total_max_attempts": 1},
            client_cert=None if access.cert is None else own,
        ),
    )


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def kinesis_error(error: Exception, sink: str) -> SinkError:
    """What an error of a call means."""
    text = redact(str(error))
    if isinstance(error, ClientError):
        return _of_service(error, text, sink)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        hint = "give access_key_id and secret_access_key, or set up the environment's own credentials"
        return refused(f"there are no credentials: {text}", hint, sink)
    if isinstance(error, NoRegionError):
        return refused("there is no region", "give `region`", sink)
    if isinstance(error, SSLError):
        hint = "check `tls`: root_cert signs the endpoint's certificate, which names its host"
        return refused(f"no TLS connection: {text}", hint, sink)
    if isinstance(error, FileNotFoundError | PermissionError):
        return refused(f"cannot read {error.filename}: {error.strerror}", "check the files of `tls`", sink)
    if isinstance(error, ValueError):
        return refused(text, "check `endpoint` and `region`", sink)
    return unavailable(f"Kinesis cannot be reached: {text}", sink)


def _of_service(error: ClientError, text: str, sink: str) -> SinkError:
    code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _NO_LOGIN or status in (401, 403):
        hint = "let the principal describe the stream and put records to it (kinesis:PutRecords, DescribeStreamSummary)"
        return refused(f"Kinesis does not let it in: {text}", hint, sink)
    if code == MISSING:
        return refused(f"the stream is not there: {text}", "make it, or give the sink `create_streams`", sink)
    if code in OF_CONTENT:
        return refused(f"Kinesis refuses the call: {text}", "see its message", sink)
    return unavailable(f"Kinesis cannot do it now: {text}", sink)


def unavailable(text: str, sink: str, hint: str = "check `region`, `endpoint` and the network") -> SinkError:
    return SinkError("sink.unavailable", text, hint=f"{hint}; the sink tries again by itself", where=sink)


def refused(text: str, hint: str, where: str) -> SinkError:
    return SinkError("sink.refused", text, hint=hint, where=where)


@dataclass(frozen=True)
class Streams:
    """A region's streams. `shards` of those that it makes: a number, 0 for on demand, None to make none."""

    access: Access
    shards: int | None
    ending: Callable[[], bool] = never

    def status(self, name: str) -> str | None:
        """`ACTIVE`, `CREATING` and so on; None where there is no such stream."""
        try:
            found = client_for(self.access).describe_stream_summary(StreamName=name)
        except ClientError as error:
            if code_of(error) == MISSING:
                return None
            raise kinesis_error(error, self.access.sink) from None
        except BotoCoreError as error:
            raise kinesis_error(error, self.access.sink) from None
        return str(found["StreamDescriptionSummary"]["StreamStatus"])

    def ensure(self, name: str) -> None:
        """Return when records can be put to it, making it where that is ours to do."""
        status, since = self.status(name), time.monotonic()
        if status is None:
            if self.shards is None:
                raise missing(name, self.access.sink)
            self._make(name, self.shards)
            status = self.status(name)
        while status not in ("ACTIVE", "UPDATING"):
            waited = time.monotonic() - since
            if status == "DELETING" or waited > self.access.patience or (waited > LAST_WAIT_S and self.ending()):
                raise unavailable(f"the stream {name} is {status or 'not there yet'}", self.access.sink, "wait")
            time.sleep(_LOOK_S)
            status = self.status(name)

    def look(self) -> None:
        """Whether the service answers, where no stream is known beforehand."""
        try:
            client_for(self.access).list_streams(Limit=1)
        except ClientError as error:
            if code_of(error) not in ("AccessDenied", "AccessDeniedException"):  # it need not be allowed to look around
                raise kinesis_error(error, self.access.sink) from None
        except BotoCoreError as error:
            raise kinesis_error(error, self.access.sink) from None

    def _make(self, name: str, shards: int) -> None:
        provisioned = {"ShardCount": shards, "StreamModeDetails": {"StreamMode": "PROVISIONED"}}
        how = provisioned if shards else {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        try:
            client_for(self.access).create_stream(StreamName=name, **how)
        except ClientError as error:
            if code_of(error) != _IN_USE:  # another task was quicker
                raise kinesis_error(error, self.access.sink) from None
        except BotoCoreError as error:
            raise kinesis_error(error, self.access.sink) from None


def missing(name: str, where: str) -> SinkError:
    hint = f"`aws kinesis create-stream --stream-name {name}`, or give the sink `create_streams`"
    return refused(f"the stream {name} does not exist", hint, where)
