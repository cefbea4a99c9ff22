"""A bucket of S3-compatible storage: the few requests that the sink makes, and what its refusals mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError, SSLError

from tailrace.config import MIB, redact
from tailrace.errors import ConfigError, SinkError

OURS = re.compile(r"/\d{4,}-\d\d-\d\d/\d{19}-\d{19}-\d{4}-\d{6}\.[a-z.]+$")
"""How the keys of the sink's files end."""
_PART_BYTES = 16 * MIB
_CONNECT_S, _READ_S = 5.0, 20.0
_CONNECTIONS = 16
_PASSES = frozenset({"OperationAborted", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"})
_CONFLICTS = frozenset({"ConditionalRequestConflict", "PreconditionFailed"})
_GONE = frozenset({"404", "NoSuchKey", "NoSuchUpload"})
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500

_clients: dict[Access, Any] = {}


@dataclass(frozen=True)
class Access:
    """How a bucket is reached. None: as the AWS SDK finds it (environment, profile, role)."""

    endpoint: str | None
    region: str | None
    access_key_id: str | None
    secret: str | None
    virtual_hosted_style: bool
    root_cert: Path | None

    def __repr__(self) -> str:
        return f"Access({self.endpoint}, {self.region})"


class Upload(NamedTuple):
    """A multipart upload that is whole but not completed: nobody sees it, and completing it takes one request."""

    key: str
    id: str
    tags: tuple[str, ...]
    size: int


class Found(NamedTuple):
    """An object's content, and the tag that a conditional request names it by."""

    content: bytes
    tag: str


class Conflict(Exception):
    """The object is not what the request said it must be."""


@dataclass(frozen=True)
class Bucket:
    """Clients live as long as their process: connecting costs."""

    name: str
    access: Access

    def read(self, key: str) -> Found | None:
        try:
            answer = self._client.get_object(Bucket=self.name, Key=key)
        except ClientError as error:
            if _code(error) in _GONE:
                return None
            raise
        return Found(answer["Body"].read(), answer["ETag"])

    def replace(self, key: str, content: bytes, tag: str | None) -> None:
        """Write an object in place of the one with this tag; None: where there is none. Else raises `Conflict`."""
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            self._client.put_object(Bucket=self.name, Key=key, Body=content, **condition)
        except ClientError as error:
            if _code(error) in _CONFLICTS:
                raise Conflict from error
            raise

    def size(self, key: str) -> int | None:
        """Of an object, where it exists."""
        try:
            found: int = self._client.head_object(Bucket=self.name, Key=key)["ContentLength"]
        except ClientError as error:
            if _code(error) in _GONE:
                return None
            raise
        return found

    def keys(self, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
            yield from (each["Key"] for each in page.get("Contents", ()))

    def upload(self, file: Path, key: str) -> Upload:
        """All parts of a file, without completing it."""
        where = {"Bucket": self.name, "Key": key}
        upload = self._client.create_multipart_upload(**where)["UploadId"]
        tags: list[str] = []
        with file.open("rb") as content:
            while part := content.read(_PART_BYTES):
                answer = self._client.upload_part(**where, UploadId=upload, PartNumber=len(tags) + 1, Body=part)
                tags.append(answer["ETag"])
        return Upload(key, upload, tuple(tags), file.stat().st_size)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Key and id of each upload that was neither completed nor aborted."""
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name, Prefix=prefix):
            yield from ((each["Key"], each["UploadId"]) for each in page.get("Uploads", ()))

    def complete(self, upload: Upload) -> bool:
        """Make the object visible. False where the upload is gone, and the object is not there."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(upload.tags, 1)]
        try:
            self._client.complete_multipart_upload(
                Bucket=self.name, Key=upload.key, UploadId=upload.id, MultipartUpload={"Parts": parts}
            )
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
            return self.size(upload.key) == upload.size  # completed by the attempt before this one
        return True

    def abort(self, key: str, upload: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)
        except ClientError as error:
            if _code(error) not in _GONE:
                raise

    def look(self) -> None:
        """Raise unless the bucket is there and can be listed."""
        self._client.list_objects_v2(Bucket=self.name, MaxKeys=1)

    @property
    def _client(self) -> Any:
        if self.access not in _clients:
            _clients[self.access] = _made(self.access)
        return _clients[self.access]


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn refusals of the storage into errors that say whether waiting can help."""
    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        passes = _code(error) in _PASSES or status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR
        raise (_unavailable if passes else _refused)(redact(str(error)), where) from error
    except SSLError as error:
        raise _refused(redact(str(error)), where) from error
    except (ConnectionError, HTTPClientError) as error:
        raise _unavailable(redact(str(error)), where) from error
    except (BotoCoreError, ValueError) as error:
        raise _refused(redact(str(error)), where) from error


def _unavailable(reason: str, where: str) -> SinkError:
    hint = "check that the storage is reachable and not overloaded; the sink tries again by itself"
    return SinkError("sink.unavailable", f"the storage does not do it now: {reason}", hint=hint, where=where)


def _refused(reason: str, where: str) -> SinkError:
    hint = (
        "check bucket, endpoint, region, root_cert and the keys, and that they may get, put and list objects, list "
        "multipart uploads and abort them"
    )
    return SinkError("sink.refused", f"the storage refuses: {reason}", hint=hint, where=where)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _made(access: Access) -> Any:
    if access.root_cert is not None and not access.root_cert.is_file():
        message = f"there is no file {access.root_cert} with certificate authorities"
        raise ConfigError("config.bad_tls", message, hint="check root_cert; tasks must be able to read it too")
    style = "virtual" if access.virtual_hosted_style else "path"
    config = Config(
        connect_timeout=_CONNECT_S,
        max_pool_connections=_CONNECTIONS,
        read_timeout=_READ_S,
        retries={"mode": "standard", "total_max_attempts": 2},
        s3={"addressing_style": style},
    )
    return boto3.session.Session().client(
        "s3",
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret,
        config=config,
        endpoint_url=access.endpoint,
        region_name=access.region,
        verify=None if access.root_cert is None else str(access.root_cert),
    )
